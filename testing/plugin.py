"""The fixtures of ``postroad.testing``. In the ``conftest.py`` at the root of your tests::

    pytest_plugins = ["postroad.testing.plugin"]

Asked for by that line, and not found by pytest through an entry point: whoever merely has postroad installed gets no
fixtures, no imports and no option from it.

=======================  ========  =========================================================================
fixture                  scope     what it is
=======================  ========  =========================================================================
``road``                 function  a ``Road`` in a database of its own; checked at the end
``postroad_servers``     session   the servers; override it to bring others
``postroad_migration``   session   ``None``; override it by a function that makes your tables, given the URL of
                                   the database from which those of all tests are copied
=======================  ========  =========================================================================
"""

import importlib.util
from collections.abc import AsyncIterator, Iterator

import pytest

from ..core.errors import PostroadError
from ..core.servers import Servers
from ..core.settings import Settings
from .pipelines import Road, open_road
from .places import Migration, fresh_database, fresh_prefix, servers, template

NEEDS_ASYNCIO = 'the fixture road needs pytest-asyncio: run pip install "postroad[testing]"'


@pytest.fixture(scope="session")
def postroad_servers() -> Iterator[Servers]:
    """Postgres and Redis: those of DATABASE_URL and REDIS_URL, or embedded ones, a pair a process of pytest-xdist."""
    try:
        with servers() as pair:
            yield pair
    except PostroadError as error:
        raise pytest.fail.Exception(f"postroad_servers: {error}", pytrace=False) from None


@pytest.fixture(scope="session")
def postroad_migration() -> Migration | None:
    """What makes the tables of your own; none unless overridden."""
    return None


@pytest.fixture(scope="session")
def postroad_template(postroad_servers: Servers, postroad_migration: Migration | None) -> Iterator[str]:
    """The name of the database that each test's is copied from."""
    with template(postroad_servers, postroad_migration) as name:
        yield name


@pytest.fixture
def postroad_settings(postroad_servers: Servers, postroad_template: str) -> Iterator[Settings]:
    """A database and a key prefix of this test alone."""
    with fresh_database(postroad_servers, postroad_template) as url, fresh_prefix(postroad_servers) as prefix:
        yield Settings(database_url=url, redis_url=postroad_servers.redis_url, prefix=prefix)


if importlib.util.find_spec("pytest_asyncio"):
    import pytest_asyncio

    # By pytest-asyncio's own decorator, which its strict mode asks for, and in whatever loop scope is the project's.
    @pytest_asyncio.fixture
    async def road(postroad_settings: Settings) -> AsyncIterator[Road]:
        """Pipelines at work, once they are deployed; at the end they are stopped, and the audit must hold."""
        async with open_road(postroad_settings) as opened:
            yield opened

else:

    @pytest.fixture
    def road() -> None:
        """Says what is missing."""
        pytest.fail(NEEDS_ASYNCIO, pytrace=False)
