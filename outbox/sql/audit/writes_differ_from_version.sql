-- Tasks, no older than the oldest event that is kept, with another number of writes than their version says: each of
-- acceptance, outcome, report, requeue, retry, cancellation, and what a deployment drops or completes raises it by one and appends its event.
with violation as (
    select task_id
      from postroad.task
     where created_at >= (select min(occurred_at) from postroad.outbox)
       and version <> (select count(*)
                         from postroad.outbox
                        where outbox.task_id = task.task_id
                          and (type in ('TaskCreated', 'StageCompleted', 'StageFailed', 'StageSnoozed', 'StageHanded',
                                        'StageReported', 'StageDead',
                                        'StageRequeued', 'StageDropped', 'TaskCancelled', 'TaskRetried')
                               or type = 'TaskCompleted' and data ->> 'reason' = 'deploy'))
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
