-- (task, stage) pairs whose success was committed more than once.
select count(*)
  from (select from postroad.outbox where type = 'StageCompleted' group by task_id, stage having count(*) > 1) as twice
