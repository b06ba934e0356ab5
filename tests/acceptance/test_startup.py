"""Processes that are started before their servers wait for them, and say so."""

import json

from postroad.core.servers import Postgres, Valkey
from tests.acceptance.deployment import Deployment, address


def test_processes_wait_for_servers_that_are_away_at_their_start_and_then_work(
    fragile: Deployment, own_postgres: Postgres, own_valkey: Valkey
) -> None:
    own_postgres.stop()
    own_valkey.stop()

    intake = fragile.process("intake", "serve", port=0)
    relay = fragile.process("relay", "relay")
    worker = fragile.process("worker", "stage", "--all")
    for process in (intake, relay, worker):
        process.await_line(f"waiting for Postgres at postgresql://postgres:***@{address(own_postgres.url)}")
    own_postgres.start()
    for process in (relay, worker):
        process.await_line(f"waiting for Redis at redis://:***@{address(own_valkey.url)}")

    # Tasks are accepted without Redis.
    fragile.await_intake(intake)
    worker.await_line("recorded pipeline road")
    fragile.submit("road", *({"length": number} for number in range(20)))
    own_valkey.start()

    assert fragile.wait_until_finished(20) == {"completed": 20}
    for process in (intake, relay, worker):
        assert process.is_running
        assert own_postgres.url not in process.log, "a password in the log"
        assert own_valkey.url not in process.log, "a password in the log"
        assert all(json.loads(line)["message"] for line in process.log.splitlines()), "a log is lines of JSON"
    fragile.audit()
