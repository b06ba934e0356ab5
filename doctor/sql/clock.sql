-- The clock of Postgres. Returns now double precision, in seconds since 1970.
select extract(epoch from clock_timestamp())::double precision as now
