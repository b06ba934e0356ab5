"""The processes of the deployment: what they are, what they do now, and which of them are gone."""

from starlette.requests import Request
from starlette.responses import Response

from ..intake.requests import read_query
from .house import House
from .render import render
from .session import Viewer


class Workers:
    """The page ``/ui/workers``."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def show(self, request: Request, viewer: Viewer) -> Response:
        """All of them, those that live first."""
        read_query(request, {})
        processes = await self._house.sight.processes(viewer.caller)
        return render(request, viewer, "workers.html", processes=processes)
