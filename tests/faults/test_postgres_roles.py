"""What is set on the role, and what Postgres refuses now and then."""

import threading
import time
from pathlib import Path

import psycopg
import pytest

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import wait_until
from tests.faults.postgres_topologies import ask, user_of

IDLE = 3
"""Seconds after which Postgres ends a session that asks nothing."""

SLOW = 1.5
"""Seconds for which a handler leaves its transaction alone."""


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_timeouts_and_isolation_of_the_role_break_nothing(
    isolation: str, own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    url = user_of(own_postgres, "road")
    upgrade(url)
    relay = "select pid from pg_stat_activity where application_name = 'postroad relay'"
    for name, value in {
        "statement_timeout": "2s",
        "lock_timeout": "500ms",
        "idle_in_transaction_session_timeout": "1s",
        "idle_session_timeout": f"{IDLE}s",
        "default_transaction_isolation": isolation,
    }.items():
        ask(own_postgres, f"alter role road set {name} = '{value}'")
    with deployed(Settings(database_url=url, redis_url=own_valkey.url), tmp_path) as deployment:
        deployment.start()
        leader = ask(own_postgres, relay)
        for tasks in (100, 200):
            deployment.submit("road", *({"length": number} for number in range(100)))
            assert deployment.wait_until_finished(tasks) == {"completed": tasks}
            # While nobody comes, the intake loses all connections but those by which it looks after keys and pressure,
            # and hears of it when it needs one.
            time.sleep(IDLE + 2)
            wait_until(lambda: deployment.get("/readyz").status_code == 200, "the intake is ready again")
        effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
        assert sorted(effects) == [("finish", 200, 200), ("survey", 200, 200)]
        assert deployment.query("select sum(retry_count)::int from postroad.task") == [(0,)]

        # Its transaction is ended by Postgres, again and again: that is told where a person looks.
        deployment.submit("hazard-in-transaction", {"seconds": SLOW})
        assert deployment.wait_until_finished(201, seconds=90) == {"completed": 200, "failed": 1}
        ((reason,),) = deployment.query("select reason from postroad.dead_letter")
        assert "idle-in-transaction timeout" in reason
        assert ask(own_postgres, relay) == leader, "the relay needs its session for as long as it works"
        deployment.audit()


def test_what_postgres_refuses_now_and_then_is_tried_again(
    own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    """Deadlocks and conflicts count as attempts of a handler that brought its transaction, and of nobody else."""
    upgrade(own_postgres.url)
    ask(
        own_postgres,
        """
        create sequence outcomes;
        create function refuse() returns trigger language plpgsql as $$
        declare
            outcome bigint := nextval('outcomes');
        begin
            if outcome <= 60 and outcome % 2 = 0 then
                raise exception 'refused' using errcode = case outcome % 4 when 0 then '40001' else '40P01' end;
            end if;
            return new;
        end $$;
        create trigger refuse before insert on postroad.stage_run for each row execute function refuse();
        """,
    )
    with deployed(Settings(database_url=own_postgres.url, redis_url=own_valkey.url), tmp_path) as deployment:
        deployment.start()
        deployment.submit("road", *({"length": number} for number in range(100)))
        assert deployment.wait_until_finished(100) == {"completed": 100}
        effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
        assert sorted(effects) == [("finish", 100, 100), ("survey", 100, 100)]
        failed = deployment.query("select distinct stage from postroad.outbox where type = 'StageFailed'")
        assert {stage for (stage,) in failed} <= {"survey", "finish"}
        assert failed, "some were refused"
        deployment.audit()


def test_a_deadlock_with_a_handlers_transaction_costs_an_attempt(
    own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    upgrade(own_postgres.url)
    with deployed(Settings(database_url=own_postgres.url, redis_url=own_valkey.url), tmp_path) as deployment:
        deployment.start("hazard-in-transaction.cross")
        gate, folder = tmp_path / "gate", tmp_path / "begun"
        folder.mkdir()
        deployment.submit("hazard-in-transaction", {"gate": str(gate), "folder": str(folder)})
        wait_until(lambda: list(folder.iterdir()), "the handler has written")
        with psycopg.connect(own_postgres.url) as other:
            other.execute("set deadlock_timeout = '1min'")  # whoever looks first is the victim
            other.execute("select from postroad.task for update")
            # It waits for the handler's transaction, which will wait for it.
            waiting = threading.Thread(target=other.execute, args=["lock table effect in access exclusive mode"])
            waiting.start()
            wait_until(lambda: ask(own_postgres, "select from pg_locks where not granted"), "one waits")
            gate.touch()
            waiting.join()
        assert deployment.wait_until_finished(1) == {"completed": 1}
        assert deployment.query("select attempts from postroad.stage_run") == [(2,)]
        assert deployment.query("select count(*) from effect") == [(1,)]
        ((reason,),) = deployment.query("select data ->> 'reason' from postroad.outbox where type = 'StageFailed'")
        assert "deadlock detected" in reason
        deployment.audit()
