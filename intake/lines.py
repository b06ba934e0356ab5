"""Lines of a body that comes in pieces."""


class Splitter:
    """Cuts pieces into lines, which end with a newline, wherever the pieces were cut.

    Of a line with more than ``limit`` bytes nothing is kept: it is ``None``.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._is_too_long = False

    def feed(self, piece: bytes) -> list[bytes | None]:
        """The lines that end in ``piece``, without their newlines."""
        first, *others = piece.split(b"\n")
        self._keep(first)
        if not others:
            return []
        lines: list[bytes | None] = [self._take()]
        self._keep(others.pop())
        lines += [line if len(line) <= self._limit else None for line in others]
        return lines

    def end(self) -> list[bytes | None]:
        """The last line, if it has no newline."""
        return [self._take()] if self._rest or self._is_too_long else []

    def _keep(self, part: bytes) -> None:
        if self._is_too_long or len(self._rest) + len(part) > self._limit:
            self._is_too_long = True
            self._rest.clear()
        else:
            self._rest += part

    def _take(self) -> bytes | None:
        line = None if self._is_too_long else bytes(self._rest)
        self._rest.clear()
        self._is_too_long = False
        return line
