-- The leaves of the outbox: the oldest and the newest event of each. Leans on their primary keys.
-- Returns leaf int, place int (0: the one that fills; 1: the next), oldest and newest double precision (ages in seconds;
-- null: the leaf is empty), began double precision (seconds since the leaf that fills became the one).
select leaf.leaf, mod(leaf.leaf - postroad.outbox_slot() + 8, 8) as place,
       extract(epoch from clock_timestamp() - (select occurred_at from postroad.outbox
                                                where slot = leaf.leaf order by position limit 1))::double precision as oldest,
       extract(epoch from clock_timestamp() - (select occurred_at from postroad.outbox
                                                where slot = leaf.leaf order by position desc limit 1))::double precision as newest,
       mod(extract(epoch from now()), 432000)::double precision as began
  from generate_series(0, 7) as leaf (leaf)
 order by place
