"""Stages that are services: rest while one is away, and wait for one that reports later."""

from pathlib import Path

from alembic import op

from postroad.migrations.statements import statements

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(Path(__file__).with_suffix(".sql")):
        op.execute(statement)
