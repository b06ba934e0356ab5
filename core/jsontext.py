"""JSON as Postgres will take it: text in, checked values out, and back.

``jsonb`` refuses some of what JSON parsers let through, and alters some more: it has no NUL, no half of a surrogate
pair and no infinity, and it drops the first of two members with one name. We say so before anything is written.
"""

import json
import math
from collections import Counter
from functools import partial
from typing import Any

import msgspec

from .errors import UnstorableError

DEEPEST = 100
"""Levels of nesting that we accept. Parsers differ beyond a few hundred, and nobody means more than this."""


def decode(text: bytes) -> Any:
    """The value of a JSON text. Raises ``UnstorableError``, ``malformed`` if ``text`` is no JSON in UTF-8."""
    if (plain := _decode_plain(text)) is not None:
        return plain
    try:
        string = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnstorableError(f"the body is not UTF-8: byte {error.start} is wrong", malformed=True) from error
    try:
        value = _parse(string)
    except json.JSONDecodeError as error:
        raise UnstorableError(
            f"the body is no JSON: {error.msg} in line {error.lineno}, column {error.colno}", malformed=True
        ) from error
    except RecursionError as error:
        raise _too_deep() from error
    check(value)
    return value


_KINDS = bytes.maketrans(b"123456789.\t\n\r", b"0000000000   ")
_DOUBTFUL = (b"\\", b"0" * 15, b" :")
"""What a text that is beyond doubt has not, once each byte was replaced by its kind: an escape, which may hide a NUL or
half a surrogate pair; a number with more digits than a double; white space before a colon. (Found ten times as fast as
by a regular expression.)"""


def _decode_plain(text: bytes) -> Any:
    """The value of a text that is JSON beyond doubt, and of which Postgres keeps all; else ``None``.

    Most are, and are read ten times as fast so. Nothing is decided here: what is in doubt is looked at with care.
    """
    kinds = text.translate(_KINDS)
    if any(doubt in kinds for doubt in _DOUBTFUL) or text.count(b"[") + text.count(b"{") > DEEPEST:
        return None
    try:
        value = msgspec.json.decode(text)
        again = msgspec.json.encode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    # Without escapes these two characters are the end of a member's name, or begin a string; of the latter both have
    # as many. Where there are fewer now, one of two members with one name was dropped.
    return value if again.count(b'":') == text.count(b'":') else None


def encode_checked(value: Any) -> str:
    """``value``, which ``decode`` has returned or ``check`` has let pass, as JSON text."""
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, OverflowError, ValueError):
        return json.dumps(value, allow_nan=False, separators=(",", ":"))  # a number beyond 64 bits


def _parse(string: str) -> Any:
    parse = partial(json.loads, object_pairs_hook=_members, parse_constant=_refuse_constant)
    try:
        return parse(string)
    except (json.JSONDecodeError, UnstorableError):
        raise
    except ValueError:
        # More digits than int() converts. As a float such a number is infinite, and check() says where it is.
        return parse(string, parse_int=float)


def encode(value: Any) -> str:
    """``value`` as JSON text that ``jsonb`` keeps. Raises ``UnstorableError`` naming the member at fault."""
    check(value)
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableError(str(error)) from error


def check(value: Any) -> None:
    """Raise ``UnstorableError`` unless ``value`` is made of JSON types that ``jsonb`` keeps as they are."""
    try:
        _check(value, DEEPEST)
    except RecursionError:
        raise _too_deep() from None


def _check(value: Any, levels: int) -> None:
    """The same. Raises ``RecursionError`` for more than so many levels.

    Where a fault is, is only put together on the way out: names may be long, and there may be many values in them.
    """
    if isinstance(value, str):
        _check_string(value)
    elif value is None or isinstance(value, bool | int):
        if isinstance(value, int) and value.bit_length() > 1024:
            raise UnstorableError("a number is larger than 2^1024")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise UnstorableError("a number is not finite, or too large for a double")
    elif not isinstance(value, dict | list | tuple):
        raise UnstorableError(f"a {type(value).__name__} is no JSON value")
    elif not levels:
        raise RecursionError
    else:
        if isinstance(value, dict):
            _check_names(value)
        name: str | int
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            try:
                _check(member, levels - 1)
            except UnstorableError as error:
                raise error.within(name) from None


def _check_names(value: dict[Any, Any]) -> None:
    if isinstance(value, _Ambiguous):
        raise UnstorableError(f"an object has two members named {value.doubled[:60]!r}")
    for name in value:
        if not isinstance(name, str):
            raise UnstorableError(f"the name of a member is {type(name).__name__}, not a string")
        _check_string(name)


def _check_string(text: str) -> None:
    if text.isascii():
        if "\x00" in text:
            raise UnstorableError(r"Postgres cannot keep the character \u0000")
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UnstorableError("a string holds one half of a surrogate pair") from None
    if "\x00" in text:
        raise UnstorableError(r"Postgres cannot keep the character \u0000")


class _Ambiguous(dict[str, Any]):
    """An object with two members of one name, until ``check`` comes by, which knows where it is."""

    doubled: str


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        members = _Ambiguous(members)
        members.doubled = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
    return members


def _too_deep() -> UnstorableError:
    # Without its place: the parser does not know it either, if it gives up.
    return UnstorableError(f"nested deeper than {DEEPEST} levels")


def _refuse_constant(name: str) -> Any:
    raise UnstorableError(f"{name} is no JSON number", malformed=True)


def storable(text: str) -> str:
    """``text`` as Postgres takes it: what it does not take is replaced."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
