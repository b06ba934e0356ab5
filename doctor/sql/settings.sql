-- Settings of the server, and of our role as they are at its login. Returns name text, value text (in the base unit: ms
-- for times). Those that this version of Postgres does not have are left out.
select name, reset_val as value
  from pg_settings
 where name in ('server_version', 'server_version_num', 'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum',
                'track_counts', 'default_transaction_read_only', 'default_transaction_isolation', 'statement_timeout',
                'lock_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')
