-- Let a stage rest, since the service behind it does not answer well: nothing of it begins until then.
-- Parameters: pipeline text, stage text, rest interval (null: 1 s, 2 s, 4 s … 30 s, by how often it rested in a row),
-- trouble text (why), is_probe boolean (true: by the one attempt that was let through to see).
-- Returns left interval; no row if it rests already, and nobody asked us to see.
update postroad.stage
   set rests = rests + 1,
       resting_until = clock_timestamp()
           + coalesce(%(rest)s::interval, least(interval '30 seconds', interval '1 second' * 2 ^ least(rests, 10))),
       trouble = %(trouble)s
 where pipeline = %(pipeline)s
   and stage = %(stage)s
   and (resting_until is null or %(is_probe)s)
returning resting_until - clock_timestamp() as left
