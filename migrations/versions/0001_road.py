"""The road: pipelines, tasks, stage runs, the outbox and its ticks, dead letters."""

from pathlib import Path

from alembic import op

from postroad.migrations.statements import statements

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(Path(__file__).with_suffix(".sql")):
        op.execute(statement)
