"""The ways to say where Redis is: one server, the sentinels that watch over one, or some nodes of a cluster.

``redis://[user:password@]host:6379[/db]``, and as redis-py takes them ``rediss://``, ``unix://``;
``redis+sentinel://[user:password@]host:26379,host2:26379/<master name>[/db]``;
``redis+cluster://[user:password@]host:6379,host2:6379``. ``valkey`` may stand for ``redis``.
"""

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit


class Topology(Enum):
    """What stands behind a URL."""

    SERVER = ""
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A URL, taken apart as far as redis-py does not do it.

    ``server`` is a URL of one server as redis-py takes them, with the user, the password, the database and the options
    of all. ``nodes`` are the sentinels, or nodes of the cluster, and ``master`` is the name by which the sentinels know
    the server. ``sentinel_login`` holds the ``username`` and the ``password`` for the sentinels themselves.
    """

    topology: Topology
    server: str
    nodes: tuple[tuple[str, int], ...] = ()
    master: str = ""
    sentinel_login: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "RedisUrl":
        """Raises ``ValueError`` with what is wrong and what is right, and nothing of ``text`` that may be secret."""
        scheme, _, rest = text.partition("://")
        match = re.fullmatch(r"(redis|valkey)(s?)(?:\+(sentinel|cluster))?|unix", scheme)
        if match is None or "://" not in text:
            raise ValueError("begins with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://")
        topology = Topology(match[3] or "")
        if topology is Topology.SERVER:
            return cls(topology, text if match[1] is None else f"redis{match[2]}://{rest}")
        authority, path, query = re.fullmatch(r"([^/?]*)(/[^?]*)?\??(.*)", rest, flags=re.DOTALL).groups()  # type: ignore[union-attr]
        login, at, hosts = authority.rpartition("@")
        nodes = tuple(_node(host, topology) for host in hosts.split(","))
        parts = [unquote(part) for part in (path or "").strip("/").split("/")]
        master = parts.pop(0) if topology is Topology.SENTINEL else ""
        if topology is Topology.SENTINEL and not master:
            raise ValueError("ends with the name by which the sentinels know the master: redis+sentinel://host/name")
        if len(parts) > 1 or not re.fullmatch(r"\d*", database := parts[0] if parts else ""):
            raise ValueError("ends with the number of a database, or without one")
        if topology is Topology.CLUSTER and database not in ("", "0"):
            raise ValueError("a cluster has one database: leave its number out")
        options = dict(parse_qsl(query))
        asking = tuple(
            (name, options.pop(f"sentinel_{name}"))
            for name in ("username", "password")
            if f"sentinel_{name}" in options
        )
        if asking and topology is Topology.CLUSTER:
            raise ValueError("a cluster has no sentinels: leave sentinel_username and sentinel_password out")
        server = f"redis{match[2]}://{login}{at}master/{database}{'?' if options else ''}{urlencode(options)}"
        return cls(topology, server, nodes, master, asking)


def _node(text: str, topology: Topology) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or (port is None and not re.fullmatch(r"[^:]+|\[.*\]", text)):
        raise ValueError("names its nodes as host:port,host2:port; in a password %40 stands for @, %2F for /")
    return host, port or (26379 if topology is Topology.SENTINEL else 6379)
