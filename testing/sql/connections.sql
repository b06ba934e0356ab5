-- How many connections relays and workers have to this database. No parameters, locks nothing.
select count(*)
  from pg_stat_activity
 where datname = current_database()
   and application_name ~ '^postroad (relay|sweep|schedule|stage)'
