"""From Redis Streams to handlers to their outcome in Postgres; knows no relay."""
