"""The dashboard over HTTP: its pages, who may see and do what, and what it says when something is wrong."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from typing import Any
from uuid import UUID

import httpx2
import pytest
from sqlalchemy import text

from postroad import Reject, Retry, Settings
from postroad.core.task import new_task_id
from postroad.dashboard import pace, reader
from postroad.dashboard.app import Dashboard
from postroad.dashboard.render import POLICY, span
from postroad.intake.dead_letters import Selection
from postroad.intake.keys import create, revoke
from postroad.intake.problems import Problem
from postroad.outbox.process import Registration, Role
from postroad.testing.traffic import until
from tests.integration.door import open_door
from tests.integration.road import TRAVEL, Road, die, open_road, pipeline

OTHER = pipeline("other", begin=())
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'`&"

FROM_RIDE: dict[str, Any] = {"from": "ride"}

Client = httpx2.AsyncClient


@pytest.fixture
async def ui(settings: Settings, road: Road) -> AsyncIterator[Client]:
    """A browser without a key, on this machine."""
    async with open_door(settings, beside=Dashboard, base_url="http://localhost:8080") as client:
        yield client


class Marks(HTMLParser):
    """Fails at whatever a page should not have, and the policy would forbid anyway."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag not in ("style", "img", "iframe", "object", "base"), tag
        assert tag != "script" or (given.get("src") or "").startswith("/ui/static/")
        assert not [name for name in given if name.startswith("on") or name == "style"], given
        assert not re.match(r"\s*(javascript|data):", given.get("href") or given.get("action") or ""), given


async def page(client: Client, path: str, status: int = 200) -> str:
    """The page at ``path``; every page must have what keeps others out."""
    answer = await client.get(path)
    assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:500]}"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    Marks().feed(answer.text)
    return answer.text


async def send(client: Client, at: str, to: str | None = None, status: int = 303, **fields: Any) -> httpx2.Response:
    """Open the page ``at`` and send a form of it ``to`` an address, as a browser does."""
    token = re.search(r'name="token" value="([0-9a-f]{64})"', (await client.get(at)).text)
    assert token, f"there is no form on {at}"
    headers = {"Sec-Fetch-Site": "same-origin"}
    answer = await client.post(to or at, data={"token": token[1]} | fields, headers=headers)
    assert answer.status_code == status, f"{answer.status_code} {answer.text[:500]}"
    return answer


async def log_in(client: Client, road: Road, *scopes: str, name: str = "ada", **options: Any) -> str:
    """Log in with a new key of these scopes; its id."""
    async with road.engine.begin() as connection:
        key, row = await create(connection, name, scopes, by="test", **options)
    await send(client, "/ui/login", key=key)
    return str(row["key_id"])


async def last_data(road: Road, task_id: UUID, event: str) -> dict[str, Any]:
    ((data,),) = await road.ask(
        "select data from postroad.outbox where task_id = :task and type = :type order by position desc limit 1",
        task=task_id, type=event,
    )  # fmt: skip
    return dict(data)


async def fill(road: Road) -> dict[str, UUID]:
    """Tasks in every state."""
    tasks = {"pending": await road.accept(), "completed": await road.accept(), "retrying": await road.accept()}
    await road.complete(tasks["completed"])
    await road.commit(tasks["retrying"], "pack", Retry("no luck", after=3600))
    tasks["failed"] = await die(road, "ride")
    tasks["cancelled"] = await road.accept()
    await road.ask('update postroad.task set labels = \'{"team": "blue"}\' where task_id = :task', task=tasks["failed"])
    return tasks


# Pages


async def test_every_link_of_every_page_answers(ui: Client, road: Road) -> None:
    await fill(road)
    async with Registration(road.engine, road.settings.schema, Role.STAGE, stages=["travel.pack"]):
        await until(lambda: is_there(road, "process"))
        seen: set[str] = set()
        left = {"/ui/"}
        while left:
            path = left.pop()
            seen.add(path)
            html = await page(ui, path)
            found = {unescape(one) for one in re.findall(r'(?:href|src|action)="(/ui/[^"]*)"', html)}
            assert set(re.findall(r'(?:href|src|action)="([^"/#][^"]*)"', html)) == set()
            for asset in {one for one in found if "/static/" in one}:
                assert (await ui.get(asset)).headers["cache-control"].endswith("immutable")
            posts = {unescape(one) for one in re.findall(r'method="post" action="([^"]*)"', html)}
            left |= {one for one in found - posts - seen if "/static/" not in one and one != "/ui/find"}

    parts = {re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", one.partition("?")[0]) for one in seen}
    assert parts >= {
        "/ui/", "/ui/tasks", "/ui/tasks/ID", "/ui/tasks/ID/retry", "/ui/tasks/ID/cancel", "/ui/failures",
        "/ui/failures/group", "/ui/failures/requeue", "/ui/failures/discard", "/ui/stages", "/ui/stages/travel/pack",
        "/ui/workers",
    }  # fmt: skip


async def is_there(road: Road, table: str) -> bool:
    return bool((await road.count(table))[table])


async def test_what_tasks_say_is_shown_and_never_run(ui: Client, road: Road) -> None:
    task_id = await road.accept(payload={"name": HOSTILE, HOSTILE: 1})
    await road.ask("update postroad.task set labels = jsonb_build_object('name', cast(:x as text))", x=HOSTILE)
    await road.commit(task_id, "pack", Reject(HOSTILE))

    paths = ["/ui/", "/ui/tasks", f"/ui/tasks/{task_id}", "/ui/failures", "/ui/failures/group?pipeline=travel"]
    paths += [f"/ui/tasks?q={HOSTILE}".replace("&", "%26").replace("#", "%23"), "/ui/failures/requeue?pipeline=travel"]
    for path in paths:
        html = await page(ui, path)
        assert "<script>alert" not in html
        assert "<img" not in html
        assert "&lt;script&gt;alert" in html


async def test_numbers_are_shown_as_they_are_stored(ui: Client, road: Road) -> None:
    task_id = await road.accept(payload=1)
    exact = "123456789012345678901234567890.12345678901234567890"
    await road.complete(task_id)
    await road.ask("update postroad.task set payload = cast(:x as jsonb)", x=f'{{"large": {exact}, "one": 1.10}}')
    await road.ask("update postroad.stage_run set result = cast(:x as jsonb) where stage = 'pack'", x=f"[{exact}]")

    html = await page(ui, f"/ui/tasks/{task_id}")

    assert html.count(exact) >= 2
    assert "1.10" in html


async def test_a_long_payload_is_cut(ui: Client, road: Road) -> None:
    task_id = await road.accept(payload="x" * 300_000)

    html = await page(ui, f"/ui/tasks/{task_id}")

    assert len(html) < 150_000
    assert "100,000 of 300,002 characters" in html


async def test_the_page_of_a_task_tells_its_journey(ui: Client, road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack", Retry("the lid does not fit"))
    await road.commit(task_id, "pack")
    await road.commit(task_id, "ride", Reject("no road"))
    await road.ask(
        "update postroad.outbox set data = data || cast(:log as jsonb) where type = 'StageDead'",
        log='{"log": ["looked for a road", "found <b>none</b>"]}',
    )

    html = await page(ui, f"/ui/tasks/{task_id}")

    assert re.findall(r'class="leg (\w+) (\w+)"', html) == [
        ("accepted", "accepted"), ("attempt", "failed"), ("attempt", "done"), ("attempt", "dead"), ("ended", "failed"),
    ]  # fmt: skip
    assert "the lid does not fit" in html
    assert "looked for a road\nfound &lt;b&gt;none&lt;/b&gt;</pre>" in html
    assert re.search(r'class="why failed"><p><strong>ride</strong> is a dead letter since .*: no road\.</p>', html)
    assert f"task_id = &#39;{task_id}&#39;" in html


async def test_the_earlier_events_of_a_long_journey_are_on_pages_of_their_own(ui: Client, road: Road) -> None:
    task_id = await road.accept()
    await road.ask(
        "insert into postroad.outbox (task_id, pipeline, type, data)"
        " select :task, 'travel', 'Note', jsonb_build_object('n', n) from generate_series(1, 400) as n",
        task=task_id,
    )

    html = await page(ui, f"/ui/tasks/{task_id}")
    earlier = re.search(r'href="([^"]*before=\d+)"', html)
    assert earlier
    before = await page(ui, unescape(earlier[1]))

    shown = [int(one) for part in (before, html) for one in re.findall(r"\{&#34;n&#34;: (\d+)\}", part)]
    assert shown == list(range(1, 401))


async def test_the_search_leads_to_a_task_by_any_of_its_ids(ui: Client, road: Road) -> None:
    task_id = await road.accept(key="order-1")
    await road.accept()
    ((trace,),) = await road.ask("select trace_id from postroad.task where task_id = :task", task=task_id)

    for q in (str(task_id), str(task_id).upper(), " order-1 ", trace):
        answer = await ui.get("/ui/find", params={"q": q})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/tasks/{task_id}")
    answer = await ui.get("/ui/find", params={"q": "nobody"})
    assert answer.headers["location"] == "/ui/tasks?q=nobody"
    assert "never accepted here" in await page(ui, "/ui/tasks?q=nobody")


async def test_lists_go_on_page_by_page(ui: Client, road: Road) -> None:
    tasks = [await road.accept() for _ in range(7)]
    path: str | None = "/ui/tasks?status=pending&limit=3"
    shown: list[str] = []
    while path:
        html = await page(ui, path)
        shown += re.findall(r'<tr id="t-([^"]+)"', html)
        following = re.search(r'rel="next" href="([^"]+)"', html)
        path = unescape(following[1]) + "&limit=3" if following else None

    assert shown == [str(task) for task in reversed(tasks)]


async def test_fields_of_a_filter_that_are_left_empty_are_none(ui: Client) -> None:
    answer = await ui.get("/ui/tasks?status=failed&pipeline=&label=a:b&label=c:d&q=")

    assert answer.headers["location"] == "/ui/tasks?status=failed&label=a%3Ab&label=c%3Ad"


async def test_the_audit_at_a_glance_holds_for_tasks_in_every_state(ui: Client, road: Road) -> None:
    tasks = await fill(road)
    await send(ui, f"/ui/tasks/{tasks['cancelled']}/cancel")
    await send(ui, f"/ui/tasks/{tasks['completed']}/retry", **FROM_RIDE)
    await road.commit(tasks["completed"], "ride")

    html = await page(ui, "/ui/")

    assert "<strong>0 violations</strong> of 6 invariants" in html
    assert "in 5 tasks" in html


@pytest.mark.parametrize(
    "harm",
    [
        "update postroad.task set stages_done = '{ride}'",
        "update postroad.task set version = version + 1",
        "delete from postroad.outbox where type = 'TaskCreated' and position > 1",
        "update postroad.task set status = 'failed', finished_at = now()",
        "update postroad.task set status = 'completed', finished_at = now()",
    ],
)
async def test_the_audit_at_a_glance_tells_what_does_not_hold(ui: Client, road: Road, harm: str) -> None:
    await road.complete(await road.accept())
    await road.commit(await road.accept(), "pack")

    await road.ask(harm)

    assert not re.search(r"<strong>0 violations", await page(ui, "/ui/"))


# When something is wrong


async def test_what_takes_too_long_is_left_out_and_the_rest_is_shown(
    ui: Client, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(road, "ride")
    monkeypatch.setattr(reader, "PATIENCE", 0.2)
    async with road.engine.begin() as connection:
        await connection.execute(text("lock table postroad.process"))

        overview, workers = await page(ui, "/ui/"), await page(ui, "/ui/workers")

    assert "this took longer than 0.2 s" in overview
    assert 'class="box' in overview
    assert "no road" in overview
    assert "<strong>The processes</strong> could not be had" in workers


async def test_without_postgres_a_page_says_so(settings: Settings) -> None:
    for auth in ("auto", "off"):
        away = replace(settings, database_url="postgresql://localhost:1/none", auth=auth)
        async with open_door(away, beside=Dashboard, base_url="http://localhost") as client:
            html = await page(client, "/ui/tasks", 503)
            assert "Tasks that were answered with 2xx are safe" in html
            assert (await client.get("/ui/static/ui.css")).status_code == 200


async def test_what_is_not_there_is_a_page_that_says_so(ui: Client, road: Road) -> None:
    unknown = await page(ui, f"/ui/tasks/{new_task_id()}", 404)
    assert "never accepted here, or has been pruned" in unknown
    for path in ("/ui/tasks/17", "/ui/nothing", "/ui/stages/travel/none", f"/ui/tasks/{await road.accept()}/explode"):
        await page(ui, path, 404)
    for path in ("/ui/tasks?status=odd", "/ui/tasks?cursor=x", "/ui/tasks?nothing=1", "/ui/failures?stage=%00"):
        await page(ui, path, 400)
    assert (await ui.get("/ui/static/none")).status_code == 404
    assert (await ui.get("/ui")).headers["location"] == "/ui/"


# Who is let in


async def test_without_keys_only_this_machine_is_let_in(ui: Client) -> None:
    html = await page(ui, "/ui/")
    assert "Log out" not in html

    for host in ("evil.example", "localhost.evil.example", "10.0.0.1"):
        assert (await ui.get("/ui/", headers={"Host": host})).status_code == 403
    for host in ("127.0.0.1:9", "[::1]:9", "localhost", "postroad.localhost"):
        assert (await ui.get("/ui/", headers={"Host": host})).status_code == 200


async def test_with_a_key_one_logs_in_and_out(ui: Client, road: Road) -> None:
    async with road.engine.begin() as connection:
        key, _ = await create(connection, "ada", ["read"], by="test")
    await until(lambda: is_refused(ui))
    assert (await ui.get("/ui/tasks?q=1")).headers["location"] == "/ui/login?next=%2Fui%2Ftasks%3Fq%3D1"
    assert (await ui.get("/ui/", headers={"HX-Request": "true"})).headers["hx-redirect"] == "/ui/login"

    answer = await send(ui, "/ui/login?next=/ui/tasks", key=key, next="/ui/tasks")

    assert answer.headers["location"] == "/ui/tasks"
    cookie = next(one for one in answer.headers.get_list("set-cookie") if key in one)
    assert {"HttpOnly", "Max-Age=43200", "Path=/ui", "SameSite=strict"} <= set(cookie.split("; "))
    assert key not in await page(ui, "/ui/tasks")
    # The cookie is for the dashboard; the API has the header.
    assert (await ui.get("/v1/tasks", headers={"Cookie": f"postroad_key={key}"})).status_code == 401

    await send(ui, "/ui/tasks", "/ui/logout")
    assert (await ui.get("/ui/tasks")).status_code == 303


async def is_refused(ui: Client) -> bool:
    return (await ui.get("/ui/")).status_code == 303


async def test_over_https_the_cookies_are_for_https_alone(settings: Settings, road: Road) -> None:
    async with road.engine.begin() as connection:
        key, _ = await create(connection, "ada", ["read"], by="test")
    async with open_door(settings, beside=Dashboard, base_url="https://tasks.example.com") as client:
        answer = await send(client, "/ui/login", key=key)

        assert all("Secure" in one for one in answer.headers.get_list("set-cookie"))


async def test_a_key_that_is_not_good_is_refused(ui: Client, road: Road) -> None:
    await log_in(ui, road, "read")
    await send(ui, "/ui/", "/ui/logout")

    for key in ("", "x", f"prk_{'0' * 12}_{'0' * 48}"):
        answer = await send(ui, "/ui/login", status=403, key=key)
        assert "That key is not good" in answer.text
    assert (await ui.get("/ui/")).status_code == 303


@pytest.mark.parametrize(
    "following", ["//evil.example", "https://evil.example/ui/", "/\\evil.example", "/v1/tasks", "/ui/a b"]
)
async def test_the_login_leads_to_pages_of_ours_alone(ui: Client, road: Road, following: str) -> None:
    async with road.engine.begin() as connection:
        key, _ = await create(connection, "ada", ["read"], by="test")

    answer = await send(ui, "/ui/login", key=key, next=following)

    assert answer.headers["location"] == "/ui/"


async def test_a_key_that_is_revoked_ends_the_session(ui: Client, road: Road) -> None:
    key_id = await log_in(ui, road, "read")
    await page(ui, "/ui/")

    async with road.engine.begin() as connection:
        await revoke(connection, key_id, by="test")

    await until(lambda: is_refused(ui))


async def test_who_may_only_look_is_offered_nothing_and_can_do_nothing(ui: Client, road: Road) -> None:
    task_id = await die(road, "ride")
    await log_in(ui, road, "read")

    for path in (f"/ui/tasks/{task_id}", "/ui/failures/group?pipeline=travel", "/ui/stages/travel/ride"):
        html = await page(ui, path)
        assert not re.search(r'action="/ui/(?!find|logout|tasks"|failures")', html)
        assert "Requeue" not in html
        assert "/cancel" not in html
    for path in (f"/ui/tasks/{task_id}/cancel", "/ui/failures/requeue", "/ui/stages/travel/ride/pause"):
        await send(ui, "/ui/", path, 403)
    assert await road.task(task_id, "status") == ("failed",)


async def test_a_key_to_submit_alone_sees_nothing(ui: Client, road: Road) -> None:
    await log_in(ui, road, "submit")

    assert "lacks the scope read" in await page(ui, "/ui/", 403)


async def test_a_key_of_one_pipeline_is_told_nothing_of_others(ui: Client, road: Road) -> None:
    await road.deploy(OTHER)
    secret = await road.accept(OTHER, key="other-key")
    await road.commit(secret, "begin", Reject("secret reason"), pipeline=OTHER)
    mine = await die(road, "ride")
    async with Registration(road.engine, road.settings.schema, Role.STAGE, stages=["other.begin"]):
        await until(lambda: is_there(road, "process"))
        await log_in(ui, road, "read", "operate", pipelines=["travel"])

        paths = ["/ui/", "/ui/tasks", "/ui/failures", "/ui/failures/group?pipeline=other", "/ui/stages", "/ui/workers"]
        paths += ["/ui/failures/requeue", f"/ui/tasks?q={secret}", "/ui/tasks?q=other-key"]
        for path in paths:
            html = await page(ui, path)
            told = html.replace(f"?q={secret}", "").replace(f'value="{secret}"', "")
            assert not re.search(r"secret reason|other\.begin|>other<|t-" + str(secret), told), path
    await page(ui, f"/ui/tasks/{secret}", 404)
    await page(ui, "/ui/stages/other/begin", 404)
    assert (await ui.get("/ui/find", params={"q": str(secret)})).headers["location"] == f"/ui/tasks?q={secret}"

    await send(ui, "/ui/failures/requeue", "/ui/failures/requeue")
    await send(ui, "/ui/failures/requeue", "/ui/failures/requeue?pipeline=other")
    await send(ui, "/ui/failures/requeue", f"/ui/tasks/{secret}/cancel", 404)
    await send(ui, "/ui/failures/requeue", "/ui/stages/other/begin/pause", 404)

    assert await road.task(secret, "status") == ("failed",)
    assert await road.task(mine, "status") == ("in_progress",)


async def test_a_form_without_its_token_or_from_elsewhere_does_nothing(ui: Client, road: Road) -> None:
    task_id = await road.accept()
    path = f"/ui/tasks/{task_id}/cancel"
    token = re.search(r'name="token" value="([0-9a-f]+)"', (await ui.get(path)).text)
    assert token
    own = {"Sec-Fetch-Site": "same-origin"}

    for data, headers in [
        ({"by": "eve"}, own),
        ({"token": "0" * 64}, own),
        ({"token": token[1]}, {"Sec-Fetch-Site": "cross-site"}),
        ({"token": token[1]}, {"Origin": "http://evil.example"}),
        ({"token": token[1]}, {}),
        ({"token": token[1]}, own | {"Cookie": "postroad_form=" + "x" * 43}),
    ]:
        client = httpx2.AsyncClient(transport=ui._transport, base_url=ui.base_url)
        if "Cookie" not in headers:
            client.cookies = ui.cookies
        answer = await client.post(path, data=data, headers=headers)
        assert answer.status_code == 403, answer.text[-300:]
        assert answer.headers["content-security-policy"] == POLICY
    assert (await ui.post(path, json={"token": token[1]}, headers=own)).status_code == 415
    assert await road.task(task_id, "status") == ("pending",)


# What can be done


async def test_a_task_is_cancelled_and_who_did_it_is_recorded(ui: Client, road: Road) -> None:
    task_id = await road.accept()

    answer = await send(ui, f"/ui/tasks/{task_id}/cancel", by="ada", reason="a mistake")

    assert answer.headers["location"] == f"/ui/tasks/{task_id}"
    data = await last_data(road, task_id, "TaskCancelled")
    assert (data["by"], data["reason"]) == ("ada", "a mistake")
    answer = await send(ui, f"/ui/tasks/{await road.accept()}/cancel", f"/ui/tasks/{task_id}/cancel", 409)
    assert "has come to its end already" in answer.text


async def test_with_a_key_it_is_the_key_that_is_recorded(ui: Client, road: Road) -> None:
    await log_in(ui, road, "read", "operate")
    task_id = await die(road, "ride")

    await send(ui, f"/ui/tasks/{task_id}/retry", reason="the road is open")

    data = await last_data(road, task_id, "StageRequeued")
    assert (data["by"], data["reason"]) == ("key:ada", "the road is open")
    assert await road.task(task_id, "status") == ("in_progress",)
    assert await road.violated() == {}


async def test_a_task_runs_again_from_a_stage(ui: Client, road: Road) -> None:
    task_id = await road.accept()
    await road.complete(task_id)

    await send(ui, f"/ui/tasks/{task_id}/retry", **FROM_RIDE)

    assert sorted((await road.task(task_id, "stages_done"))[0]) == ["pack", "rest"]
    await send(ui, f"/ui/tasks/{task_id}/retry", status=404, **FROM_RIDE | {"from": "nowhere"})


async def test_a_group_is_requeued_as_a_whole_after_a_preview(ui: Client, road: Road) -> None:
    tasks = [await die(road, "ride", reason=f"bridge {number} is down") for number in range(3)]
    other = await die(road, "rest", reason="the inn is full")
    group = re.search(r'href="(/ui/failures/group\?[^"]*)">bridge', await page(ui, "/ui/failures"))
    assert group
    ask = re.search(r'href="(/ui/failures/requeue\?[^"]*)"', await page(ui, unescape(group[1])))
    assert ask
    assert "Requeue 3 dead letters?" in await page(ui, unescape(ask[1]))
    assert await road.task(tasks[0], "status") == ("failed",)

    answer = await send(ui, unescape(ask[1]), by="ada", reason="mended")

    assert [await road.task(task, "status") for task in tasks] == [("in_progress",)] * 3
    assert await road.task(other, "status") == ("failed",)
    html = await page(ui, answer.headers["location"])
    assert "<strong>Requeued\n3</strong>" in html
    assert "by ada: mended" in html


async def test_a_group_is_discarded(ui: Client, road: Road) -> None:
    task_id = await die(road, "ride")

    await send(ui, "/ui/failures/discard?pipeline=travel")

    assert await road.ask("select resolution from postroad.dead_letter") == [("discarded",)]
    assert (await last_data(road, task_id, "DeadLetterDiscarded"))["by"] == "dashboard"
    assert "No dead letter is unresolved" in await page(ui, "/ui/failures")


async def test_a_requeue_at_a_rate_goes_on_until_somebody_stops_it(
    ui: Client, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "AT_ONCE", 0.0)
    for _ in range(3):
        await die(road, "ride")
    await send(ui, "/ui/failures/requeue", rate="0.1")
    await until(lambda: has_requeued(road, 1))

    html = await page(ui, "/ui/failures")
    assert "Requeueing" in html
    await send(ui, "/ui/failures/requeue", rate="0.1", status=409)
    await send(ui, "/ui/failures", "/ui/failures/stop", number="1")

    assert "stopped" in await page(ui, "/ui/failures")
    assert await has_requeued(road, 1)


async def has_requeued(road: Road, count: int) -> bool:
    rows = await road.ask("select count(*) from postroad.dead_letter where resolution = 'requeued'")
    return rows == [(count,)]


async def test_what_dies_again_meanwhile_is_not_requeued_for_ever(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "BATCH", 1)
    task_id = await die(road, "ride")
    resolve = pace.Pacer._resolve

    async def resolve_and_die(self: Any, work: Any, after: int, last: int, size: int) -> list[int]:
        letters = await resolve(self, work, after, last, size)
        if letters:
            await road.commit(task_id, "ride", Reject("again"))
        return letters

    monkeypatch.setattr(pace.Pacer, "_resolve", resolve_and_die)
    pacer = pace.Pacer(road.engine, road.settings.schema)

    work = await pacer.begin("requeue", Selection(), None, {"by": "ada"})

    assert (work.has_ended, work.resolved) == (True, 1)


@pytest.mark.parametrize("rate", ["0", "-1", "x", "1e9", "nan"])
async def test_a_rate_that_is_none_is_refused(ui: Client, road: Road, rate: str) -> None:
    task_id = await die(road, "ride")

    answer = await send(ui, "/ui/failures/requeue", status=422, rate=rate)

    assert "is no rate" in answer.text
    assert await road.task(task_id, "status") == ("failed",)


async def test_a_stage_is_paused_and_resumed(ui: Client, road: Road) -> None:
    at = "/ui/stages/travel/ride"
    await send(ui, at, f"{at}/pause", by="ada", reason="the road is flooded")

    html = await page(ui, at)
    assert re.search(r"Paused since <time [^>]*>[^<]*</time> by ada: the road is flooded\.", html)
    assert await road.ask("select paused, switched_by from postroad.stage where stage = 'ride'") == [(True, "ada")]

    await send(ui, at, f"{at}/resume")
    assert await road.ask("select paused from postroad.stage where stage = 'ride'") == [(False,)]


async def test_the_limits_of_a_stage_are_set(ui: Client, road: Road) -> None:
    at, asked = "/ui/stages/travel/ride", "select rate, burst, max_running from postroad.stage where stage = 'ride'"
    await send(ui, at, f"{at}/limits", rate="20/s", burst="5", max_running="3", by="ada")
    assert await road.ask(asked) == [("20/s", 5, 3)]
    assert "20/s, burst 5, 3 at once" in await page(ui, at)

    for wrong in ({"rate": "fast"}, {"burst": "5"}, {"max_running": "0"}, {"rate": "1/s", "burst": "x"}):
        await send(ui, at, f"{at}/limits", status=422, **wrong)
    assert await road.ask(asked) == [("20/s", 5, 3)]

    await send(ui, at, f"{at}/limits")
    assert await road.ask(asked) == [(None, None, None)]


async def test_what_many_look_at_is_read_once() -> None:
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0.01)
        return reads

    shared = reader.Shared(read, every=60)

    assert {value for value, _ in await asyncio.gather(*(shared.get() for _ in range(20)))} == {1}


async def test_who_keeps_looking_never_waits() -> None:
    may_go = asyncio.Event()
    may_go.set()
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await may_go.wait()
        return reads

    shared = reader.Shared(read, every=0.2)
    assert (await shared.get())[0] == 1
    await asyncio.sleep(0.21)
    may_go.clear()

    assert (await shared.get())[0] == 1
    may_go.set()
    await until(lambda: is_read(shared, 2))
    # And what somebody has just changed is waited for.
    shared.forget()
    assert (await shared.get())[0] == 3


async def is_read(shared: reader.Shared[int], value: int) -> bool:
    return (await shared.get())[0] >= value


async def test_the_dashboard_takes_a_few_connections_at_once(settings: Settings, road: Road) -> None:
    seen = most = 0
    few = reader.Reader(road.engine, 20)

    async def query(_: Any) -> None:
        nonlocal seen, most
        seen += 1
        most = max(most, seen)
        await asyncio.sleep(0.02)
        seen -= 1

    await asyncio.gather(*(few.read(query) for _ in range(12)))

    assert most == reader.CONNECTIONS


async def test_a_page_can_change_nothing(road: Road) -> None:
    delete = text("delete from postroad.tick")

    with pytest.raises(Problem):
        await reader.Reader(road.engine, 20).read(lambda connection: connection.execute(delete))

    assert await is_there(road, "tick")


async def test_two_roads_are_two_pictures(settings: Settings) -> None:
    async with (
        open_road(settings, TRAVEL, OTHER),
        open_door(settings, beside=Dashboard, base_url="http://localhost") as client,
    ):
        html = await page(client, "/ui/")

    assert re.findall(r'<h2 id="p-(\w+)"', html) == ["other", "travel"]
    assert html.count('class="box') == 5 + 1 + 5 + 4


async def test_an_expired_key_ends_the_session(ui: Client, road: Road) -> None:
    await log_in(ui, road, "read", expires=timedelta(seconds=1))

    await until(lambda: is_refused(ui))


async def test_the_bars_say_what_the_journey_says_in_sql(ui: Client, road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack", Retry("the lid does not fit", after=0.001))
    for stage in ("pack", "ride", "rest"):
        await road.commit(task_id, stage)
    await road.commit(task_id, "arrive", Reject("no room"))
    await send(ui, f"/ui/tasks/{task_id}/retry")
    await road.commit(task_id, "arrive")

    told = await road.ask(
        "select stage, attempt, outcome, extract(epoch from ran)::float8 from postroad.task_journey"
        " where task_id = :task and outcome is not null order by position",
        task=task_id,
    )
    html = await page(ui, f"/ui/tasks/{task_id}")

    legs = re.findall(r'class="leg attempt (\w+)".*?<strong>(\w+)</strong> <span class="dim">#(\d+)</span>', html, re.S)
    assert [(stage, int(attempt), outcome) for outcome, stage, attempt in legs] == [row[:3] for row in told]
    ran = re.findall(r"<dt>Ran</dt><dd>([^<]*)</dd>", html)
    assert ran == [span(row[3]) for row in told]
