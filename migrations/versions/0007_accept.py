"""Accept tasks at four fifths of the cost to Postgres: the content is hashed as plain text, and a small payload is not
searched for nesting.

Keys that were hashed before still stand for their tasks: what a hash does not know is compared as a whole. Only where
the task was pruned there is nothing to compare, and the same request again is told that its key was used for another.
"""

from pathlib import Path

from alembic import op

from postroad.migrations.statements import statements

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(Path(__file__).with_suffix(".sql")):
        op.execute(statement)
