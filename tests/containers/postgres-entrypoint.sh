#!/bin/sh
# The entrypoint of the Postgres image that with-images.sh builds. It takes the variables of the official image that
# testcontainers sets, and needs nothing but a shell and Postgres' own programs.
set -eu

if [ ! -e "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 \
        --encoding=UTF8 --locale=C --no-sync --no-instructions
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    if [ "$POSTGRES_DB" != postgres ]; then
        echo "create database \"$POSTGRES_DB\"" | postgres --single -D "$PGDATA" postgres >/dev/null
    fi
fi
shift # the word "postgres" before its options
exec postgres -D "$PGDATA" -c "listen_addresses=*" -c unix_socket_directories=/tmp "$@"
