#!/usr/bin/env bash
# Run a command whose tests use the oldest servers that we support, as Debian 12 has them: Postgres 15 and Redis 7.0.
#
#   tests/servers/with-oldest.sh COMMAND...
#
# POSTROAD_TEST_POSTGRES and POSTROAD_TEST_REDIS may name other programs. What is missing is installed by apt-get, which
# takes root.
set -euo pipefail

postgres=${POSTROAD_TEST_POSTGRES:-/usr/lib/postgresql/15/bin/postgres}
redis=${POSTROAD_TEST_REDIS:-$(command -v redis-server || echo /usr/bin/redis-server)}

install() { # install PROGRAM PACKAGE
    [ -x "$1" ] && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing $2, for $1" >&2
        apt-get update -qq && apt-get install -qq --no-install-recommends "$2" >&2 || true
    fi
    [ -x "$1" ] && return
    echo "There is no $1: install $2 (Debian 12), or name another program; see the top of $0" >&2
    return 69
}

export DEBIAN_FRONTEND=noninteractive
install "$postgres" postgresql-15
install "$redis" redis-server

export POSTROAD_TEST_POSTGRES=$postgres POSTROAD_TEST_REDIS=$redis
"$postgres" --version
"$redis" --version
exec "$@"
