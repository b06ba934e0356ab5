"""The connections to Postgres."""

import pytest
from sqlalchemy import text

from postroad import Settings
from postroad.core.database import connect_psycopg, make_engine

STRICT = """
do $$ begin
    execute format('alter database %I set default_transaction_isolation = ''repeatable read''', current_database());
    execute format('alter database %I set statement_timeout = ''1min''', current_database());
    execute format('alter database %I set idle_in_transaction_session_timeout = ''1min''', current_database());
end $$
"""


@pytest.fixture
async def strict(settings: Settings) -> Settings:
    """Whoever logs in is hurried, and sees what was there when its transaction began."""
    async with await connect_psycopg(settings, application="test") as connection:
        await connection.execute(STRICT)
    return settings


async def test_a_lasting_session_is_not_hurried_and_sees_what_others_commit(strict: Settings) -> None:
    async with await connect_psycopg(strict, application="test") as connection, connection.transaction():
        cursor = await connection.execute(
            "select current_setting('transaction_isolation'), current_setting('statement_timeout'),"
            " current_setting('idle_in_transaction_session_timeout')"
        )
        assert await cursor.fetchone() == ("read committed", "0", "0")


async def test_a_transaction_of_the_pool_sees_what_others_commit_within_the_timeouts_of_the_role(
    strict: Settings,
) -> None:
    engine = make_engine(strict, application="test")
    try:
        async with engine.begin() as connection:
            assert await connection.scalar(text("show transaction_isolation")) == "read committed"
            assert await connection.scalar(text("show statement_timeout")) == "1min"
    finally:
        await engine.dispose()
