-- (task, stage) pairs whose success was committed more than once, and once more for each time that a person had the
-- stage retried.
with violation as (
    select task_id
      from postroad.outbox as done
     where type = 'StageCompleted'
     group by task_id, stage
    having count(*) > 1 + (select count(*)
                             from postroad.outbox as retried
                            where retried.task_id = done.task_id and retried.type = 'TaskRetried'
                              and retried.data -> 'stages' ? done.stage)
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
