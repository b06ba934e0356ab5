-- Replication slots that nobody reads, and what each keeps of the write-ahead log.
-- Returns name text, bytes double precision (null: it was never reserved), is_lost boolean (its log is gone already).
select slot_name::text as name, coalesce(wal_status = 'lost', false) as is_lost,
       pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
                       restart_lsn)::double precision as bytes
  from pg_replication_slots
 where not active and not temporary
 order by bytes desc nulls last
 limit 20
