"""Requests that would like another protocol are answered in this one, body and all, as HTTP has it (RFC 9110, 7.8).

Java's HttpClient asks for HTTP/2 until it has got it. Uvicorn's parser in C takes what comes after the head of such a
request for the other protocol, and the body is gone: so that head is parsed again without its wish.
"""

import sys
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def staying(protocol: type[Any]) -> type[Any]:
    """``protocol``, one of uvicorn's for HTTP, which never moves on to another one."""
    return _staying_in_python(protocol) if issubclass(protocol, H11Protocol) else _staying_in_c(protocol)


def _staying_in_python(protocol: type[Any]) -> type[Any]:
    class Staying(protocol):  # type: ignore[misc]
        def _should_upgrade(self) -> bool:
            return False

    return Staying


def _staying_in_c(protocol: type[Any]) -> type[Any]:
    class Staying(protocol):  # type: ignore[misc]
        def data_received(self, data: bytes) -> None:
            while data:
                self._data, self._again = data, b""
                super().data_received(data)
                data = self._again

        def _should_upgrade(self) -> bool:
            # To the parser CONNECT is a wish too; but nobody means us by it, and its answer is 405.
            return bool(self.parser.should_upgrade()) and self.scope["method"] != "CONNECT"

        def handle_websocket_upgrade(self) -> None:
            # Called by uvicorn while it handles what the parser has raised, which says where the head ends.
            error = sys.exception()
            assert error is not None
            version = self.parser.get_http_version().encode()
            lines = [b"%s %s HTTP/%s" % (self.scope["method"].encode(), self.url, version)]
            lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
            self._again = b"\r\n".join([*lines, b"", self._data[error.args[0] :]])

    return Staying
