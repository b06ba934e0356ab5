"""What people look at: the processes there are, who did what, and views of all that happens.

The index on what people did costs other events nothing but a look at their type.
"""

from pathlib import Path

from alembic import op

from postroad.migrations.statements import statements

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(Path(__file__).with_suffix(".sql")):
        op.execute(statement)
