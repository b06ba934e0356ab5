"""A batch: tasks that are accepted while the lines that ask for them still come.

What it takes of the process does not grow with the body: a group of lines is read, counted, accepted and answered
before the next one is, and nothing is read meanwhile. What is kept is the answers. They are sent when all has been
read, for many a client reads nothing before it has sent everything.

Until a line has been accepted, whatever goes wrong refuses the whole. From then on nothing may hide that: the answer is
200, and says of each line what became of it. See docs/decisions/0018-a-batch-is-accepted-as-it-comes.md.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..core import metrics
from ..core.settings import Settings
from ..core.telemetry import trace_id
from ..outbox.submit import Accepted, Submission
from .answers import ndjson
from .auth import Guard, caller_of
from .endpoint import NDJSON
from .keyring import Caller
from .lines import Splitter
from .pressure import Pressure
from .problems import Problem, fault, malformed
from .quota import refusal
from .requests import LARGE, check_head, submissions, too_large
from .submit import Submitter, problem_of
from .transaction import as_problem
from .validation import PayloadSchemas

log = logging.getLogger(__name__)

LINES = 10_000
"""Lines of one batch, empty ones among them: a body of nothing but newlines must cost no more than one of tasks."""

GROUP, GROUP_BYTES = 500, 512 * 1024
"""Lines, or bytes of them, with which a group is full. Half of what shares a commit, so that others find room there."""

LetIn = Callable[[Submission, Caller, int], Submission]
"""A submission as it is accepted from a caller who has brought so many like it at once; raises a ``Problem``."""


class Batches:
    """Accepts batches."""

    def __init__(
        self,
        settings: Settings,
        guard: Guard,
        pressure: Pressure,
        schemas: PayloadSchemas,
        submitter: Submitter,
        let_in: LetIn,
    ) -> None:
        self.settings = settings
        self.guard = guard
        self.pressure = pressure
        self.schemas = schemas
        self.submitter = submitter
        self.let_in = let_in

    async def answer(self, request: Request) -> Response:
        """The answer to the batch that ``request`` brings. Raises a ``Problem`` if none of it was accepted."""
        check_head(request, media_type=NDJSON, limit=self.settings.batch_limit)
        if "idempotency-key" in request.headers:
            raise malformed("a batch has no key of its own, but one for each line: its member idempotency_key")
        try:
            return await _Batch(self, request).answer()
        except ClientDisconnect as error:
            raise malformed("the connection ended before the body did") from error


class _Batch:
    """One batch, from its first line to its last answer."""

    def __init__(self, batches: Batches, request: Request) -> None:
        self._batches = batches
        self._request = request
        self._caller = caller_of(request)
        self._limit = batches.settings.batch_limit
        self._body = request.stream()
        self._size = 0
        self._lines = 0
        """Lines that have come, to their newline."""
        self._group: list[tuple[int, bytes | None]] = []
        self._group_bytes = 0
        self._has_accepted = False
        self._missing = 0
        """Lines beyond the rate of the caller's key."""
        self._trouble: Problem | None = None
        """Why nothing more is tried: Postgres is away."""
        self._answers: list[bytes] = []
        self._headers: dict[str, str] = {}

    async def answer(self) -> Response:
        try:
            await self._read()
        except Problem as problem:
            if self._has_accepted:
                if self._group:
                    await self._take()
                self._answers.append(ndjson([self._refused(self._lines + 1, problem) | {"rest": True}]))
                self._headers["Connection"] = "close"
            await self._drop_rest()
            if not self._has_accepted:
                raise
        return Response(b"".join(self._answers), media_type=NDJSON, headers=self._headers)

    async def _read(self) -> None:
        """Take all lines, group by group. Raises a ``Problem`` if nothing was accepted, or it cannot be read on."""
        splitter = Splitter(self._batches.settings.body_limit)
        async for piece in self._body:
            within = piece[: self._limit - self._size]
            self._size += len(piece)
            await self._add(splitter.feed(within))
            if self._size > self._limit:
                raise too_large(f"the body has more than {self._limit:,} bytes")
        await self._add(splitter.end())
        if self._group or not self._answers:
            await self._take()

    async def _add(self, lines: list[bytes | None]) -> None:
        for line in lines:
            if self._lines == LINES:
                raise too_large(f"the batch has more than {LINES:,} lines")
            self._lines += 1
            if line is None or line.strip():
                self._group.append((self._lines, line))
                self._group_bytes += len(line or b"")
                if len(self._group) >= GROUP or self._group_bytes >= GROUP_BYTES:
                    await self._take()

    async def _take(self) -> None:
        """Accept the lines of the group, and keep the answers. Raises a ``Problem`` if nothing was accepted so far."""
        group, size, self._group, self._group_bytes = self._group, self._group_bytes, [], 0
        problem = self._trouble
        if problem is None:
            try:
                self._answers.append(ndjson(await self._accept(group, size)))
                return
            except Exception as error:
                if not self._has_accepted:
                    raise as_problem(error) from error
                problem = self._as_told(error)
        self._answers.append(ndjson([self._refused(number, problem) for number, _ in group]))

    async def _accept(self, group: list[tuple[int, bytes | None]], size: int) -> list[dict[str, Any]]:
        """The answers to the lines of ``group``, which has ``size`` bytes."""
        granted = await self._batches.guard.count(self._request, len(group))
        beyond = self._beyond(len(group) - granted)
        if beyond and not granted and not self._has_accepted:
            raise beyond
        read = partial(
            submissions,
            [line for _, line in group[:granted]],
            limit=self._batches.settings.body_limit,
            traceparent=self._request.headers.get("traceparent"),
            schemas=await self._batches.schemas.current(),
        )
        lines = self._let_in(await asyncio.to_thread(read) if size > LARGE else read())
        answers = iter(await self._submit([line for line in lines if isinstance(line, Submission)]))
        told = [
            self._refused(number, line) if isinstance(line, Problem) else self._told(number, next(answers))
            for (number, _), line in zip(group, lines, strict=False)
        ]
        return told + [self._refused(number, beyond) for number, _ in group[granted:] if beyond]

    def _beyond(self, missing: int) -> Problem | None:
        """What is said to so many lines that are beyond the rate of the caller's key."""
        if not missing:
            return None
        self._missing += missing
        return refusal(self._caller, self._request.state.grant, missing=self._missing)

    def _let_in(self, lines: list[Submission | Problem]) -> list[Submission | Problem]:
        """``lines`` as they are accepted from the caller; one that is not let in is its problem."""
        before: Counter[str] = Counter()
        let_in: list[Submission | Problem] = []
        for line in lines:
            if isinstance(line, Submission):
                try:
                    line = self._batches.let_in(line, self._caller, before[line.pipeline])
                    before[line.pipeline] += 1
                except Problem as problem:
                    line = problem
            let_in.append(line)
        return let_in

    async def _submit(self, asked: list[Submission]) -> list[Accepted | Problem]:
        """What became of ``asked``, once it is committed. Raises an error if nothing was accepted so far."""
        answers = await self._batches.submitter.submit_many(asked)
        accepted = [answer for answer in answers if isinstance(answer, Accepted)]
        self._has_accepted |= bool(accepted)
        self._batches.pressure.note_accepted(answer.pipeline for answer in accepted if not answer.is_replay)
        problems: dict[Exception, Problem] = {}
        for error in answers:
            if isinstance(error, Exception) and error not in problems:
                if not self._has_accepted:
                    raise error
                problems[error] = self._as_told(error)
        return [
            answer
            if isinstance(answer, Accepted)
            else problems[answer]
            if isinstance(answer, Exception)
            else problem_of(answer)
            for answer in answers
        ]

    def _told(self, number: int, answer: Accepted | Problem) -> dict[str, Any]:
        if isinstance(answer, Problem):
            return self._refused(number, answer)
        told = {
            "line": number,
            "task_id": str(answer.task_id),
            "pipeline": answer.pipeline,
            "status": 202,
            "created_at": answer.created_at.isoformat(),
            "trace_id": trace_id(answer.traceparent),
        }
        return told | {"replayed": True} if answer.is_replay else told

    def _as_told(self, error: Exception) -> Problem:
        """``error`` as lines are told of it. When Postgres is away, no more is tried: each try could take its time."""
        problem = as_problem(error)
        if not isinstance(problem, Problem):
            log.error("lines of a batch met a fault of ours", exc_info=error)
            return fault()
        if problem.status is HTTPStatus.SERVICE_UNAVAILABLE:
            self._trouble = problem
        return problem

    def _refused(self, number: int, problem: Problem) -> dict[str, Any]:
        """``problem`` as the answer to a line; when to come again is said in the head, the latest of all lines."""
        if after := problem.headers.get("Retry-After"):
            self._headers["Retry-After"] = max(after, self._headers.get("Retry-After", "0"), key=int)
        metrics.rejected(problem.slug)
        return {"line": number} | problem.body()

    async def _drop_rest(self) -> None:
        """Read to the end of the body and keep nothing: who still sends does not hear of an answer. Not for ever."""
        with suppress(Problem, ClientDisconnect, TimeoutError):
            async with asyncio.timeout(self._batches.settings.request_time.total_seconds()):
                async for _ in self._body:
                    pass
