-- The newest tick: whether this server made it, how old it is, and whether there are events that it did not cover (as in
-- outbox/sql/peek.sql). Returns age double precision (seconds; negative: it is of a later time than now), is_ours boolean,
-- waiting double precision (seconds for which an event has waited for a tick; null: none does).
select extract(epoch from clock_timestamp() - made_at)::double precision as age,
       system_identifier = (select system_identifier from pg_control_system())
           and pg_snapshot_xmax(snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) as is_ours,
       (select extract(epoch from clock_timestamp() - occurred_at)
          from postroad.outbox
         where xid >= pg_snapshot_xmax(last.snapshot) and xid < pg_snapshot_xmax(pg_current_snapshot())
         order by xid
         limit 1)::double precision as waiting
  from (select * from postroad.tick order by tick desc limit 1) as last
