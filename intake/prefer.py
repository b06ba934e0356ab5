"""What a request would like (RFC 7240): to be answered when the task has ended."""

import re
from collections.abc import Mapping

from starlette.requests import Request

from .members import LONGEST_WAIT

_PREFERENCE = re.compile(r'(?:"(?:[^"\\]|\\.?)*(?:"|$)|[^,"])+')
"""One of several: commas within quotes do not part them."""

_WAIT = re.compile(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?', re.IGNORECASE)


def preferred_wait(request: Request) -> int | None:
    """The seconds of ``Prefer: wait=…``, at most ``LONGEST_WAIT``; ``None`` if there is none that we understand.

    Of several the first holds; what is not understood is ignored, as the RFC has it.
    """
    if not (given := request.headers.getlist("prefer")):
        return None
    preferences = _PREFERENCE.findall(",".join(given))
    waits = [match for match in map(_WAIT.fullmatch, preferences) if match]
    return min(int(waits[0][1]), LONGEST_WAIT) if waits else None


def applied(wait: int | None) -> Mapping[str, str]:
    """The header that says that the preference was followed."""
    return {} if wait is None else {"Preference-Applied": f"wait={wait}"}
