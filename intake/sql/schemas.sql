-- The JSON Schemas that payloads must meet. Returns pipeline, version int, schema jsonb of each pipeline that has one.
select pipeline, version, definition -> 'schema' as schema
  from postroad.pipeline
 where definition ? 'schema'
