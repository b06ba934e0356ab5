"""Limits of a stage that people set while it works, and that win over those of its code."""

from pathlib import Path

from alembic import op

from postroad.migrations.statements import statements

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(Path(__file__).with_suffix(".sql")):
        op.execute(statement)
