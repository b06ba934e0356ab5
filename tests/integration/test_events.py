"""A task's journey as Server-Sent Events: live, resumed, and ended by the task, the client or the server."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import httpx2
import pytest

from postroad import Settings
from postroad.core.event import Event
from postroad.intake import stream, views
from postroad.intake import watch as watching
from postroad.intake.app import create_app
from postroad.intake.watch import Bookmark, read_news
from postroad.outbox.append import append
from postroad.testing.traffic import until
from tests.integration.door import open_port, problem
from tests.integration.road import TRAVEL, Road, die, open_road

SSE = {"Accept": "text/event-stream"}
WHOLE = ["TaskCreated", "StageCompleted:pack", "StageCompleted:ride", "StageCompleted:rest"]


@dataclass(frozen=True, slots=True)
class Message:
    """One event of a stream as a browser has it."""

    id: str | None
    kind: str
    data: dict[str, object]

    @property
    def name(self) -> str:
        """With the stage that it tells of."""
        return str(self.data.get("type", self.kind))


@dataclass(frozen=True, slots=True)
class Server:
    """A door behind uvicorn, the road behind it, and a client."""

    client: httpx2.AsyncClient
    road: Road

    @contextlib.asynccontextmanager
    async def follow(self, task_id: UUID, last: str | None = None) -> AsyncIterator[AsyncIterator[Message]]:
        """The journey of a task, as it comes."""
        headers = SSE | ({} if last is None else {"Last-Event-ID": last})
        async with self.client.stream("GET", f"/v1/tasks/{task_id}/events", headers=headers) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield messages(answer)

    async def all_of(self, task_id: UUID, last: str | None = None) -> list[Message]:
        """What a stream brings until it ends by itself."""
        async with self.follow(task_id, last) as following:
            return [message async for message in following]


async def messages(answer: httpx2.Response) -> AsyncIterator[Message]:
    """What a stream brings, without its comments."""
    fields: dict[str, str] = {}
    async for text in answer.aiter_lines():
        if text and not text.startswith(":"):
            name, _, value = text.partition(": ")
            fields[name] = value
        elif not text:
            if "data" in fields:
                yield Message(fields.get("id"), fields["event"], json.loads(fields["data"]))
            fields = {}


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[Server]:
    """A door on a port: only over a real connection do streams come piece by piece."""
    async with open_road(settings, TRAVEL) as road:
        app = create_app(settings)
        async with open_port(app) as port:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                yield Server(client, road)
            app.state.stop()


# From the first event to the last


async def test_a_journey_that_is_over_is_told_and_ends(server: Server) -> None:
    task_id = await server.road.accept()
    await server.road.complete(task_id)
    plain = (await server.client.get(f"/v1/tasks/{task_id}/events")).json()

    told = await server.all_of(task_id)

    *events, end = told
    assert [event.data for event in events] == plain["events"]
    assert [event.name for event in events][:2] == WHOLE[:2]
    assert [event.kind for event in events][:2] == ["TaskCreated", "StageCompleted"]
    assert [(event.id or "").partition("-")[0] for event in events] == [str(one["position"]) for one in plain["events"]]
    assert (end.id, end.kind, end.data) == (None, "end", {"task_id": str(task_id), "status": "completed"})


async def test_a_journey_is_told_as_it_goes(server: Server) -> None:
    task_id = await server.road.accept()

    async with server.follow(task_id) as following:
        assert (await anext(following)).name == "TaskCreated"
        for stage in ("pack", "ride"):
            await server.road.commit(task_id, stage)
            assert (await anext(following)).name == f"StageCompleted:{stage}"
        for stage in ("rest", "arrive"):
            await server.road.commit(task_id, stage)
        rest = [message.name async for message in following]

    assert rest == [*(await server.road.events(task_id))[3:], "end"]


async def test_a_stream_may_be_cached_by_nobody(server: Server) -> None:
    task_id = await die(server.road, "ride")

    answer = await server.client.get(
        f"/v1/tasks/{task_id}/events", headers={"Accept": "text/html, Text/Event-Stream;q=0.9"}
    )

    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.text.startswith("retry: 3000\n\n")
    assert '"status":"failed"' in answer.text


async def test_who_does_not_ask_for_a_stream_gets_json(server: Server) -> None:
    task_id = await server.road.accept()

    for accept in ("*/*", "application/json", "text/*"):
        answer = await server.client.get(f"/v1/tasks/{task_id}/events", headers={"Accept": accept})
        assert answer.json()["events"][0]["type"] == "TaskCreated"


async def test_a_head_of_a_stream_does_not_follow_it(server: Server) -> None:
    answer = await server.client.head(f"/v1/tasks/{await server.road.accept()}/events", headers=SSE)

    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")


# Resuming


async def test_a_stream_goes_on_after_any_event(server: Server) -> None:
    task_id = await server.road.accept()
    await server.road.complete(task_id)
    told = await server.all_of(task_id)

    for place, message in enumerate(told[:-2], start=1):
        assert await server.all_of(task_id, message.id) == told[place:]
    # The number of the position is enough, as other lists give it.
    assert await server.all_of(task_id, str(told[1].data["position"])) == told[2:]


async def test_who_has_heard_all_of_a_task_that_has_ended_need_not_ask_again(server: Server) -> None:
    task_id = await server.road.accept()
    await server.road.complete(task_id)
    last = (await server.all_of(task_id))[-2].id or ""

    answer = await server.client.get(f"/v1/tasks/{task_id}/events", headers=SSE | {"Last-Event-ID": last})

    assert (answer.status_code, answer.content) == (204, b"")


async def test_a_client_that_connects_again_and_again_hears_each_event_once(server: Server) -> None:
    task_id = await server.road.accept()
    heard: list[Message] = []

    async def listen() -> None:
        last: str | None = None
        while not heard or heard[-1].kind != "end":
            async with server.follow(task_id, last) as following:
                async for message in following:
                    heard.append(message)
                    last = message.id or last
                    break

    listening = asyncio.create_task(listen())
    for stage in TRAVEL.graph():
        await server.road.commit(task_id, stage)
        await until(lambda: has_heard(heard, f"StageCompleted:{stage}"))  # noqa: B023 - awaited at once
    with contextlib.suppress(httpx2.HTTPError, AssertionError):  # 204 when "end" has been missed
        await listening

    names = [message.name for message in heard if message.kind != "end"]
    assert names == await server.road.events(task_id)


async def has_heard(heard: list[Message], name: str) -> bool:
    """True once an event has come."""
    return any(message.name == name for message in heard)


async def test_what_is_committed_late_is_told_late_and_once(server: Server) -> None:
    road = server.road
    task_id = await road.accept()
    await road.commit(task_id, "pack")

    async with server.follow(task_id) as following:
        assert [(await anext(following)).name for _ in range(2)] == ["TaskCreated", "StageCompleted:pack"]
        async with road.engine.begin() as connection:
            # Its positions are below those of what is committed meanwhile.
            await append(connection, *(Event(f"Late{letter}", task_id, "travel") for letter in "AB"))
            await road.commit(task_id, "ride")
            ride = await anext(following)
            assert ride.name == "StageCompleted:ride"
        late = [await anext(following) for _ in range(2)]
        await road.commit(task_id, "rest")
        rest = await anext(following)

    assert [message.name for message in late] == ["LateA", "LateB"]
    assert [message.id for message in late] == [None, late[1].id]
    assert int(str(late[1].data["position"])) < int(str(ride.data["position"]))
    assert rest.name == "StageCompleted:rest"
    # Who had not heard of them when the connection broke hears of them then; who had, does not.
    await road.commit(task_id, "arrive")
    tail = [message.name for message in await server.all_of(task_id, rest.id)]
    assert [message.name for message in await server.all_of(task_id, ride.id)] == [
        "LateA", "LateB", "StageCompleted:rest", *tail,
    ]  # fmt: skip
    assert [message.name for message in await server.all_of(task_id, late[1].id)] == ["StageCompleted:rest", *tail]


async def test_an_event_that_began_last_and_was_numbered_first_is_not_lost(server: Server) -> None:
    road = server.road
    task_id = await road.accept()
    begun, other = await road.engine.connect(), await road.engine.connect()
    await begun.exec_driver_sql("select pg_current_xact_id()")
    await append(other, Event("Early", task_id, "travel"))
    await append(begun, Event("Middle", task_id, "travel"))
    await begun.commit()
    async with server.follow(task_id) as following:
        assert [(await anext(following)).name for _ in range(2)] == ["TaskCreated", "Middle"]
        await other.commit()
        assert (await anext(following)).name == "Early"
    for connection in (begun, other):
        await connection.close()


async def test_an_event_of_a_transaction_that_came_to_nothing_is_not_told(server: Server) -> None:
    road = server.road
    task_id = await road.accept()
    async with road.engine.connect() as connection:
        await append(connection, Event("NeverWas", task_id, "travel"))
        await road.commit(task_id, "pack")
        async with road.engine.connect() as other:
            (news,) = await read_news(other, [(task_id, Bookmark())], road.settings.schema)
        await connection.rollback()
    await road.complete(task_id)

    assert news is not None
    names = [message.name for message in await server.all_of(task_id, str(news.bookmark))]
    assert names == [*(await road.events(task_id))[2:], "end"]


def test_a_bookmark_is_written_and_read(subtests: pytest.Subtests) -> None:
    for bookmark, written in (
        (Bookmark(), "0"),
        (Bookmark(17), "17"),
        (Bookmark(17, "740:740:"), "17-740"),
        (Bookmark(17, "735:740:735,738"), "17-740-735-738"),
    ):
        with subtests.test(written=written):
            assert str(bookmark) == written
            assert Bookmark.parse(written) == bookmark
    # What nobody was given, but what Postgres must not stumble over.
    assert Bookmark.parse("17-740-800-738-735-738") == Bookmark(17, "735:740:735,738")


# What is refused


async def test_what_cannot_be_followed_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    path = f"/v1/tasks/{await server.road.accept()}/events"

    problem(await server.client.get(f"/v1/tasks/{uuid4()}/events", headers=SSE), 404, "not-found")
    problem(await server.client.get("/v1/tasks/x/events", headers=SSE), 404, "not-found")
    for last in ("x", "-1", "1-", "1-x", "9" * 30, "1--2", "1-0", "1" + "-1" * 1001):
        with subtests.test(last=last[:20]):
            answer = await server.client.get(path, headers=SSE | {"Last-Event-ID": last})
            assert "Last-Event-ID" in problem(answer, 400, "malformed")["detail"]
    monkeypatch.setattr(views, "STREAMS", 0)
    answer = await server.client.get(path, headers=SSE)
    problem(answer, 503, "full")
    assert answer.headers["retry-after"]


async def test_a_stream_that_has_ended_makes_room(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "STREAMS", 1)
    monkeypatch.setattr(stream, "PING", 0.2)
    task_id = await server.road.accept()
    async with server.follow(task_id) as following:
        await anext(following)
        problem(await server.client.get(f"/v1/tasks/{task_id}/events", headers=SSE), 503, "full")

    async def has_room() -> bool:
        async with server.client.stream("GET", f"/v1/tasks/{task_id}/events", headers=SSE) as answer:
            return answer.status_code == 200

    await until(has_room)


# Silence, and the end


async def test_a_stream_without_news_shows_that_it_lives(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PING", 0.2)
    task_id = await server.road.accept()

    async with server.client.stream("GET", f"/v1/tasks/{task_id}/events", headers=SSE) as answer:
        async for text in answer.aiter_lines():
            if text.startswith(":"):
                break

    assert text == ": still here"


async def test_a_server_that_stops_ends_its_streams(settings: Settings) -> None:
    async with open_road(settings, TRAVEL) as road:
        task_id = await road.accept()
        app = create_app(settings)
        began = time.monotonic()
        async with (
            open_port(app) as port,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
            Server(client, road).follow(task_id) as following,
        ):
            await anext(following)
            app.state.stop()
            assert [message async for message in following] == []
        assert time.monotonic() - began < stream.PING


async def test_streams_outlive_a_postgres_that_is_away_for_a_while(server: Server) -> None:
    road = server.road
    task_id = await road.accept()
    async with server.follow(task_id) as following:
        await anext(following)
        await road.ask(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        await asyncio.sleep(2 * watching.INTERVAL)

        async def is_packed() -> bool:
            try:
                await road.commit(task_id, "pack")
            except Exception:
                return False
            return True

        await until(is_packed)
        assert (await anext(following)).name == "StageCompleted:pack"
