-- The unresolved dead letters, grouped by what they failed of. Parameters: pipeline text, stage text (null: any),
-- pipelines text[] (no others; null: all).
-- Leans on dead_letter_fingerprint. Returns pipeline, stage, fingerprint, letters bigint, oldest, newest, reason (of the
-- newest), the largest groups first.
select pipeline, stage, fingerprint, count(*) as letters, min(died_at) as oldest, max(died_at) as newest,
       (array_agg(reason order by died_at desc))[1] as reason
  from postroad.dead_letter
 where resolved_at is null
   and (%(pipeline)s::text is null or pipeline = %(pipeline)s)
   and (%(stage)s::text is null or stage = %(stage)s)
   and (%(pipelines)s::text[] is null or pipeline = any (%(pipelines)s::text[]))
 group by pipeline, stage, fingerprint
 order by letters desc, newest desc
