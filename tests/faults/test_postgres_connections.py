"""There are no connections to Postgres left: others have them."""

from functools import partial
from pathlib import Path

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.client import Client
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import Process, wait_until
from tests.faults.postgres_topologies import no_connection_left, user_of

REFUSED = "too many connections for role"


def has_said(process: Process, text: str, since: int) -> bool:
    """Whether ``text`` is in its log, after the first ``since`` characters."""
    return text in process.log[since:]


def test_processes_wait_for_connections_at_their_start_and_later(
    own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    url = user_of(own_postgres, "road")
    upgrade(url)
    with deployed(Settings(database_url=url, redis_url=own_valkey.url), tmp_path) as deployment:
        with no_connection_left(own_postgres, "road"):
            intake = deployment.process("intake", "serve", port=0)
            relay = deployment.process("relay", "relay")
            worker = deployment.process("worker", "stage", "--all")
            for process in (intake, relay, worker):
                process.await_line(REFUSED)
                assert "waiting for Postgres at postgresql://road:***@" in process.log
        deployment.await_intake(intake)
        relay.await_line("relaying from")
        worker.await_line("working on")

        client = Client(deployment.url)
        with client.running():
            deployment.submit("road", *({"length": number, "seconds": 0.2} for number in range(100)))
            wait_until(lambda: deployment.finished() > 0, "tasks are completed")
            known = {process: len(process.log) for process in (intake, relay, worker)}
            with no_connection_left(own_postgres, "road"):
                for process in (intake, relay, worker):
                    wait_until(partial(has_said, process, REFUSED, known[process]), f"{process.name} says why")
            accepted, finished = len(client.accepted), deployment.finished()
            wait_until(lambda: len(client.accepted) > accepted, "tasks are accepted again")
            wait_until(lambda: deployment.finished() > finished, "tasks are completed again")

        keys = deployment.query("select key, task_id::text from postroad.intake_key where key like 'client-%%'")
        assert client.accepted.items() <= dict(keys).items()
        tasks = 100 + len(keys)
        assert deployment.wait_until_finished(tasks) == {"completed": tasks}
        assert {answer.status_code for answer in client.refusals} == {503}
        effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
        assert sorted(effects) == [("finish", tasks, tasks), ("survey", tasks, tasks)]
        assert all(process.is_running for process in deployment.processes.values())
        deployment.audit()
