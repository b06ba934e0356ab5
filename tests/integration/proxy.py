"""A way to Redis on which chosen replies are lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit


class LossyProxy:
    """Stands between a client and Redis, at ``url``.

    While ``to_lose`` is above 0, each command that holds ``word`` is carried out, but its reply is lost and with it the
    connection. ``lost`` counts them.
    """

    def __init__(self, url: str) -> None:
        self._upstream = urlsplit(url)
        self.url = ""
        self.lost = 0
        self._word = b""
        self._to_lose = 0
        self._ways: list[asyncio.Task[None]] = []

    def lose(self, word: str, times: int = 1) -> None:
        """Lose the replies to the next commands that hold ``word``."""
        self._word, self._to_lose = word.encode(), times

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["LossyProxy"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        location = self._upstream.netloc.rpartition(":")[0]
        self.url = urlunsplit(self._upstream._replace(netloc=f"{location}:{port}"))
        async with server:
            yield self
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._upstream.hostname is not None
        assert self._upstream.port is not None
        server_reader, server_writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        is_doomed = False

        async def ask() -> None:
            nonlocal is_doomed
            while data := await reader.read(65536):
                if self._to_lose > 0 and self._word in data.lower():
                    self._to_lose -= 1
                    is_doomed = True
                server_writer.write(data)

        async def answer() -> None:
            while data := await server_reader.read(65536):
                if is_doomed:
                    self.lost += 1
                    return
                writer.write(data)

        ways = [asyncio.create_task(ask()), asyncio.create_task(answer())]
        self._ways += ways
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, server_writer):
            end.close()
        await asyncio.gather(*ways, return_exceptions=True)
