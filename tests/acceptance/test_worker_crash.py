"""A task that kills whatever process runs it must not take the others with it."""

from tests.acceptance.deployment import Deployment

CRASH_LIMIT = 4


def test_a_task_that_kills_its_workers_is_quarantined_and_the_slow_ones_beside_it_come_through(
    deployment: Deployment,
) -> None:
    deployment.start("hazard.cross", "hazard-in-transaction.cross", crash_limit=CRASH_LIMIT)

    # The killers first: whenever entries are taken over in their order, they are in front.
    (killer,) = deployment.submit("hazard", {"do": "die"})
    (leaver,) = deployment.submit("hazard-in-transaction", {"do": "exit"})
    deployment.submit("hazard", *({"seconds": 0.5} for _ in range(6)))
    deployment.submit("hazard-in-transaction", *({"seconds": 0.5} for _ in range(6)))

    assert deployment.wait_until_finished(14, meanwhile=deployment.revive, seconds=90) == {"completed": 12, "failed": 2}
    letters = deployment.query("select task_id::text, reason from postroad.dead_letter")
    assert dict(letters) == dict.fromkeys((killer, leaver), f"its worker died {CRASH_LIMIT} times while running it")
    # A crash of somebody else is no failed attempt.
    assert deployment.query("select distinct attempts from postroad.stage_run where status = 'done'") == [(1,)]
    assert deployment.query("select count(*), count(distinct task_id) from effect") == [(6, 6)]
    deployment.audit()
