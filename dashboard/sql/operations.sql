-- What people did to a stage last. Parameters: pipeline text, target text (pipeline.stage), most int. Walks operation_at from its
-- end. Returns at, by, on_behalf_of, action, reason, before text, after text (as Postgres writes them).
select at, by, on_behalf_of, action, reason, before::text as before, after::text as after
  from postroad.operation
 where pipeline = %(pipeline)s and target = %(target)s
 order by at desc
 limit %(most)s
