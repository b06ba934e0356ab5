"""A migration's ``.sql`` file as single statements for the schema that is being migrated."""

from pathlib import Path

from alembic import context
from sqlalchemy import TextClause, text

from ..core.database import in_schema


def statements(file: Path) -> list[TextClause]:
    """The statements of ``file``; they are separated by a semicolon and an empty line."""
    schema = context.config.attributes["schema"]
    script = file.read_text("utf-8").strip().removesuffix(";")
    # A colon before a word would be a parameter of SQLAlchemy's text().
    return [text(in_schema(part, schema).replace(":", r"\:")) for part in script.split(";\n\n")]
