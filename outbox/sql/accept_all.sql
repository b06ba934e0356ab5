-- Accept tasks as accept does, all of them or none. Parameters as there. A row whose outcome is a refusal stands after
-- those before it, and says that nothing was written.
select place, outcome, task_id, created_at, traceparent, fault
  from postroad.accept_all(
           %(task_id)s::uuid[], %(is_own)s::boolean[], %(pipeline)b::text[], %(payload)b::text[]::jsonb[],
           %(labels)b::text[]::jsonb[], %(key)b::text[], %(traceparent)b::text[], %(not_before)s::timestamptz[],
           %(deadline)s::timestamptz[], %(priority)s::smallint[], %(submitted_by)s::text[])
