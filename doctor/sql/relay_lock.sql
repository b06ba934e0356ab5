-- Whether somebody works as the relay of this database: holds the lock of relay/sql/try_lead.sql. Returns is_held boolean.
select exists (
       select from pg_locks
        where locktype = 'advisory' and granted and objsubid = 1
          and database = (select oid from pg_database where datname = current_database())
          and (classid::bigint << 32 | objid::bigint) = hashtextextended('postroad.relay', 0)) as is_held
