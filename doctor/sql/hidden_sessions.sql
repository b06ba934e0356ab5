-- How many sessions of other roles there are of which we may not see what they do. Returns hidden int.
select count(*)::int as hidden
  from pg_stat_activity
 where query = '<insufficient privilege>' and datid is not null
