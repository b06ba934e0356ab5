"""PgBouncer between postroad and Postgres."""

from pathlib import Path

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.client import Client
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import wait_until
from tests.faults.postgres_topologies import ask, pgbouncer


def test_a_pooler_by_transaction_may_stand_before_all_but_the_relay(
    own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    with pgbouncer(own_postgres, "transaction") as url:
        upgrade(url)
        settings = Settings(database_url=url, direct_url=own_postgres.url, redis_url=own_valkey.url)
        with deployed(settings, tmp_path) as deployment:
            # More processes, with more connections each, than the pooler has.
            deployment.start("road.survey", "road.pave", "road.mark", "road.finish")
            client = Client(deployment.url)
            with client.running():
                deployment.submit("road", *({"length": number} for number in range(300)))
                wait_until(lambda: deployment.finished() >= 300, "tasks are completed", seconds=90)
            tasks = 300 + len(client.accepted)
            assert deployment.wait_until_finished(tasks) == {"completed": tasks}
            assert not client.refusals
            effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
            assert sorted(effects) == [("finish", tasks, tasks), ("survey", tasks, tasks)]
            relays = ask(own_postgres, "select from pg_stat_activity where application_name = 'postroad relay'")
            assert len(relays) == 1
            deployment.audit()


def test_a_relay_behind_a_pooler_by_transaction_says_that_it_cannot_work(
    own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> None:
    upgrade(own_postgres.url)
    with (
        pgbouncer(own_postgres, "transaction") as url,
        deployed(Settings(database_url=url, redis_url=own_valkey.url), tmp_path) as deployment,
    ):
        quiet = deployment.process("quiet", "relay")
        assert quiet.wait() == 78
        assert "set direct_url (DIRECT_URL)" in quiet.log

        # Whose connection is whose depends on the traffic.
        deployment.serve()
        deployment.process("worker", "stage", "--all").await_line("recorded pipeline road")
        client = Client(deployment.url)
        with client.running():
            wait_until(lambda: client.accepted, "there is traffic")
            busy = deployment.process("busy", "relay")
            assert busy.wait() == 78
        assert "set direct_url (DIRECT_URL)" in busy.log
        locks = ask(own_postgres, "select from pg_locks where locktype = 'advisory'")
        assert not locks, "one would keep every other relay from its work"


def test_a_relay_works_behind_a_pooler_by_session(own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path) -> None:
    upgrade(own_postgres.url)
    with (
        pgbouncer(own_postgres, "session", size=50) as url,
        deployed(Settings(database_url=url, redis_url=own_valkey.url, pool=3), tmp_path) as deployment,
    ):
        deployment.start()
        deployment.submit("road", *({"length": number} for number in range(20)))
        assert deployment.wait_until_finished(20) == {"completed": 20}
        deployment.audit()
