-- How many transactions, and members of row locks, ago the oldest row of this database was last frozen.
-- Returns xids bigint, multixacts bigint.
select age(datfrozenxid)::bigint as xids, mxid_age(datminmxid)::bigint as multixacts
  from pg_database
 where datname = current_database()
