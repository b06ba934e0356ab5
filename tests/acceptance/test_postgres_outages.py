"""Postgres goes away in the middle of a run, in all the ways it can, and comes back."""

import io
import json
import os

from postroad.core.servers import Postgres
from tests.acceptance.client import Client
from tests.acceptance.deployment import Deployment, wait_until


def completed(deployment: Deployment) -> int:
    return deployment.statuses().get("completed", 0)


def test_a_run_survives_every_way_in_which_postgres_can_go_away(fragile: Deployment, own_postgres: Postgres) -> None:
    fragile.start()
    client = Client(fragile.url)
    read_end, write_end = os.pipe()
    lines = io.TextIOWrapper(os.fdopen(write_end, "wb"), line_buffering=True)
    fed = 0

    def feed(count: int) -> None:
        nonlocal fed
        for _ in range(count):
            lines.write(json.dumps({"payload": {"length": fed}, "idempotency_key": f"fed-{fed}"}) + "\n")
            fed += 1

    def goes_on(outage: str) -> None:
        before, accepted = completed(fragile), len(client.accepted)
        wait_until(lambda: completed(fragile) > before + 10, f"tasks are completed after {outage}")
        wait_until(lambda: len(client.accepted) > accepted, f"tasks are accepted after {outage}")

    def is_refused(since: int) -> None:
        wait_until(lambda: len(client.refusals) > since, "the intake says that Postgres is away")

    with fragile.submitter("road", os.fdopen(read_end, "rb"), "--patience", "60") as submitting, client.running():
        feed(60)
        goes_on("the start")

        feed(60)
        fragile.query(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        goes_on("its backends were terminated")

        feed(60)
        refused = len(client.refusals)
        own_postgres.stop()
        is_refused(refused)
        feed(60)
        own_postgres.start()
        goes_on("a restart")

        feed(60)
        refused = len(client.refusals)
        own_postgres.kill()
        is_refused(refused)
        own_postgres.start()
        goes_on("a crash")

        lines.close()
        out, err = submitting.communicate(timeout=60)
    assert submitting.returncode == 0, err
    assert json.loads(out) == {"accepted": fed, "replayed": json.loads(out)["replayed"], "refused": 0}

    assert fragile.wait_until_finished(fed + len(client.accepted)) == {"completed": fed + len(client.accepted)}
    assert {answer.status_code for answer in client.refusals} == {503}
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in client.refusals)
    assert {answer.headers["Content-Type"] for answer in client.refusals} == {"application/problem+json"}
    keys = fragile.query("select key, task_id::text from postroad.intake_key where key like 'client-%%'")
    assert dict(keys) == client.accepted
    effects = fragile.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    total = fed + len(client.accepted)
    assert sorted(effects) == [("finish", total, total), ("survey", total, total)]
    assert all(process.is_running for process in fragile.processes.values())
    fragile.audit()
