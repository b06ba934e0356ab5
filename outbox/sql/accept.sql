-- Accept tasks, by the function that accepts them for everybody: see migrations/versions/0007_accept.sql.
-- Parameters, arrays of one length: task_id uuid[], is_own boolean[] (the client chose the id), pipeline text[],
-- payload text[] (JSON), labels text[] (JSON), key text[] (null: none), traceparent text[], not_before timestamptz[] and
-- deadline timestamptz[] (null: none), priority smallint[] (2 high, 1 normal, 0 low), submitted_by text[] (null: nobody
-- that is known); and patience text, a time such as 1s (null: as long as it takes). Those of ids, booleans and numbers
-- come as the text of an array.
-- Texts go in binary form: as text psycopg escapes each quote of an array's JSON, which takes longer than all the rest.
-- Locks the new rows; waits for who is about to commit one of the keys, at most for patience.
-- Returns place bigint (from 1), outcome text, task_id uuid, created_at, traceparent, fault text (member: detail).
select place, outcome, task_id, created_at, traceparent, fault
  from postroad.accept(
           %(task_id)s::uuid[], %(is_own)s::boolean[], %(pipeline)b::text[], %(payload)b::text[]::jsonb[],
           %(labels)b::text[]::jsonb[], %(key)b::text[], %(traceparent)b::text[], %(not_before)s::timestamptz[],
           %(deadline)s::timestamptz[], %(priority)s::smallint[], %(submitted_by)s::text[],
           %(patience)s::text)
