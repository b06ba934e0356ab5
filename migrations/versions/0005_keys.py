"""Keys of the door, and who submitted a task or paused a stage."""

from pathlib import Path

from alembic import op

from postroad.migrations.statements import statements

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(Path(__file__).with_suffix(".sql")):
        op.execute(statement)
