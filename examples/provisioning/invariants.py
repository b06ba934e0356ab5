"""``python -m examples.provisioning.invariants``: has anything been oversold, doubled or lost?

Each invariant is one statement that selects what violates it, so that it can be pasted into psql. Each holds at
every moment, not only at rest: a statement sees whole transactions. Exit code 5 if any is violated.
"""

import sys
from typing import Any

import psycopg
from psycopg.errors import InvalidSchemaName, UndefinedTable
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from . import database

EXIT_FAILURE = 1
EXIT_VIOLATED = 5

INVARIANTS = {
    "what is free and what is allocated are the whole machine": """
        select machine.name, processors, free, allocated, released
          from provisioning.machine
         cross join lateral (select coalesce(sum(allocation.processors), 0) as allocated
                               from provisioning.allocation where allocation.machine = machine.name) as taken
         cross join lateral (select coalesce(sum(launch.processors), 0) as released
                               from provisioning.launch where launch.machine = machine.name) as given_back
         where free + allocated - released <> processors
            or free not between 0 and processors
    """,
    "at no moment was a machine oversold": """
        with history as (
            select machine, moment, processors as change from provisioning.allocation
            union all
            select machine, moment, -processors from provisioning.launch
        ), course as (
            select machine, moment, sum(change) over (partition by machine order by moment) as in_use
              from history
        )
        select course.machine, moment, in_use
          from course join provisioning.machine on machine.name = course.machine
         where in_use not between 0 and machine.processors
    """,
    "no task was allocated twice": """
        select task_id, count(*) from provisioning.allocation group by task_id having count(*) > 1
    """,
    "no task was launched twice": """
        select task_id, count(*) from provisioning.launch group by task_id having count(*) > 1
    """,
    "every launch has its allocation": """
        select launch.* from provisioning.launch
         where not exists (select from provisioning.allocation
                            where (allocation.task_id, allocation.machine, allocation.processors)
                                = (launch.task_id, launch.machine, launch.processors))
    """,
    "no completed task holds processors": """
        select allocation.*
          from provisioning.allocation join postroad.task using (task_id)
         where task.status = 'completed'
           and not exists (select from provisioning.launch where launch.task_id = allocation.task_id)
    """,
    "no stage is done without its effect": """
        select task_id, stage
          from postroad.stage_run join postroad.task using (task_id)
         where task.pipeline = 'provisioning' and stage_run.status = 'done'
           and (stage = 'allocate' and not exists (select from provisioning.allocation
                                                    where allocation.task_id = task.task_id)
             or stage = 'launch' and not exists (select from provisioning.launch
                                                  where launch.task_id = task.task_id))
    """,
    # Tasks are pruned after their retention, and what they did stays.
    "no effect is there whose stage is not done": """
        with effect as (
            select task_id, 'allocate' as stage from provisioning.allocation
            union all
            select task_id, 'launch' from provisioning.launch
        )
        select task_id, stage
          from effect join postroad.task using (task_id)
         where not exists (select from postroad.stage_run
                            where (stage_run.task_id, stage_run.stage, stage_run.status)
                                = (effect.task_id, effect.stage, 'done'))
    """,
}


def check(connection: "Connection | psycopg.Connection[Any]") -> list[tuple[str, int]]:
    """Each invariant with its number of violations, 0 if all is well. Reads ``provisioning`` and ``postroad``."""
    run = connection.exec_driver_sql if isinstance(connection, Connection) else connection.execute
    return [(name, len(run(statement).fetchall())) for name, statement in INVARIANTS.items()]


def main() -> int:
    """Print each invariant and its violations. Returns the exit code."""
    with database.command() as database_url:
        try:
            with database.transaction(database_url) as connection:
                checked = check(connection)
        except ProgrammingError as error:
            if not isinstance(error.orig, UndefinedTable | InvalidSchemaName):
                raise
            print(
                "tables are missing: run postroad migrate and python -m examples.provisioning.migrate",
                file=sys.stderr,
            )
            return EXIT_FAILURE
    for name, violations in checked:
        print(f"{violations:8}  {name}")
    return EXIT_VIOLATED if any(violations for _, violations in checked) else 0


if __name__ == "__main__":
    sys.exit(main())
