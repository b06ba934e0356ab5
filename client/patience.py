"""When a request is sent again, how often, and until when."""

import time
from collections.abc import Callable

from ..core.backoff import Pause
from ..core.errors import UnansweredError
from .exchange import Answer, Conversation, Lost, Open, Request, exchange, pause
from .refusal import error_of

TOO_FAST = 429
AWAY = (502, 503, 504)
"""From the intake, or from what stands before it: whether it was carried out is not known."""

LATER = (TOO_FAST, 503)
"""What a line of a batch is answered that is to be sent again."""


class Patience:
    """How long the client at ``server`` asks again: ``seconds``, from the first answer that is missing on.

    ``on_wait`` is told why it waits, before each pause.
    """

    def __init__(
        self,
        server: str,
        seconds: float,
        on_wait: Callable[[str], object] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = server
        self.seconds = seconds
        self.clock = clock
        self._on_wait = on_wait

    def ask(
        self, request: Request | Open, *, also: frozenset[int] = frozenset(), key: str | None = None
    ) -> Conversation[Answer]:
        """The answer to ``request``: 2xx, or a status of ``also``; every other is raised as an ``IntakeError``.

        A request that stays without an answer is sent again, and so is one that came too fast (429), that meets a
        server which is away (502, 503, 504) or a key in somebody's hands (409 with ``Retry-After``). Raises
        ``UnansweredError``, with ``key``, when patience is at its end.
        """
        wait = Wait(self)
        asked = request.request if isinstance(request, Open) else request
        has_been_sent = False
        while True:
            reply = yield from exchange(request)
            if isinstance(reply, Lost):
                reason, after, was_sent, error = reply.reason, 0.0, reply.was_sent, None
            elif 200 <= reply.status < 300 or reply.status in also:
                return reply
            else:
                error = error_of(self.server, reply)
                reason, after, was_sent = f"{reply.status} {reply.text[:300]}", reply.retry_after, reply.status in AWAY
                if not (reply.status in AWAY or reply.status == TOO_FAST or (reply.status == 409 and after)):
                    raise error
            has_been_sent |= was_sent
            if (was_sent and not asked.is_repeatable) or not (yield from wait(reason, after)):
                if isinstance(reply, Answer) and reply.status == 409 and error:
                    raise error
                raise self.unanswered(reason, may_have_happened=has_been_sent, key=key) from error

    def within(self, seconds: float) -> "Patience":
        """The same for no longer than ``seconds``."""
        return Patience(self.server, max(0.0, min(self.seconds, seconds)), self._on_wait, self.clock)

    def unanswered(self, reason: str, *, may_have_happened: bool, key: str | None = None) -> UnansweredError:
        """The error at its end."""
        return UnansweredError(f"the intake at {self.server}", reason, may_have_happened=may_have_happened, key=key)

    def tell(self, reason: str) -> None:
        """Say why there is a pause now."""
        self._on_wait(reason)


class Wait:
    """Growing pauses between the tries of one thing, until patience is at its end."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.renew()

    def renew(self) -> None:
        """It goes on: from now on patience is as long as it was."""
        self._pause = Pause()
        self._end: float | None = None

    def __call__(self, reason: str, after: float = 0.0) -> Conversation[bool]:
        """Pause, for ``after`` seconds at least; false if it is no use."""
        now = self._patience.clock()
        self._end = now + self._patience.seconds if self._end is None else self._end
        left = self._end - now
        if left <= 0 or after > left:
            return False
        self._patience.tell(reason)
        yield from pause(min(max(self._pause.next(), after), left))
        return True
