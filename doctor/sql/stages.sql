-- The stages in force. Returns pipeline, stage, after, priorities; version and deployed_at of the pipeline; paused, switched_by,
-- switched double precision (seconds since it was paused or resumed; null: not known), resting (interval until it may try
-- again; null: it does not rest), rests int (in a row), trouble; rate text and burst int (as people have set them).
select pipeline, stage, after, priorities, version, deployed_at, paused, switched_by,
       extract(epoch from clock_timestamp() - switched_at)::double precision as switched,
       resting_until - clock_timestamp() as resting, rests, trouble, rate, burst
  from postroad.stage
  join postroad.pipeline using (pipeline)
 order by pipeline, stage
