"""What HTTP wants refused by the head of a request alone, whatever is asked for, and the parsers let through."""

import re
from dataclasses import replace
from http import HTTPStatus

from starlette.types import Scope

from .problems import Problem, malformed

_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?", re.ASCII)

CLOSE = {"Connection": "close"}


def fault_of_head(scope: Scope) -> Problem | None:
    """What is wrong with the head: the first thing, if there is any."""
    given: dict[bytes, list[bytes]] = {b"host": [], b"transfer-encoding": [], b"content-length": []}
    for name, value in scope["headers"]:
        if name in given:
            given[name].append(value.strip())
    hosts, codings = given[b"host"], b",".join(given[b"transfer-encoding"]).lower()
    if scope["http_version"] == "1.1" and (len(hosts) != 1 or not _HOST.fullmatch(hosts[0])):
        return malformed("a request of HTTP/1.1 has one header Host, with the name or address of the server")
    if codings and given[b"content-length"]:
        # Somebody on the way may have gone by the other one: nothing more that comes is to be believed.
        return replace(malformed("Content-Length and Transfer-Encoding do not go together"), headers=CLOSE)
    if codings not in (b"", b"chunked"):
        detail = "of Transfer-Encoding only chunked is understood"
        return Problem(HTTPStatus.NOT_IMPLEMENTED, "unknown-transfer-encoding", detail, headers=CLOSE)
    if b"%2f" in (scope.get("raw_path") or b"").lower():
        # Nothing of ours has a slash in its name, and whoever guards paths before us does not take it for one.
        return Problem(HTTPStatus.NOT_FOUND, "not-found", f"there is nothing at {scope['path'][:200]}: %2F is no slash")
    return None
