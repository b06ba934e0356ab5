-- What unresolved dead letters failed of: those that failed alike are a group. Parameters: pipeline text, stage text,
-- fingerprint text (null: any), pipelines text[] (no others; null: all), groups int (so many at most), most int, where counting
-- ends.
-- Jumps from group to group along dead_letter_fingerprint, so that it takes no longer for a group of a million; of a group so
-- many letters are looked at. Returns pipeline, stage, fingerprint, letters bigint (more than most: at least so many), oldest,
-- newest, reason, task_id, attempts (of the newest of those looked at), those with the newest letters first.
with recursive known as (
    (select pipeline, stage, fingerprint, 1 as place
       from postroad.dead_letter
      where resolved_at is null
        and (%(pipeline)s::text is null or pipeline = %(pipeline)s)
        and (%(stage)s::text is null or stage = %(stage)s)
        and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
        and (%(pipelines)s::text[] is null or pipeline = any (%(pipelines)s::text[]))
      order by pipeline, stage, fingerprint
      limit 1)
    union all
    select next.pipeline, next.stage, next.fingerprint, known.place + 1
      from known
     cross join lateral (
           select pipeline, stage, fingerprint
             from postroad.dead_letter
            where resolved_at is null
              and (pipeline, stage, fingerprint) > (known.pipeline, known.stage, known.fingerprint)
              and (%(pipeline)s::text is null or pipeline = %(pipeline)s)
              and (%(stage)s::text is null or stage = %(stage)s)
              and (%(fingerprint)s::text is null or fingerprint = %(fingerprint)s)
              and (%(pipelines)s::text[] is null or pipeline = any (%(pipelines)s::text[]))
            order by pipeline, stage, fingerprint
            limit 1) as next
     where known.place < %(groups)s
)
select known.pipeline, known.stage, known.fingerprint, looked.letters, looked.oldest, looked.newest,
       last.reason, last.task_id, last.attempts
  from known
 cross join lateral (
       select count(*) as letters, min(died_at) as oldest, max(died_at) as newest, max(dead_letter_id) as last
         from (select dead_letter_id, died_at
                 from postroad.dead_letter as letter
                where letter.resolved_at is null and letter.pipeline = known.pipeline and letter.stage = known.stage
                  and letter.fingerprint = known.fingerprint
                limit %(most)s + 1) as letter
       ) as looked
  join postroad.dead_letter as last on last.dead_letter_id = looked.last
 order by looked.newest desc, looked.letters desc
