-- How many events no relay has published. Parameters: tick bigint, the one up to which all were (null: the newest), most int,
-- where counting ends. Those of transactions that were open at that tick are not counted. Leans on outbox_xid.
-- Returns events bigint, and tick_at timestamptz: when the newest tick was made.
select (select count(*)
          from (select
                  from postroad.outbox
                 where xid >= pg_snapshot_xmax(tick.snapshot)
                 limit %(most)s + 1) as event) as events,
       (select made_at from postroad.tick order by tick desc limit 1) as tick_at
  from (select snapshot
          from postroad.tick
         where %(tick)s::bigint is null or tick <= %(tick)s::bigint
         order by tick desc
         limit 1) as tick
