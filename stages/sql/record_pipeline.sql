-- Record a pipeline's definition, if it is new or another one. Parameters: pipeline text, definition jsonb as text,
-- priorities boolean.
-- Locks the pipeline's row until the end of the transaction, so that two deployments follow each other.
-- Returns version int, is_new boolean; no row if this very definition is there already.
insert into postroad.pipeline as known (pipeline, definition, version, priorities)
values (%(pipeline)s, %(definition)s::jsonb, 1, %(priorities)s)
    on conflict (pipeline) do update
   set definition = excluded.definition, version = known.version + 1, priorities = excluded.priorities,
       deployed_at = now()
 where known.definition <> excluded.definition
returning version, version = 1 as is_new
