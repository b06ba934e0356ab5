-- When the newest dead letters died. Parameter: "limit" int: so many of them, along the primary key, are looked at.
-- Returns hour and day int (how many in the last hour, and in the 24 hours until now), open int (of those, how many nobody has
-- resolved), is_cut boolean (there may be more in the day).
select count(*) filter (where died_at > now() - interval '1 hour')::int as hour,
       count(*) filter (where died_at > now() - interval '24 hours')::int as day,
       count(*) filter (where died_at > now() - interval '24 hours' and resolved_at is null)::int as open,
       count(*) = %(limit)s and min(died_at) > now() - interval '24 hours' as is_cut
  from (select died_at, resolved_at from postroad.dead_letter order by dead_letter_id desc limit %(limit)s) as newest
