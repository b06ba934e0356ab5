-- Begin anew on a server that the last tick knows nothing of (restored, switched over): a tick of its own, with its
-- system identifier. Runs after lock_ticks. Rows that we see although their transaction has not begun on this server,
-- or is still at work, came with the other's dump; they are set to the oldest one, or they would be published as new
-- once it gets there. Leans on outbox_xid.
-- Returns tick bigint, snapshot text. What was under way is asked for again by a rebuild.
with foreign_row as (
    update postroad.outbox set xid = '3'::xid8
     where xid >= pg_snapshot_xmin(pg_current_snapshot()) and not pg_visible_in_snapshot(xid, pg_current_snapshot())
)
insert into postroad.tick (tick, snapshot, system_identifier)
select greatest(coalesce((select max(tick) from postroad.tick), 0) + 1,
                (extract(epoch from clock_timestamp()) * 1000)::bigint),
       pg_current_snapshot(),
       system_identifier
  from pg_control_system()
returning tick, snapshot::text
