-- What the graph of a pipeline would leave behind, before it is recorded. Parameters: pipeline text; stage text[], the
-- stages that it has. Locks nothing. Leans on task_unfinished and dead_letter_unresolved.
-- Returns, for each stage in force that it lacks, if any task is there: stage; tasks bigint (that wait for it, run in
-- it or will retry it); dead_letters bigint (unresolved).
select gone.stage,
       count(*) filter (where letter.task_id is null) as tasks,
       count(letter.task_id) as dead_letters
  from postroad.stage as gone
  join postroad.task using (pipeline)
  left join postroad.stage_run as run on run.task_id = task.task_id and run.stage = gone.stage
  left join postroad.dead_letter as letter
         on letter.task_id = task.task_id and letter.stage = gone.stage and letter.resolved_at is null
 where gone.pipeline = %(pipeline)s
   and gone.stage <> all (%(stage)s::text[])
   and task.status not in ('completed', 'cancelled')
   and gone.after <@ task.stages_done
   and gone.stage <> all (task.stages_done)
   and (run.status is distinct from 'dead' or letter.task_id is not null)
 group by gone.stage
 order by gone.stage
