"""A dump is restored, into another cluster or beside the lost database, and Redis remembers more than it does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import Deployment, wait_until
from tests.faults.postgres_topologies import another_cluster, ask, dump, restore


@pytest.fixture
def deployment(own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment on the server that will be lost; nothing runs yet."""
    upgrade(own_postgres.url)
    with deployed(Settings(database_url=own_postgres.url, redis_url=own_valkey.url), tmp_path) as deployment:
        yield deployment


def run_and_dump(deployment: Deployment, postgres: Postgres, file: Path) -> int:
    """Tasks in all states in ``file``, and a deployment that went on, and was killed; how many the dump knows."""
    deployment.start()
    deployment.submit("road", *({"length": number, "seconds": 0.2} for number in range(100)))
    wait_until(lambda: deployment.finished() > 0, "some tasks are completed")
    dump(postgres, file)
    known = 100
    for _ in range(3):
        # Enough that every number that Postgres counts with is left behind.
        deployment.submit("road", *({"length": number} for number in range(30)))
    finished = deployment.finished()
    wait_until(lambda: deployment.finished() > finished + 20, "tasks are completed after the dump")
    for process in deployment.processes.values():
        process.kill()
    return known


def completes(deployment: Deployment, known: int) -> int:
    """All that the dump knows of is completed once, and the deployment works as ever; how many tasks there are."""
    deployment.start()
    assert deployment.wait_until_finished(known) == {"completed": known}
    for tasks in (known + 20, known + 40):
        deployment.submit("road", *({"length": number} for number in range(20)))
        assert deployment.wait_until_finished(tasks) == {"completed": tasks}
    effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    assert sorted(effects) == [("finish", tasks, tasks), ("survey", tasks, tasks)]
    with deployment.redis() as client:
        streams = [str(key) for key in client.scan_iter(match=f"{deployment.settings.prefix}:*:stream")]
        wait_until(lambda: not any(client.xlen(stream) for stream in streams), "no entry is left")
    deployment.audit()
    return tasks


def test_a_dump_is_gone_on_with_in_another_cluster(
    deployment: Deployment, own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    # The other cluster has not counted as far.
    ask(own_postgres, "do 'begin for i in 1..20000 loop perform pg_current_xact_id(); commit; end loop; end'")
    known = run_and_dump(deployment, own_postgres, tmp_path / "dump")
    left = transactions(own_postgres)
    own_postgres.kill()

    with another_cluster(own_postgres) as cluster:
        settings = Settings(database_url=restore(cluster, tmp_path / "dump"), redis_url=own_valkey.url)
        with deployed(settings, tmp_path) as restored:
            tasks = completes(restored, known)
            assert "the last tick was not made by this server" in restored.processes["relay"].log
            assert transactions(cluster) < left - 10_000
            # What came with the dump is not published as new once the other cluster counts as far.
            ask(cluster, "do 'begin for i in 1..30000 loop perform pg_current_xact_id(); commit; end loop; end'")
            with restored.redis() as client:
                stream = f"{settings.prefix}:{{0}}:road.survey:stream"
                before = client.xinfo_stream(stream)["entries-added"]
                restored.submit("road", {"length": 1})
                assert restored.wait_until_finished(tasks + 1) == {"completed": tasks + 1}
                assert client.xinfo_stream(stream)["entries-added"] == before + 1
            restored.audit()


def transactions(postgres: Postgres) -> int:
    """How far ``postgres`` has counted its transactions."""
    ((number,),) = ask(postgres, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    return int(number)


def test_a_dump_is_gone_on_with_in_another_database_of_the_same_cluster(
    deployment: Deployment, own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    known = run_and_dump(deployment, own_postgres, tmp_path / "dump")

    ask(own_postgres, "create database restored")
    url = restore(own_postgres, tmp_path / "dump", "restored")
    with deployed(Settings(database_url=url, redis_url=own_valkey.url), tmp_path) as restored:
        completes(restored, known)
