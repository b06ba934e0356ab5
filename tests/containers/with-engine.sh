#!/usr/bin/env bash
# Run a command with a Docker engine: with the one that answers, else with a private one that ends with the command.
#
#   tests/containers/with-engine.sh COMMAND...
#
# The private engine takes root, and apt-get for what is not installed. It and the command run in namespaces of their
# own: the bridge, the firewall rules, the mounts and the processes of both are gone with the command, and this machine
# never sees them. Nor do they see a network other than their loopback, so the engine cannot pull images.
set -euo pipefail

start_engine() { # start_engine FOLDER
    ip link set lo up
    dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" --host "unix://$1/socket" >"$1/log" 2>&1 &
    export DOCKER_HOST="unix://$1/socket"
    for _ in {1..150}; do
        docker version >/dev/null 2>&1 && return
        kill -0 $! 2>/dev/null || break
        sleep 0.2
    done
    echo "The private Docker engine did not start:" >&2
    tail -n 20 "$1/log" >&2
    return 69
}

if [ "${1:-}" = --inside ]; then
    start_engine "$2"
    docker version --format "A private Docker engine {{.Server.Version}} is up."
    # Published ports are on our loopback, even where testcontainers takes this machine for a container itself and
    # would look elsewhere. What a lost run leaves behind ends with the engine, so nothing has to reap it.
    export TESTCONTAINERS_CONNECTION_MODE=docker_host TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1
    export TESTCONTAINERS_RYUK_DISABLED=true
    shift 2
    "$@" # no exec: the engine needs a first process that outlives the command
    exit
fi

if docker version >/dev/null 2>&1; then
    exec "$@"
fi
if [ "$(id -u)" != 0 ]; then
    echo "No Docker engine answers, and only root can start one." >&2
    exit 69
fi
packages=()
command -v dockerd >/dev/null || packages+=(docker.io)
command -v iptables >/dev/null || packages+=(iptables)
command -v ip >/dev/null || packages+=(iproute2)
if [ ${#packages[@]} -gt 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
# A package of its own since Debian 13.
command -v docker >/dev/null || apt-get install -y -qq --no-install-recommends docker-cli >/dev/null

folder=$(mktemp -d /tmp/postroad-engine-XXXXXX)
trap 'rm -rf "$folder"' EXIT
unshare --net --mount --pid --fork --kill-child --mount-proc "$0" --inside "$folder" "$@"
