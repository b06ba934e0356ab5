"""Redis as it is run where it must not be away: a master with replicas and sentinels, and a cluster."""

import contextlib
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from postroad.core.servers import Valkey
from tests.acceptance.deployment import Deployment, wait_until

MASTER_NAME = "road"
PASSWORD = "pass/word"

BATCH = 80

SECONDS_TO_HEAL = 60.0
"""Far more than it takes."""
"""With a character that URLs must encode."""

_FIRST_PORT = 12_000 + os.getpid() % 50 * 160
_PORTS = itertools.cycle(range(_FIRST_PORT, _FIRST_PORT + 160))

DOWN_AFTER = 1500
"""Milliseconds of silence after which the others take a server for dead."""


class Node(Valkey):
    """A Valkey on a port that is known before its start, with the password of all."""

    def __init__(self, folder: Path, **options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "password").write_text(PASSWORD)
        common = {"masterauth": PASSWORD, "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
        super().__init__(folder, port=free_port(), appendonly=False, options=common | options)

    def client(self) -> "redis.Redis":
        """A client of this very server, to look at it and to do it harm."""
        return redis.Redis(port=self.port, password=PASSWORD, decode_responses=True, socket_timeout=5)

    def ask(self, *command: Any) -> Any:
        """The answer to one command."""
        with self.client() as client:
            return client.execute_command(*command)

    def peek(self, key: str) -> Any:
        """What a replica in a cluster holds under a key, which it would leave to its master to say."""
        with self.client() as client, client.client() as one_connection:
            one_connection.readonly()
            return one_connection.get(key)

    @property
    def replication(self) -> dict[str, Any]:
        """``INFO replication``; empty if it does not answer."""
        with contextlib.suppress(RedisError):
            return dict(self.ask("INFO", "replication"))
        return {}

    @property
    def is_replica(self) -> bool:
        """Whether it follows a master, and has all that this one has."""
        state = self.replication
        return state.get("role") == "slave" and state["master_link_status"] == "up"

    def pause(self) -> None:
        """Stop it in its tracks: its port stays open, and nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def foreign_clients(self) -> list[str]:
        """The connections to it that are neither ours nor a server's: each with its last command."""
        with self.client() as client:
            mine = client.client_id()
            listed = client.client_list(_type="normal")
        return [
            f"{one['addr']} {one['cmd']}"
            for one in listed
            if int(one["id"]) != mine and not one["name"].startswith("sentinel-")
        ]


class Watchman(Node):
    """A sentinel."""

    def __init__(self, folder: Path, master: Node) -> None:
        super().__init__(folder)
        self._master = master

    def _prepare(self) -> None:
        # It writes down what it learns, so a file it must be.
        path = self.folder / "sentinel.conf"
        if not path.exists():
            path.write_text(
                f"bind 127.0.0.1\nport {self.port}\nrequirepass {PASSWORD}\nsentinel sentinel-pass {PASSWORD}\n"
                f"sentinel monitor {MASTER_NAME} 127.0.0.1 {self._master.port} 2\n"
                f"sentinel auth-pass {MASTER_NAME} {PASSWORD}\n"
                f"sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER}\n"
                f"sentinel failover-timeout {MASTER_NAME} 10000\n"
            )

    def _command(self) -> list[str]:
        return [str(self._program()), "sentinel.conf", "--sentinel"]

    def _input(self) -> bytes:
        return b""


class Watched:
    """One master, two replicas, three sentinels."""

    def __init__(self, folder: Path) -> None:
        master = Node(folder / "node-0")
        following = {"replicaof": f"127.0.0.1 {master.port}"}
        self.nodes = [master, *(Node(folder / f"node-{number}", **following) for number in (1, 2))]
        self.sentinels = [Watchman(folder / f"sentinel-{number}", master) for number in range(3)]

    @property
    def url(self) -> str:
        """Where the sentinels are, as ``REDIS_URL`` says it."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        password = PASSWORD.replace("/", "%2F")
        return f"redis+sentinel://:{password}@{hosts}/{MASTER_NAME}/0?sentinel_password={password}"

    @property
    def master(self) -> Node:
        """The master as the sentinels see it."""
        _, port = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME)
        return next(node for node in self.nodes if node.port == int(port))

    @property
    def replicas(self) -> list[Node]:
        """The others."""
        master = self.master
        return [node for node in self.nodes if node is not master]

    def await_failover(self, old: Node) -> Node:
        """The new master, once the sentinels agree on it and it takes writes."""

        def is_over() -> bool:
            master = self.master
            return master is not old and master.replication.get("role") == "master"

        wait_until(is_over, "the sentinels have made another the master")
        return self.master

    def _are_acquainted(self) -> bool:
        known = [one.ask("SENTINEL MASTER", MASTER_NAME) for one in self.sentinels]
        return all(int(one["num-slaves"]) == 2 and int(one["num-other-sentinels"]) == 2 for one in known)

    @contextlib.contextmanager
    def running(self) -> Iterator["Watched"]:
        """Start all, wait until they know each other, stop all."""
        with contextlib.ExitStack() as stack:
            for one in (*self.nodes, *self.sentinels):
                stack.enter_context(one)
            wait_until(lambda: all(one.is_replica for one in self.nodes[1:]), "the replicas are in step")
            wait_until(self._are_acquainted, "the sentinels know the replicas and each other")
            yield self


class Cluster:
    """Three masters, each with a third of the slots, and a replica of each."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [
            Node(
                folder / f"node-{number}",
                **{
                    "cluster-enabled": "yes",
                    "cluster-port": str(free_port()),
                    "cluster-node-timeout": str(DOWN_AFTER),
                    "cluster-require-full-coverage": "no",
                },
            )
            for number in range(6)
        ]

    @property
    def url(self) -> str:
        """Where two of the nodes are, as ``REDIS_URL`` says it: the others are found."""
        password = PASSWORD.replace("/", "%2F")
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.nodes[1:5:3])
        return f"redis+cluster://:{password}@{hosts}"

    def serving(self, key: str) -> tuple[Node, list[Node]]:
        """The master of a key, as the nodes that run see it, and its replicas."""
        slot = key_slot(key.encode())
        witness = next(node for node in reversed(self.nodes) if node.running and node.replication)
        for first, last, *members in witness.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                master, *replicas = [
                    next(node for node in self.nodes if node.port == int(member[1])) for member in members
                ]
                return master, replicas
        raise AssertionError(f"nobody serves {key}")

    def await_failover(self, old: Node, key: str) -> Node:
        """The new master of a key, once it takes writes."""

        def is_over() -> bool:
            master, _ = self.serving(key)
            return master is not old and master.replication.get("role") == "master"

        wait_until(is_over, "the cluster has made another the master")
        return self.serving(key)[0]

    def move(self, key: str, target: Node) -> None:
        """Give the slot of a key to another master, with all that is in it."""
        slot, (old, _) = key_slot(key.encode()), self.serving(key)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", old.ask("CLUSTER", "MYID"))
        old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ask("CLUSTER", "MYID"))
        while keys := old.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            old.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "AUTH", PASSWORD, "KEYS", *keys)
        for node in (target, old):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.ask("CLUSTER", "MYID"))
        wait_until(lambda: self.serving(key)[0] is target, "the nodes agree on who serves the slot")

    def _join(self) -> None:
        masters, replicas = self.nodes[:3], self.nodes[3:]
        bounds = [16384 * number // 3 for number in range(4)]
        for number, master in enumerate(masters):
            master.ask("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, int(self.nodes[0]._options["cluster-port"]))
        wait_until(
            lambda: all(node.ask("CLUSTER INFO")["cluster_known_nodes"] == "6" for node in self.nodes),
            "the nodes know each other",
        )
        for master, replica in zip(masters, replicas, strict=True):
            replica.ask("CLUSTER", "REPLICATE", master.ask("CLUSTER", "MYID"))
        wait_until(lambda: all(replica.is_replica for replica in replicas), "the replicas are in step")
        wait_until(
            lambda: all(
                node.ask("CLUSTER INFO")["cluster_state"] == "ok"
                and all(len(members) == 2 for _, _, *members in node.ask("CLUSTER", "SLOTS"))
                for node in self.nodes
            ),
            "the cluster is up, and its nodes agree",
        )

    @contextlib.contextmanager
    def running(self) -> Iterator["Cluster"]:
        """Start all, make them a cluster, stop all."""
        with contextlib.ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            self._join()
            yield self


def check_effects(deployment: Deployment, tasks: int) -> None:
    """All ``tasks`` of the road have left their effects once, the audit finds nothing, and nobody was surprised."""
    effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    assert sorted(effects) == [("finish", tasks, tasks), ("survey", tasks, tasks)]
    deployment.audit()
    assert all(process.is_running for process in deployment.processes.values())
    assert not [name for name, process in deployment.processes.items() if "Traceback" in process.whole_log]


def tell(what: str, began: float) -> None:
    """Say how many ``what`` have passed since ``began``, a time of ``time.monotonic``; see it by ``pytest -rP``."""
    sys.stderr.write(f"{what}: {time.monotonic() - began:.1f}\n")


@contextlib.contextmanager
def lagging(replicas: list[Node]) -> Iterator[None]:
    """Let the replicas lose their master, without anybody else minding, so that they lack what it is told from now on.

    They go on looking for one when the block ends.
    """
    for replica in replicas:
        replica.ask("CONFIG", "SET", "masterauth", "wrong")
        replica.ask("CLIENT", "KILL", "TYPE", "master")
    wait_until(lambda: not any(replica.is_replica for replica in replicas), "the replicas have lost the master")
    yield
    for replica in replicas:
        replica.ask("CONFIG", "SET", "masterauth", PASSWORD)


def free_port() -> int:
    """A port that nobody listens on, nor is likely to before its server has started.

    Each process has some to itself, below those of other embedded servers and of outgoing connections.
    """
    while True:
        port = next(_PORTS)
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return port


def submit(deployment: Deployment, count: int = BATCH) -> int:
    """Submit tasks that take a while; how many."""
    return len(deployment.submit("road", *({"length": number, "seconds": 0.2} for number in range(count))))


def await_progress(deployment: Deployment, count: int = 1) -> None:
    """Wait until more tasks are terminal than now."""
    wanted = deployment.finished() + count
    wait_until(lambda: deployment.finished() >= wanted, f"{count} more tasks are terminal")
