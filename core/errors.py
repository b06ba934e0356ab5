"""Every error that postroad raises, one branch for each thing that a caller can do about it."""


class PostroadError(Exception):
    """Base of all of them.

    ::

        PostroadError
        ├── SettingsError              a flag, a variable or a key of postroad.toml is wrong: correct it
        ├── DeclarationError           a pipeline or one of its stages is declared wrongly: correct the code
        ├── AppError                   the author's application cannot be loaded: correct --app
        ├── UnstorableError            a value is no JSON, or none that Postgres can keep: change the value
        ├── UnreachableError           a server does not answer: start it, or correct its URL
        ├── SchemaError                the database lacks our tables or has other ones: postroad migrate
        ├── EmbeddedServersMissing     the embedded servers are not installed: install them, or name others
        ├── ServerStartError           an embedded server did not start; the message ends with its log
        ├── StackError                 a process of postroad up did not come up; its last lines say why
        ├── ViolationError             at the end of a test's road an invariant does not hold
        ├── NotFoundError              no such task, stage or dead letter
        └── RefusedError               the thing asked for does not fit the state that things are in

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
        super().__init__(f"{detail} (at {pointer})" if pointer else detail)
        self.detail = detail
        self.pointer = pointer
        self.malformed = malformed


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


class RefusedError(PostroadError):
    """What was asked for does not fit the present state; nothing was changed."""


def first_line(error: BaseException) -> str:
    """What ``error`` says, in one line: drivers add the statement and links to their documentation."""
    try:
        said = str(error).strip()
    except Exception:  # an author's exception, whose own words fail
        said = ""
    return (said or type(error).__name__).splitlines()[0]
