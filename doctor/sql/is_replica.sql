-- Whether this server follows another one, and takes no writes. Returns is_replica boolean.
select pg_is_in_recovery() as is_replica
