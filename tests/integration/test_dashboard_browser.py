"""The dashboard in a real browser: an operator's story, without JavaScript, by keyboard, narrow, and in the dark."""

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from postroad import Pipeline, Reject, Settings, Task
from postroad.dashboard.app import Dashboard
from postroad.intake.app import create_app
from postroad.testing.pipelines import Road, open_road
from tests.integration.door import open_port

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
    # One browser for all of them: to start it takes longer than any of them.
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass
class Bank:
    """What decides whether orders can be paid."""

    is_open: bool = False
    paid: set[UUID] = field(default_factory=set)

    def pipeline(self) -> Pipeline:
        orders = Pipeline("orders")

        @orders.stage()
        async def check(task: Task) -> dict[str, int]:
            return {"total": task.payload["total"]}

        @orders.stage(after="check")
        async def pay(task: Task) -> None:
            if not self.is_open:
                raise Reject(f"the bank is closed at {task.payload['total']} o'clock")
            self.paid.add(task.task_id)

        return orders


@dataclass
class Scene:
    """A road with a dashboard, and a browser before it."""

    road: Road
    bank: Bank
    tasks: list[UUID]
    base: str
    browser: Browser

    @asynccontextmanager
    async def page(self, **options: Any) -> AsyncIterator[Page]:
        """A page of a browser that is new; whatever it complains of fails the test."""
        complaints: list[str] = []
        context = await self.browser.new_context(base_url=self.base, **options)
        page = await context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        yield page
        await context.close()
        assert complaints == []


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Chromium, as it is installed."""
    assert CHROMIUM
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield launched
        await launched.close()


@pytest_asyncio.fixture(loop_scope="module")
async def scene(settings: Settings, browser: Browser) -> AsyncIterator[Scene]:
    """Three orders that could not be paid."""
    bank = Bank()
    async with contextlib.AsyncExitStack() as exits:
        road = await exits.enter_async_context(open_road(settings, bank.pipeline()))
        tasks = [await road.submit("orders", {"total": number}, labels={"shop": "rome"}) for number in range(3)]
        app = create_app(road.settings, beside=Dashboard)
        port = await exits.enter_async_context(open_port(app))
        for task in tasks:
            await road.wait(task)
        yield Scene(road, bank, tasks, f"http://127.0.0.1:{port}", browser)


async def test_an_operator_sees_what_failed_and_why_and_lets_it_go_on(scene: Scene) -> None:
    async with scene.page() as page:
        await page.goto("/ui/")
        await expect(page.locator(".graph .box.red")).to_contain_text("dead letters")
        await page.get_by_role("link", name=re.compile("the bank is closed")).click()
        await expect(page.locator("dl.facts")).to_contain_text("orders.pay")
        await page.locator("tr a.go").last.click()
        await expect(page.locator(".why")).to_contain_text(
            re.compile("pay is a dead letter since .* the bank is closed")
        )
        await expect(page.locator(".leg.dead")).to_contain_text("the bank is closed at 2 o'clock")
        await expect(page.locator("pre.payload")).to_contain_text('"total": 2')
        task = page.url

        scene.bank.is_open = True
        await page.goto("/ui/failures")
        await page.locator("a.reason").click()
        await page.get_by_role("link", name="Requeue…").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Requeue 3 dead letters?")
        await page.get_by_label("Who asks").fill("ada")
        await page.get_by_label("Why").fill("the bank is open")
        await page.get_by_role("button", name="Requeue").click()
        await expect(page.locator(".work")).to_contain_text("by ada: the bank is open")

        await asyncio.gather(*(scene.road.wait(one) for one in scene.tasks))
        await page.goto(task)
        await expect(page.locator(".page .state")).to_have_text("completed")
        legs = page.locator(".leg .what")
        await expect(legs).to_have_text(
            ["accepted", "check #1", "pay #1", "failed", "pay requeued", "pay #1", "completed"]
        )
    assert scene.bank.paid == set(scene.tasks)


async def test_a_page_that_is_open_follows_what_happens_until_it_is_paused(scene: Scene) -> None:
    async with scene.page() as page:
        await page.goto(f"/ui/tasks/{scene.tasks[0]}")
        await page.locator(".leg.dead summary").click()
        scene.bank.is_open = True
        async with scene.page() as other:
            await other.goto(f"/ui/tasks/{scene.tasks[0]}/retry")
            await other.get_by_role("button", name="Run again").click()

        await expect(page.locator(".page .state")).to_have_text("completed")
        # What was open stays open, and what was not shut.
        await expect(page.locator(".leg.dead")).to_have_attribute("open", "")
        await expect(page.locator(".leg.done").first).not_to_have_attribute("open", "")

        await page.goto("/ui/tasks")
        await page.get_by_role("button", name="Live").click()
        await expect(page.get_by_role("button", name="Paused")).to_be_visible()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.locator("#live").evaluate("part => htmx.trigger(part, 'every')")
        await page.get_by_role("button", name="Paused").click()
        async with page.expect_request("**/ui/tasks"):
            await page.locator("#live").evaluate("part => htmx.trigger(part, 'every')")
        assert len(asked) == 1


async def test_all_can_be_read_and_done_without_javascript(scene: Scene) -> None:
    async with scene.page(java_script_enabled=False) as page:
        await page.goto("/ui/")
        await page.get_by_role("link", name="Tasks", exact=True).click()
        await page.get_by_label("Status").select_option("failed")
        await page.get_by_label("Label").fill("shop:rome")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("table.rows tbody tr")).to_have_count(3)
        await page.get_by_label("Find a task by any id").fill(str(scene.tasks[1]))
        await page.get_by_label("Find a task by any id").press("Enter")
        await expect(page.locator(".taskid")).to_contain_text(str(scene.tasks[1]))
        await expect(page.locator(".copy:visible")).to_have_count(0)
        await page.get_by_role("link", name="Cancel…").click()
        await page.get_by_role("button", name="Cancel the task").click()
        await expect(page.locator(".page .state")).to_have_text("cancelled")


async def test_it_is_used_by_keyboard_and_fits_narrow_screens_light_and_dark(scene: Scene) -> None:
    paths = ["/ui/", "/ui/tasks", f"/ui/tasks/{scene.tasks[0]}", "/ui/failures", "/ui/failures/group?pipeline=orders"]
    paths += ["/ui/failures/requeue?pipeline=orders", "/ui/stages", "/ui/stages/orders/pay", "/ui/workers", "/ui/login"]
    backgrounds = {}
    for scheme, shown in (("light", paths), ("dark", paths[:1])):
        async with scene.page(viewport={"width": 360, "height": 800}, color_scheme=scheme) as page:
            for path in shown:
                await page.goto(path)
                assert await page.evaluate("document.documentElement.scrollWidth") == 360, path
            backgrounds[scheme] = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert backgrounds == {"light": "rgb(246, 246, 243)", "dark": "rgb(20, 23, 26)"}

    async with scene.page() as page:
        await page.goto("/ui/tasks")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await expect(page.locator("tr.chosen a.go")).to_be_focused()
        await page.keyboard.press("/")
        await page.keyboard.type("jk")
        await expect(page.get_by_label("Find a task by any id")).to_have_value("jk")
        await page.keyboard.press("Escape")
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await expect(page.locator(".taskid")).to_contain_text(str(scene.tasks[2]))
