"""The doctor, of deployments on more servers than two."""

import asyncio
from dataclasses import replace
from pathlib import Path

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.doctor.checks import CHECKS
from postroad.doctor.examination import Result, examine
from postroad.doctor.finding import Level
from postroad.doctor.patient import Patient
from postroad.migrations import upgrade
from tests.faults.postgres_topologies import pgbouncer, replica_of
from tests.faults.redis_topologies import Cluster


def looked(settings: Settings) -> dict[str, Result]:
    """What all checks come to, by their names."""

    async def look() -> dict[str, Result]:
        patient = Patient(settings)
        try:
            return {result.check.name: result for result in await examine(patient, CHECKS)}
        finally:
            await patient.aclose()

    return asyncio.run(look())


def test_each_master_of_a_cluster_is_looked_at_and_one_that_is_away_leaves_the_others(
    settings: Settings, tmp_path: Path
) -> None:
    with Cluster(tmp_path / "redis").running() as cluster:
        spread = replace(settings, redis_url=cluster.url, shards=12)
        found = looked(spread)
        assert found["redis-answers"].findings[0].saw.endswith("answers, 3 masters")
        assert found["memory"].findings[0].saw.count("the master of shard") == 3
        assert found["shards"].level is Level.OK
        too_few = looked(replace(spread, shards=2))
        assert "2 shards for 3 masters" in too_few["shards"].findings[0].saw
        for node in cluster.nodes[:3]:
            one = replace(
                spread, redis_url=f"redis://:{cluster.url.split('@')[0].split('://:')[1]}@127.0.0.1:{node.port}"
            )
            assert "redis+cluster://" in looked(one)["shards"].findings[0].do
        for node in (cluster.nodes[0], cluster.nodes[3]):
            node.pause()
        partly = looked(spread)
        for node in (cluster.nodes[0], cluster.nodes[3]):
            node.resume()

    assert partly["redis-answers"].level is Level.ERROR
    assert "do not answer" in partly["redis-answers"].findings[0].saw
    assert partly["redis-version"].level is Level.OK
    assert partly["memory"].findings[0].saw.count("the master of shard") == 2
    assert partly["unknown-keys"].level is Level.OK


def test_a_replica_of_postgres_is_told_and_nothing_else_breaks(own_postgres: Postgres, own_valkey: Valkey) -> None:
    upgrade(own_postgres.url)
    with replica_of(own_postgres) as replica:
        found = looked(Settings(database_url=replica.url, redis_url=own_valkey.url))

    assert found["writable"].level is Level.ERROR
    assert "is a replica" in found["writable"].findings[0].saw
    assert [name for name, result in found.items() if result.level is Level.UNKNOWN] == []


def test_a_pooler_by_transaction_is_no_place_for_a_relay(own_postgres: Postgres, own_valkey: Valkey) -> None:
    upgrade(own_postgres.url)
    with pgbouncer(own_postgres, "transaction") as url:
        behind = Settings(database_url=url, redis_url=own_valkey.url)
        found = looked(behind)
        beside = looked(replace(behind, direct_url=own_postgres.url))

    assert found["pooler"].level is Level.ERROR
    assert "DIRECT_URL" in found["pooler"].findings[0].do
    assert beside["pooler"].level is Level.OK
    assert [name for name, result in found.items() if result.level is Level.UNKNOWN] == []
