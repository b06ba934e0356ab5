"""Payloads are held against the schema of their pipeline: every fault is named, in a batch line by line."""

from dataclasses import replace
from typing import Any

import pytest

from postroad import Pipeline, Settings, Task
from postroad.intake import validation
from tests.integration.door import Door, open_door, pointers, problem
from tests.integration.road import open_road

SCHEMA = {
    "type": "object",
    "required": ["sku"],
    "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}


def shop(**options: Any) -> Pipeline:
    made = Pipeline("shop", **options)

    @made.stage()
    async def pack(task: Task) -> None: ...

    return made


async def test_every_fault_of_a_payload_is_named_and_nothing_is_written(settings: Settings) -> None:
    async with open_road(settings, shop(schema=SCHEMA)) as road, open_door(settings) as client:
        door = Door(client, road)

        body = problem(
            await door.submit(pipeline="shop", payload={"count": 0, "colour": 1}, labels={"a b": "c"}), 422, "invalid"
        )

        assert pointers(body) == ["#/labels/a%20b", "#/payload", "#/payload", "#/payload/count"]
        assert await road.count("task", "outbox", "intake_key") == {"task": 0, "outbox": 0, "intake_key": 0}
        assert (await door.submit(pipeline="shop", payload={"sku": "n17"})).status_code == 202


async def test_a_bad_line_of_a_batch_names_its_own_faults(settings: Settings) -> None:
    async with open_road(settings, shop(schema=SCHEMA)) as road, open_door(settings) as client:
        answers = await Door(client, road).batch(
            [
                {"pipeline": "shop", "payload": {"sku": "a"}},
                {"pipeline": "shop", "payload": {"sku": 7}},
                {"pipeline": "shop", "payload": {"sku": "b"}},
            ]
        )

        assert [answer["status"] for answer in answers] == [202, 422, 202]
        assert pointers(answers[1]) == ["#/payload/sku"]


async def test_a_schema_that_is_deployed_is_heard_of_and_one_that_is_gone_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "NEWS", 0.0)
    async with open_road(settings, shop()) as road, open_door(settings) as client:
        door = Door(client, road)
        assert (await door.submit(pipeline="shop", payload=1)).status_code == 202

        await road.deploy(shop(schema=SCHEMA))
        problem(await door.submit(pipeline="shop", payload=1), 422, "invalid")

        await road.deploy(shop())
        assert (await door.submit(pipeline="shop", payload=1)).status_code == 202


async def test_without_postgres_the_door_says_so(settings: Settings) -> None:
    async with open_door(replace(settings, database_url="postgresql://nobody@127.0.0.1:9/none")) as client:
        answer = await client.post("/v1/tasks", json={"pipeline": "shop", "payload": 1})

        assert answer.status_code == 503
        assert answer.headers["retry-after"]
