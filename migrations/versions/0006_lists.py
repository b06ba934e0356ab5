"""Indexes for the lists of tasks: those of a pipeline, those that failed or were cancelled, those with a label.

What they cost, measured beside a million tasks: ``task_pipeline`` 0.13 kB of WAL and 2 µs for each insert, and 0.1 kB
for each change of status; ``task_labels`` 0.17 kB and about 8 µs for an insert, and 0.27 kB for a change of status, of
tasks that have labels, nothing for the others; ``task_failed_or_cancelled`` nothing until a task fails or is cancelled.
"""

from pathlib import Path

from alembic import op

from postroad.migrations.statements import statements

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(Path(__file__).with_suffix(".sql")):
        op.execute(statement)
