-- Tasks whose stages_done are not the stages whose runs are done.
with violation as (
    select task_id
      from postroad.task
      left join lateral (
           select array_agg(stage order by stage) as done
             from postroad.stage_run
            where stage_run.task_id = task.task_id and stage_run.status = 'done'
           ) as run on true
     where coalesce(run.done, '{}') <> array(select unnest(task.stages_done) order by 1)
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
