-- May a leaf be emptied? Parameters: snapshot pg_snapshot of a tick that every shard has got past, retention interval.
-- The leaf's number replaces {leaf}. Asked first without, then with the leaf locked. Leans on the leaf's primary key and
-- index on xid: a count would hold up readers. Both arms about xid matter: rows of later transactions, and of those
-- that the tick saw running. Returns is_old boolean (false for an empty leaf), events bigint (the planner's guess).
select coalesce((select occurred_at from postroad.outbox_{leaf} order by position desc limit 1)
                < now() - %(retention)s::interval, false)
       and (select xid from postroad.outbox_{leaf}
             where xid >= pg_snapshot_xmax(%(snapshot)s::pg_snapshot) order by xid limit 1) is null
       and (select xid from postroad.outbox_{leaf}
             where xid = any (array(select pg_snapshot_xip(%(snapshot)s::pg_snapshot))) order by xid limit 1) is null
       as is_old,
       (select greatest(reltuples, 0)::bigint from pg_class where oid = 'postroad.outbox_{leaf}'::regclass) as events
