-- Be the one attempt that is let through, over all processes, to see whether the service behind a stage is back.
-- Parameters: pipeline text, stage text, within interval (how long that takes at most; then another may try).
-- Returns a row if it is us: the stage has rested until now, and nobody else is trying.
update postroad.stage
   set resting_until = clock_timestamp() + %(within)s
 where pipeline = %(pipeline)s and stage = %(stage)s and resting_until <= clock_timestamp()
returning true
