"""Settings: read once, from flags, then the environment, then ``postroad.toml``, then the defaults.

Nothing else in the package looks at the environment, except for OpenTelemetry's own variables, ``OTEL_*``.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from .errors import SettingsError
from .redis_url import RedisUrl

AUTH = ("auto", "required", "off")
"""What the setting ``auth`` can be."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the processes of one deployment agree on. Durations are ``timedelta``; in text ``15s``, ``500ms``, ``2m``.

    Each is set by the flag ``--lease``, the variable ``POSTROAD_LEASE`` or the key ``lease`` of ``postroad.toml``;
    ``DATABASE_URL``, ``DIRECT_URL`` and ``REDIS_URL`` go by their usual names.
    """

    database_url: str = field(default="", metadata={"doc": "Postgres 15 or newer"})
    direct_url: str = field(
        default="",
        metadata={"doc": "Postgres itself, for the relay, if database_url leads to a pooler in transaction mode"},
    )
    redis_url: str = field(default="", metadata={"doc": "Redis 7 or Valkey 8, or newer"})
    app: str = field(default="", metadata={"doc": "where the pipelines are: module, module:attribute or a path"})
    schema: str = field(default="postroad", metadata={"doc": "Postgres schema of our tables"})
    prefix: str = field(default="postroad", metadata={"doc": "first part of every Redis key"})
    shards: int = field(default=1, metadata={"doc": "key slots over which a Redis Cluster spreads the stages"})
    lease: timedelta = field(
        default=timedelta(seconds=15),
        metadata={"doc": "within it the entries of a worker that died go to others"},
    )
    grace: timedelta = field(
        default=timedelta(seconds=25),
        metadata={"doc": "how long a stopping process lets running work finish (Kubernetes kills after 30 s)"},
    )
    retention: timedelta = field(
        default=timedelta(days=30), metadata={"doc": "how long events and finished tasks are kept, at least"}
    )
    crash_limit: int = field(
        default=5, metadata={"doc": "deliveries without an outcome after which a stage is a dead letter"}
    )
    pool: int = field(default=20, metadata={"doc": "most Postgres connections of one process"})
    host: str = field(default="127.0.0.1", metadata={"doc": "address on which the intake listens"})
    port: int = field(default=8080, metadata={"doc": "port on which the intake listens"})
    public_url: str = field(
        default="", metadata={"doc": "where services that report later reach the intake, as https://tasks.example.com"}
    )
    body_limit: int = field(default=1024 * 1024, metadata={"doc": "largest body of POST /v1/tasks, in bytes"})
    batch_limit: int = field(
        default=16 * 1024 * 1024, metadata={"doc": "largest body of POST /v1/tasks:batch, in bytes"}
    )
    auth: str = field(
        default="auto",
        metadata={"doc": "keys of the door: auto (required once there is one), required, or off"},
    )
    api_key: str = field(
        default="", repr=False, metadata={"doc": "the key with which commands go through the door: prk_…"}
    )
    open_tasks_limit: int = field(
        default=1_000_000, metadata={"doc": "open tasks of a pipeline beyond which no more are accepted; 0: any number"}
    )
    outbox_age_limit: timedelta = field(
        default=timedelta(minutes=5),
        metadata={"doc": "age of an unpublished event beyond which nothing is accepted; 0: any age"},
    )
    request_time: timedelta = field(
        default=timedelta(seconds=20),
        metadata={"doc": "how long a client may take for the head of a request, and for its body"},
    )
    connections: int = field(default=2000, metadata={"doc": "most connections of clients to one process of the intake"})
    workers: int = field(default=1, metadata={"doc": "processes of the intake that share one port"})
    metrics: str = field(
        default="",
        metadata={"doc": "HOST:PORT on which a process serves its metrics to Prometheus; not at all without"},
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,39}", self.schema):
            raise SettingsError(f"schema: {self.schema!r} must be lower-case letters, digits and '_', 40 at most")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.prefix):
            raise SettingsError(f"prefix: {self.prefix!r} must be letters, digits, '_', '.' and '-'")
        for name, least, most in (
            ("shards", 1, 1024),
            ("crash_limit", 1, 1000),
            ("pool", 3, 1000),
            ("port", 0, 65535),
            ("body_limit", 1024, 1 << 30),
            ("batch_limit", 1024, 1 << 30),
            ("open_tasks_limit", 0, 1 << 40),
            ("connections", 1, 1_000_000),
            ("workers", 1, 128),
        ):
            if not least <= getattr(self, name) <= most:
                raise SettingsError(f"{name}: must be {least} to {most}, not {getattr(self, name)}")
        if self.lease < timedelta(seconds=1):
            raise SettingsError(f"lease: must be a second or more, not {self.lease}")
        if not timedelta(hours=1) <= self.retention <= timedelta(days=30):
            raise SettingsError(f"retention: must be an hour to 30 days, not {self.retention}")
        if self.auth not in AUTH:
            raise SettingsError(f"auth: must be one of {', '.join(AUTH)}, not {self.auth!r}")
        if not re.fullmatch(r"[\x21-\x7e]*", self.api_key):
            raise SettingsError("api_key: printable ASCII without spaces, as postroad key create prints it")
        if self.metrics:
            self.metrics_address()
        if self.outbox_age_limit < timedelta():
            raise SettingsError(f"outbox_age_limit: must not be negative, not {self.outbox_age_limit}")
        if self.request_time < timedelta(milliseconds=100):
            raise SettingsError(f"request_time: must be 100ms or more, not {self.request_time}")
        if self.grace < timedelta():
            raise SettingsError(f"grace: must not be negative, not {self.grace}")
        for name, url in (("database_url", self.database_url), ("direct_url", self.direct_url)):
            if url and not re.match(r"postgres(ql|ql\+psycopg)?://", url):
                raise SettingsError(f"{name}: begins with postgresql://, not {masked(url)!r}")
        if self.public_url and not re.match(r"https?://[^/?#]", self.public_url):
            raise SettingsError(f"public_url: begins with https:// or http://, not {masked(self.public_url)!r}")
        if self.redis_url:
            try:
                RedisUrl.parse(self.redis_url)
            except ValueError as error:
                raise SettingsError(f"redis_url: {error}, not {masked(self.redis_url)!r}") from error

    @classmethod
    def read(
        cls,
        flags: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> "Settings":
        """Read the settings of this process.

        ``flags`` are those given on the command line (``None`` values are absent ones); ``environ`` is ``os.environ``
        unless given; ``file`` is ``./postroad.toml`` if that exists. Raises ``SettingsError`` for an unknown name,
        with the nearest known one, and for a bad value.
        """
        variables = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        path = file or Path("postroad.toml")
        if file or path.exists():
            values |= _from_file(path)
        values |= _from_environment(variables)
        for name, value in (flags or {}).items():
            if value is not None:
                values[name] = _parsed(f"--{name.replace('_', '-')}", name, value)
        return cls(**values)

    def metrics_address(self) -> tuple[str, int]:
        """Host and port of ``metrics``. Raises ``SettingsError``."""
        host, colon, port = self.metrics.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) <= 65535):
            raise SettingsError(f"metrics: HOST:PORT, as 127.0.0.1:9464, not {self.metrics!r}")
        return host.strip("[]"), int(port)

    def environment(self) -> dict[str, str]:
        """These settings as variables, for a child process."""
        return {
            _variable(name): _text(getattr(self, name)) for name in _kinds() if getattr(self, name) not in ("", None)
        }


VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""What stands for a variable of the environment in the text of a declaration."""


def masked(url: str) -> str:
    """``url`` without its password.

    Drivers take passwords that no URL should hold, with a slash or a bracket, so whatever may be one is hidden.
    """
    url = re.sub(r"(?<=://)([^:@/]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"(?<=[?&])(\w*password)=[^&]*", r"\1=***", url)


def inherited() -> dict[str, str]:
    """The environment of this process, for a program that it runs."""
    return dict(os.environ)


def expanded(text: str, environ: Mapping[str, str] | None = None) -> str:
    """``text`` with each ``${NAME}`` replaced by the variable of that name. Raises ``SettingsError`` if one is not set.

    ``environ`` is ``os.environ`` unless given.
    """
    variables = os.environ if environ is None else environ

    def value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise SettingsError(f"the environment variable {match[1]} is not set")
        return variables[match[1]]

    return VARIABLE.sub(value, text)


def duration(text: str) -> timedelta:
    """``500ms``, ``15s``, ``2m``, ``1h``, ``30d`` or a bare number of seconds. Raises ``ValueError``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", text.strip())
    if match is None:
        raise ValueError(f"not a duration such as 500ms, 15s or 2m: {text!r}")
    seconds = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}[match[2]]
    try:
        return timedelta(seconds=float(match[1]) * seconds)
    except OverflowError as error:
        raise ValueError("too long") from error


_OWN_NAMES = {"database_url": "DATABASE_URL", "direct_url": "DIRECT_URL", "redis_url": "REDIS_URL"}


def _kinds() -> dict[str, type]:
    hints = get_type_hints(Settings)
    return {f.name: hints[f.name] for f in dataclasses.fields(Settings)}


def _variable(name: str) -> str:
    return _OWN_NAMES.get(name, f"POSTROAD_{name.upper()}")


def _text(value: object) -> str:
    return f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {_variable(name): name for name in _kinds()}
    values = {}
    for variable, text in environ.items():
        if variable in known:
            if text:
                values[known[variable]] = _parsed(variable, known[variable], text)
        elif variable.startswith("POSTROAD_") and not variable.startswith("POSTROAD_TEST_"):
            raise SettingsError(f"{variable} is no setting of postroad{_nearest(variable, known)}")
    return values


def _from_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML: {error}") from error
    for key in document:
        if key not in _kinds():
            raise SettingsError(f"{path}: {key!r} is no setting of postroad{_nearest(key, _kinds())}")
    return {key: _parsed(f"{path}: {key}", key, value) for key, value in document.items()}


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _parsed(source: str, name: str, value: Any) -> Any:
    kind = _kinds().get(name)
    if kind is None:
        raise SettingsError(f"{source} is no setting of postroad{_nearest(name, _kinds())}")
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    try:
        if kind is str:
            raise ValueError("not text")
        return duration(str(value)) if kind is timedelta else int(str(value))
    except ValueError as error:
        wrong = "not a whole number" if kind is int else str(error)
        raise SettingsError(f"{source}: {value!r} is not valid: {wrong}") from error
