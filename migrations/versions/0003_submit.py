"""Submitting in anybody's transaction, as functions in SQL; not before a time, by a deadline, and on a schedule."""

from pathlib import Path

from alembic import op

from postroad.migrations.statements import statements

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(Path(__file__).with_suffix(".sql")):
        op.execute(statement)
