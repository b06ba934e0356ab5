"""Every error that postroad raises, one branch for each thing that a caller can do about it."""

from collections.abc import Mapping
from typing import Self


class PostroadError(Exception):
    """Base of all of them.

    ::

        PostroadError
        ├── SettingsError              a flag, a variable or a key of postroad.toml is wrong: correct it
        ├── DeclarationError           a pipeline or one of its stages is declared wrongly: correct the code
        ├── AppError                   the author's application cannot be loaded: correct --app
        ├── UnstorableError            a value is no JSON, or none that Postgres can keep: change the value
        ├── UnreachableError           a server does not answer: start it, or correct its URL
        │   └── UnansweredError        the intake did not, for as long as patience lasts: ask again, with the same key
        ├── SchemaError                the database lacks our tables or has other ones: postroad migrate
        ├── EmbeddedServersMissing     the embedded servers are not installed: install them, or name others
        ├── ServerStartError           an embedded server did not start; the message ends with its log
        ├── StackError                 a process of postroad up did not come up; its last lines say why
        ├── ViolationError             at the end of a test's road an invariant does not hold
        ├── NotFoundError              no such task, stage or dead letter
        ├── TooSlowError               a list would take too long: ask for less
        ├── RefusedError               the thing asked for does not fit the state that things are in
        └── IntakeError                the intake answers a client with an error, or is none; the message says
            ├── InvalidRequestError    the request cannot be granted as it is: correct the members that are named
            ├── AccessError            the token is missing, not good, or not for this: give another
            ├── UnknownTaskError       a NotFoundError too: no such task, or none for this token
            └── TaskStateError         a RefusedError too: the task, or its key, is in no state for this

    Messages say what happened and what to do.
    """


class SettingsError(PostroadError, ValueError):
    """A setting is unknown or has a bad value; the message names it and where it came from."""


class DeclarationError(PostroadError, ValueError):
    """A pipeline is declared wrongly; the message names the pipeline and the stage."""


class AppError(PostroadError):
    """``--app`` names something that cannot be imported, or that holds no pipeline."""


class UnstorableError(PostroadError, ValueError):
    """A value that JSON or Postgres' ``jsonb`` cannot hold.

    ``pointer`` is the JSON pointer (RFC 6901) of the offending member, ``""`` for the document itself;
    ``malformed`` is true if the text is no JSON at all.
    """

    def __init__(self, detail: str, pointer: str = "", *, malformed: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer
        self.malformed = malformed

    def __str__(self) -> str:
        return f"{self.detail} (at {self.pointer})" if self.pointer else self.detail

    def within(self, name: str | int) -> Self:
        """The same error, of the value around the one at fault, in which that is ``name``."""
        self.pointer = f"/{str(name).replace('~', '~0').replace('/', '~1')}{self.pointer}"
        return self


class UnreachableError(PostroadError, ConnectionError):
    """Postgres or Redis does not answer; ``server`` says which, without its password."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(f"{server} does not answer: {reason}")
        self.server = server
        self.reason = reason


class SchemaError(PostroadError):
    """The database does not have the tables that this version needs; run ``postroad migrate``."""


class NotFoundError(PostroadError, LookupError):
    """There is no such task, stage, pipeline or dead letter."""


class TooSlowError(PostroadError):
    """What was asked for would take too long, or be too much; the message says how to ask for less."""


class RefusedError(PostroadError):
    """What was asked for does not fit the present state; nothing was changed."""


class IntakeError(PostroadError):
    """An answer of the intake that is an error (RFC 9457), as a client gets it.

    ``status`` is that of HTTP, ``title`` and ``detail`` say what is wrong; ``faults`` has what is wrong with single
    members of the request, by their JSON pointers (``/labels/team``).
    """

    def __init__(self, server: str, status: int, title: str, detail: str, faults: Mapping[str, str]) -> None:
        said = "; ".join(f"{pointer}: {fault}" if pointer else fault for pointer, fault in faults.items())
        super().__init__(f"{server} answers {status} {title}: {said or detail}".removesuffix(": "))
        self.server = server
        self.status = status
        self.title = title
        self.detail = detail
        self.faults = faults


class InvalidRequestError(IntakeError, ValueError):
    """The request is malformed, too large, or not what can be a task; nothing was written."""


class AccessError(IntakeError, PermissionError):
    """The request needs a token, another one, or one that may do more."""


class UnknownTaskError(IntakeError, NotFoundError):
    """There is no such task for whoever asks."""


class TaskStateError(IntakeError, RefusedError):
    """The id stands for another task, the key is in somebody's hands, or the task cannot be cancelled or retried."""


class UnansweredError(UnreachableError):
    """The intake gave no answer that settles the request within the client's patience.

    ``may_have_happened`` is false if no request can have been carried out. ``key`` is the idempotency key of a
    submission: with the same key and content it can be sent again at any time, and is one task.
    """

    def __init__(self, server: str, reason: str, *, may_have_happened: bool, key: str | None = None) -> None:
        super().__init__(server, reason)
        self.may_have_happened = may_have_happened
        self.key = key


def first_line(error: BaseException) -> str:
    """What ``error`` says, in one line: drivers add the statement and links to their documentation."""
    try:
        said = str(error).strip()
    except Exception:  # an author's exception, whose own words fail
        said = ""
    return (said or type(error).__name__).splitlines()[0]
