"""What all tests share: real servers, and in them a place of its own for each test.

``--servers`` says where the servers come from:

- ``embedded`` (the default): a pair from the wheels for each worker of pytest-xdist, gone after the run;
- ``given``: those of DATABASE_URL and REDIS_URL, and the default where both are set. The role must be allowed
  to create databases;
- ``testcontainers``: a pair of containers for each worker, from a Docker engine that runs already.
  POSTROAD_TEST_POSTGRES_IMAGE and POSTROAD_TEST_REDIS_IMAGE name other images.

The embedded servers, and those that a test has for itself, are the programs POSTROAD_TEST_POSTGRES and
POSTROAD_TEST_REDIS where these are set: paths of ``postgres`` and ``redis-server``, of other versions than the wheels'.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import IO, Any

import pytest

from postroad.core.servers import Postgres, Servers, Valkey
from postroad.core.settings import Settings
from postroad.testing.places import fresh_database, fresh_prefix, template

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Who is started in the background of a script is told to ignore it, and so would be all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

FOLDERS = ("unit", "integration", "acceptance", "faults")
NEED_SERVERS = {"servers", "database", "prefix", "settings", "own_postgres", "own_valkey"}

POSTGRES_IMAGE = os.environ.get("POSTROAD_TEST_POSTGRES_IMAGE", "postgres:17-alpine")
REDIS_IMAGE = os.environ.get("POSTROAD_TEST_REDIS_IMAGE", "redis:7-alpine")

PREFIX = "postroad-tests-"

ROOM = 2 << 30
"""Bytes that the servers of a run may need; a container has 64 MiB in memory unless told otherwise."""

POSTGRES_OPTIONS = {"max_prepared_transactions": "20"}

_home = pytest.StashKey[Path]()
_life = pytest.StashKey[IO[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--servers",
        choices=("embedded", "given", "testcontainers"),
        help="where Postgres and Redis come from (default: embedded, or given if both URLs are)",
    )


def pytest_configure(config: pytest.Config) -> None:
    _choose_programs()
    given = all(os.environ.get(name) for name in ("DATABASE_URL", "REDIS_URL"))
    if config.option.servers is None:
        config.option.servers = "given" if given else "embedded"
    if hasattr(config, "workerinput"):
        config.stash[_home] = Path(config.workerinput["home"])
        return
    if config.option.servers == "given" and not given:
        raise pytest.UsageError("--servers=given needs DATABASE_URL and REDIS_URL")
    if config.option.servers == "testcontainers":
        _check_engine()
    # Not in pytest's own temporary folder: it is closed to other accounts, and root's Postgres runs as one.
    memory = _memory()
    home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=memory))
    # Held until this process ends, however it does.
    config.stash[_life] = (home / "life").open("w")
    fcntl.flock(config.stash[_life], fcntl.LOCK_EX)
    config.stash[_home] = home
    if memory:
        _sweep(memory)


def _memory() -> Path | None:
    """A file system in memory, if there is one with room: on a disk each fresh database costs hundreds of files."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > ROOM else None


def _sweep(memory: Path) -> None:
    """Remove what runs that were killed have left: it takes memory."""
    for home in memory.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (home / "life").open() as life:
            fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(home)


def _choose_programs() -> None:
    for variable, server in (("POSTROAD_TEST_POSTGRES", Postgres), ("POSTROAD_TEST_REDIS", Valkey)):
        if program := os.environ.get(variable):
            setattr(server, "_program", partialmethod(_chosen, Path(program)))  # noqa: B010
    if os.environ.get("POSTROAD_TEST_POSTGRES"):
        Postgres._initdb_settings = ()  # older ones have none


def _chosen(self: Postgres | Valkey, program: Path) -> Path:
    return program


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and _home in config.stash:
        shutil.rmtree(config.stash[_home], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where the run's folder is."""
    node.workerinput["home"] = str(node.config.stash[_home])


def pytest_itemcollected(item: pytest.Item) -> None:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    if folder in FOLDERS:
        item.add_marker(folder)
    wanted = NEED_SERVERS.intersection(getattr(item, "fixturenames", ()))
    if folder == "unit" and wanted:
        raise pytest.UsageError(f"{item.nodeid} is a unit test and asks for {', '.join(sorted(wanted))}")


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Postgres and Redis, for the tests of this worker together; never stop these, see ``own_postgres``."""
    kind = request.config.option.servers
    if kind == "given":
        yield Servers(os.environ["DATABASE_URL"], os.environ["REDIS_URL"])
    elif kind == "testcontainers":
        with _containers() as pair:
            yield pair
    else:
        home = request.config.stash[_home]
        with _postgres(home) as postgres, _valkey(home) as valkey:
            yield Servers(postgres.url, valkey.url)


@pytest.fixture(scope="session")
def _template(servers: Servers) -> Iterator[str]:
    """The name of a database with all migrations, to copy from."""
    with template(servers) as name:
        yield name


@pytest.fixture
def database(servers: Servers, _template: str) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    with fresh_database(servers, _template) as url:
        yield url


@pytest.fixture
def prefix(servers: Servers) -> Iterator[str]:
    """A prefix for the keys of this test; whatever begins with it is deleted afterwards."""
    with fresh_prefix(servers) as made:
        yield made


@pytest.fixture
def settings(servers: Servers, database: str, prefix: str) -> Settings:
    """Settings for ``database`` and ``prefix``, else the defaults."""
    return Settings(database_url=database, redis_url=servers.redis_url, prefix=prefix)


@pytest.fixture
def own_postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A running Postgres of this test alone, to be stopped, killed and started; without our tables.

    All of them have one ``system_identifier``. A test that needs two makes a ``Postgres`` in a new folder.
    """
    with _postgres(request.config.stash[_home]) as postgres:
        yield postgres


@pytest.fixture
def own_valkey(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    """A running Valkey of this test alone, to be stopped, killed and started; it forgets all when it ends."""
    with _valkey(request.config.stash[_home]) as valkey:
        yield valkey


@contextlib.contextmanager
def _postgres(home: Path) -> Iterator[Postgres]:
    made = Postgres(home / "postgres", fsync=False)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.initialise()
    with tempfile.TemporaryDirectory(dir=home) as folder:
        shutil.copytree(made.folder, folder, dirs_exist_ok=True)
        with Postgres(folder, fsync=False, options=POSTGRES_OPTIONS) as postgres:
            yield postgres


@contextlib.contextmanager
def _valkey(home: Path) -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(dir=home) as folder, Valkey(folder, appendonly=False) as valkey:
        yield valkey


@contextlib.contextmanager
def _containers() -> Iterator[Servers]:
    # Here and not at the top: a run on other servers does without them.
    from testcontainers.community.postgres import PostgresContainer
    from testcontainers.community.redis import RedisContainer

    options = {"max_connections": "200", "fsync": "off"} | POSTGRES_OPTIONS
    command = " ".join(["postgres", *(f"-c {name}={value}" for name, value in options.items())])
    with (
        PostgresContainer(POSTGRES_IMAGE, driver=None).with_command(command) as postgres,
        RedisContainer(REDIS_IMAGE) as valkey,
    ):
        host, port = valkey.get_container_host_ip(), valkey.get_exposed_port(valkey.port)
        yield Servers(postgres.get_connection_url(), f"redis://{host}:{port}/0")


def _check_engine() -> None:
    """End the run with one clear sentence if no containers can be had: many clients have no engine."""
    import docker

    try:
        with contextlib.closing(docker.from_env()) as client:
            client.ping()
            for image in (POSTGRES_IMAGE, REDIS_IMAGE):
                if not client.images.list(name=image):
                    client.images.pull(image)
    except docker.errors.APIError as error:
        raise pytest.UsageError(f"--servers=testcontainers: {error.explanation or error}") from error
    except docker.errors.DockerException as error:
        raise pytest.UsageError(
            f"--servers=testcontainers: no Docker engine answers ({error}). "
            "Start one, set DOCKER_HOST, or run make test-containers"
        ) from error
