-- Unresolved dead letters whose stage run is not dead, and dead stage runs without an unresolved dead letter.
with violation as (
    select task_id
      from postroad.dead_letter
     where resolved_at is null
       and not exists (select from postroad.stage_run
                        where stage_run.task_id = dead_letter.task_id and stage_run.stage = dead_letter.stage
                          and stage_run.status = 'dead')
    union all
    select task_id
      from postroad.stage_run
     where status = 'dead'
       and not exists (select from postroad.dead_letter
                        where dead_letter.task_id = stage_run.task_id and dead_letter.stage = stage_run.stage
                          and (resolved_at is null or resolution = 'discarded'))
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
