-- Who keeps vacuum from removing dead rows of this database, and since how many transactions: sessions with a snapshot or a
-- transaction id, prepared transactions, replication slots. A session in another database counts only if it writes, or
-- sends to a replica. Returns holder text, age bigint (transactions), the one that holds most first, at most 5.
select holder, age
  from (select coalesce('session ' || pid || ' of ' || usename || ' (' || nullif(application_name, '') || ')',
                        'session ' || pid || coalesce(' of ' || usename, '')) as holder,
               greatest(age(backend_xmin), age(backend_xid))::bigint as age
          from pg_stat_activity
         where pid <> pg_backend_pid()
           and (datname = current_database() or backend_xid is not null or backend_type = 'walsender')
        union all
        select 'prepared transaction ' || gid, age(transaction)::bigint from pg_prepared_xacts
        union all
        select 'replication slot ' || slot_name, greatest(age(xmin), age(catalog_xmin))::bigint
          from pg_replication_slots) as held
 where age is not null
 order by age desc
 limit 5
