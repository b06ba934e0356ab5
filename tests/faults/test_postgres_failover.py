"""A replica takes the place of the primary, with everything that was committed or without the last of it."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.client import Client
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import Deployment, wait_until
from tests.faults.postgres_topologies import cut_off, is_level, make_synchronous, promote, promoted, replica_of


@pytest.fixture
def replica(own_postgres: Postgres) -> Iterator[Postgres]:
    """A replica of ``own_postgres``, with our tables."""
    upgrade(own_postgres.url)
    with replica_of(own_postgres) as replica:
        yield replica


@pytest.fixture
def deployment(replica: Postgres, own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment on the primary; nothing runs yet."""
    settings = Settings(database_url=own_postgres.url, redis_url=own_valkey.url)
    with deployed(settings, tmp_path) as deployment:
        yield deployment


@contextlib.contextmanager
def at_its_own_address(replica: Postgres, primary: Postgres) -> Iterator[None]:
    """The replica is promoted where it is; whoever knows both addresses looks for the one that takes writes."""
    promote(replica)
    yield


@contextlib.contextmanager
def at_the_old_address(replica: Postgres, primary: Postgres) -> Iterator[None]:
    """The replica gets the address of the primary, and is promoted."""
    with promoted(replica, port=primary.port):
        yield


@pytest.mark.parametrize("failover", [at_its_own_address, at_the_old_address])
def test_a_failover_under_traffic_loses_nothing(
    failover: Callable[[Postgres, Postgres], AbstractContextManager[None]],
    deployment: Deployment,
    own_postgres: Postgres,
    replica: Postgres,
) -> None:
    """With synchronous replication: what was answered is on both."""
    make_synchronous(own_postgres)
    if failover is at_its_own_address:
        either = f"@127.0.0.1:{replica.port},127.0.0.1:{own_postgres.port}/"
        url = deployment.settings.database_url.replace(f"@127.0.0.1:{own_postgres.port}/", either)
        deployment.settings = dataclasses.replace(
            deployment.settings, database_url=f"{url}?target_session_attrs=read-write"
        )
    deployment.start()
    client = Client(deployment.url)
    with client.running():
        deployment.submit("road", *({"length": number, "seconds": 0.2} for number in range(100)))
        wait_until(lambda: deployment.finished() > 20, "some tasks are completed")
        own_postgres.kill()
        with failover(replica, own_postgres):
            before, accepted = deployment.finished(), len(client.accepted)
            wait_until(lambda: deployment.finished() > before + 10, "tasks are completed after the failover")
            wait_until(lambda: len(client.accepted) > accepted + 10, "tasks are accepted after the failover")
            client.stop()
            # The last may have been accepted without an answer that said so.
            known = deployment.query("select key, task_id::text from postroad.intake_key where key like 'client-%%'")
            assert client.accepted.items() <= dict(known).items()
            tasks = 100 + len(known)
            assert deployment.wait_until_finished(tasks) == {"completed": tasks}
            effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
            assert sorted(effects) == [("finish", tasks, tasks), ("survey", tasks, tasks)]
            assert {answer.status_code for answer in client.refusals} <= {503}
            assert all(process.is_running for process in deployment.processes.values())
            deployment.audit()


def test_what_a_replica_never_heard_of_is_dropped_and_all_that_it_knows_completes(
    deployment: Deployment, own_postgres: Postgres, replica: Postgres
) -> None:
    deployment.start()
    deployment.submit("road", *({"length": number, "seconds": 0.2} for number in range(100)))
    wait_until(lambda: deployment.finished() > 0, "some tasks are completed")

    # Lost: outcomes whose entries are acknowledged, ticks that the marker names, tasks whose entries wait.
    cut_off(replica)
    lost = deployment.finished() + 20
    wait_until(lambda: deployment.finished() >= lost, "tasks are completed of which the replica hears nothing")
    worker, relay = deployment.processes["worker"], deployment.processes["relay"]
    worker.pause()
    unknown = deployment.submit("road", *({"length": number} for number in range(50)))
    with deployment.redis() as client:
        stream = f"{deployment.settings.prefix}:{{0}}:road.survey:stream"
        wait_until(lambda: client.xlen(stream) >= len(unknown), "the entries of unknown tasks wait")
    own_postgres.kill()

    with promoted(replica, port=own_postgres.port):
        worker.resume()
        relay.await_line("its marker is of no tick of this server")
        assert deployment.wait_until_finished(100) == {"completed": 100}
        wait_until(lambda: deployment.get(f"/v1/tasks/{unknown[0]}").status_code == 404, "the lost task is unknown")
        effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
        assert sorted(effects) == [("finish", 100, 100), ("survey", 100, 100)]
        worker.await_line("whose tasks Postgres does not know")
        with deployment.redis() as client:
            wait_until(lambda: not client.xlen(stream), "no entry is left")
        assert all(process.is_running for process in deployment.processes.values())
        deployment.submit("road", {"length": 1})
        assert deployment.wait_until_finished(101) == {"completed": 101}
        deployment.audit()


def test_outcomes_that_were_acknowledged_and_then_lost_are_brought_about_again(
    deployment: Deployment, own_postgres: Postgres, replica: Postgres, tmp_path: Path
) -> None:
    """No tick is lost, so Redis looks as it should; the entries are gone, and the sweep misses them."""
    deployment.start("hazard-in-transaction.cross")
    gate, folder = tmp_path / "gate", tmp_path / "begun"
    folder.mkdir()
    deployment.submit("hazard-in-transaction", *[{"gate": str(gate), "folder": str(folder)}] * 10)
    wait_until(lambda: len(list(folder.iterdir())) == 10, "the attempts have begun")
    relay = deployment.processes["relay"]
    relay.pause()
    wait_until(lambda: is_level(own_postgres, replica), "the replica knows all so far")

    cut_off(replica)
    gate.touch()
    assert deployment.wait_until_finished(10) == {"completed": 10}
    with deployment.redis() as client:
        stream = f"{deployment.settings.prefix}:{{0}}:hazard-in-transaction.cross:stream"
        wait_until(lambda: not client.xlen(stream), "the entries are acknowledged")
    own_postgres.kill()

    with promoted(replica, port=own_postgres.port):
        assert deployment.statuses() == {"pending": 10}
        relay.resume()
        assert deployment.wait_until_finished(10) == {"completed": 10}
        assert "were lost; asked for again" in relay.log
        effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
        assert effects == [("cross", 10, 10)]
        deployment.audit()
