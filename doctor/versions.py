"""Versions: of postroad here and in the processes, of Python, of the servers."""

import platform
from collections.abc import Sequence
from importlib.metadata import version

from .finding import Finding, error, listed, ok, unknown, warning
from .patient import Patient
from .processes import alive

POSTGRES_TRIED, POSTGRES_LEAST = 150_000, 140_000
"""The oldest that all is tested on, and the oldest that has what we use; as server_version_num."""

REDIS_TRIED, REDIS_LEAST = (7, 0), (6, 2)
"""The oldest Redis that all is tested on, and the oldest that has the commands which we use."""

VALKEY_TRIED = (8, 0)


async def postroad(patient: Patient) -> Sequence[Finding]:
    """Whether the processes are of the version that looks."""
    own = version("postroad")
    here = ok(f"postroad {own} on Python {platform.python_version()}")
    others: dict[str, list[str]] = {}
    for process in await alive(patient):
        if process.version != own:
            others.setdefault(process.version, []).append(f"{process.role} {process.process}")
    return [here] + [
        warning(
            f"{listed(names)} {'is' if len(names) == 1 else 'are'} postroad {other}, this is {own}",
            "finish the upgrade: the same version everywhere, migrated first",
        )
        for other, names in others.items()
    ]


async def postgres(patient: Patient) -> Sequence[Finding]:
    """Whether this Postgres is one that we know."""
    settings = await patient.server_settings()
    number, name = int(settings["server_version_num"]), f"Postgres {settings['server_version']}"
    if number < POSTGRES_LEAST:
        return [error(f"{name} lacks what postroad uses", "upgrade it to 15 or newer")]
    if number < POSTGRES_TRIED:
        return [warning(f"postroad is not tested on {name}", "upgrade it to 15 or newer")]
    return [ok(name)]


async def redis(patient: Patient) -> Sequence[Finding]:
    """Whether these are a Redis or Valkey that we know."""
    findings = []
    for node in await patient.nodes():
        info = await patient.info(node)
        is_valkey = "valkey_version" in info
        text = str(info["valkey_version"] if is_valkey else info.get("redis_version", ""))
        numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
        name = f"{'Valkey' if is_valkey else 'Redis'} {text}"
        if not numbers:
            findings.append(unknown("the server does not say which version it is", "use Redis 7, Valkey 8, or newer"))
        elif not is_valkey and numbers < REDIS_LEAST:
            findings.append(error(f"{name} lacks what postroad uses", "upgrade it to Redis 7, or Valkey 8, or newer"))
        elif numbers < (VALKEY_TRIED if is_valkey else REDIS_TRIED):
            findings.append(
                warning(f"postroad is not tested on {name}", "upgrade it to Redis 7, or Valkey 8, or newer")
            )
        else:
            findings.append(ok(name))
    return list(dict.fromkeys(findings))
