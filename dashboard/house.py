"""What every page is given, and how it answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..core.database import Statements
from ..intake.app import Foundation
from .reader import Reader
from .session import Viewer
from .sight import Sight


@dataclass(frozen=True, slots=True)
class House:
    """What the pages share."""

    foundation: Foundation
    reader: Reader
    sight: Sight

    @property
    def schema(self) -> str:
        """The schema of our tables."""
        return self.foundation.settings.schema

    @property
    def sql(self) -> Statements:
        """The statements of the dashboard."""
        return Statements(__package__ or "", self.schema)


Show = Callable[[Request, Viewer], Awaitable[Response]]
"""Answers a request for a page."""


def go_to(address: str) -> Response:
    """Lead the browser there, by GET: a page that is loaded again does nothing twice."""
    return RedirectResponse(address, HTTPStatus.SEE_OTHER)
