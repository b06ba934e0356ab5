"""The disk under Postgres is full for a while."""

from pathlib import Path

import pytest

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.client import Client
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import wait_until
from tests.faults.postgres_topologies import fill, on_a_small_disk


@pytest.mark.parametrize("is_log_elsewhere", [True, False], ids=["statements_fail", "the_server_goes_down"])
def test_what_a_full_disk_stops_goes_on_when_there_is_room(
    is_log_elsewhere: bool, own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    with on_a_small_disk(own_postgres, megabytes=192, is_log_elsewhere=is_log_elsewhere) as postgres:
        upgrade(postgres.url)
        settings = Settings(database_url=postgres.url, redis_url=own_valkey.url)
        with deployed(settings, tmp_path) as deployment:
            deployment.start()
            client = Client(deployment.url, filling=20_000)
            with client.running():
                deployment.submit("road", *({"length": number, "seconds": 0.2} for number in range(100)))
                wait_until(lambda: deployment.finished() > 0, "tasks are completed")
                ballast = fill(postgres)
                wait_until(lambda: len(client.refusals) > 2, "the intake refuses")
                if is_log_elsewhere:
                    deployment.processes["worker"].await_line("No space left on device")
                ballast.unlink()
                postgres.start()
                accepted = len(client.accepted)
                wait_until(lambda: len(client.accepted) > accepted, "tasks are accepted again")
            known = deployment.query("select key, task_id::text from postroad.intake_key where key like 'client-%%'")
            assert client.accepted.items() <= dict(known).items()
            tasks = 100 + len(known)
            assert deployment.wait_until_finished(tasks) == {"completed": tasks}
            assert {answer.status_code for answer in client.refusals} == {503}
            assert all(int(answer.headers["Retry-After"]) > 0 for answer in client.refusals)
            effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
            assert sorted(effects) == [("finish", tasks, tasks), ("survey", tasks, tasks)]
            assert all(process.is_running for process in deployment.processes.values())
            deployment.audit()
