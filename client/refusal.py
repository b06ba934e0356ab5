"""Answers that are errors, as exceptions; lines of a batch that were refused, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from ..core.errors import AccessError, IntakeError, InvalidRequestError, TaskStateError, UnknownTaskError
from .exchange import Answer

_KINDS: Mapping[int, type[IntakeError]] = {
    400: InvalidRequestError,
    401: AccessError,
    403: AccessError,
    404: UnknownTaskError,
    409: TaskStateError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
}


@dataclass(frozen=True, slots=True)
class Refused:
    """What was not accepted of many, and why: as the fields of ``IntakeError``. ``number`` counts from 1."""

    number: int
    status: int
    title: str
    detail: str
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """Why, in one line."""
        return "; ".join(f"{pointer}: {fault}" for pointer, fault in self.faults.items() if pointer) or self.detail

    def error(self, server: str = "the intake") -> IntakeError:
        """The exception that the same refusal is where a task is submitted alone."""
        return _KINDS.get(self.status, IntakeError)(server, self.status, self.title, self.detail, self.faults)


def refused(number: int, body: Mapping[str, Any]) -> Refused:
    """The refusal that the intake's answer to a line is."""
    status = int(body["status"])
    return Refused(number, status, str(body.get("title", "")), str(body.get("detail", "")), _faults(body))


def refused_here(number: int, detail: str, pointer: str = "") -> Refused:
    """The refusal of a line that is not even sent."""
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return Refused(number, int(status), status.phrase, detail, {pointer: detail} if pointer else {})


def error_of(server: str, answer: Answer) -> IntakeError:
    """The exception for an answer that is an error, or that no intake gives."""
    body = answer.json()
    kind = _KINDS.get(answer.status, IntakeError)
    if not isinstance(body, dict) or "title" not in body or "detail" not in body:
        # Not from an intake, which says so of each task that it does not have. A proxy may ask for a token, though.
        kind = kind if kind is AccessError else IntakeError
        return kind(server, answer.status, answer.text[:300].strip(), "", {})
    return kind(server, answer.status, str(body["title"]), str(body["detail"]), _faults(body))


def _faults(body: Mapping[str, Any]) -> dict[str, str]:
    faults: dict[str, str] = {}
    errors = body.get("errors")
    for error in errors if isinstance(errors, list) else ():
        if isinstance(error, dict):
            pointer, detail = unquote(str(error.get("pointer", "")).removeprefix("#")), str(error.get("detail", ""))
            faults[pointer] = f"{faults[pointer]}, {detail}" if pointer in faults else detail
    return faults
