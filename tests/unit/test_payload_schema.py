"""What payloads may be: given as JSON Schema, or read off the type hint of the first stage."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest

from postroad import Pipeline, Task
from postroad.core.errors import DeclarationError
from postroad.core.payload_schema import PayloadSchema
from postroad.stages.deploy import definition


class Line(TypedDict):
    sku: Annotated[str, msgspec.Meta(min_length=1)]
    count: NotRequired[int]


class Order(TypedDict):
    kind: Literal["gift", "plain"]
    lines: list[Line]


@dataclass
class Parcel:
    weight: int


def road_of(hint: Any, **options: Any) -> Pipeline:
    """A pipeline whose first stage takes ``hint``."""

    async def ride(task: Any) -> None: ...

    ride.__annotations__["task"] = hint
    road = Pipeline("road", **options)
    road.stage("ride")(ride)
    return road


def faults(schema: Any, payload: Any) -> list[tuple[str, str]]:
    return list(PayloadSchema(schema).faults(payload, most=20))


def test_a_hint_is_a_schema_and_a_plain_task_is_none() -> None:
    schema = road_of(Task[Order]).schema
    assert schema is not None
    assert faults(schema, {"kind": "gift", "lines": [{"sku": "n17"}]}) == []
    pointers = {pointer for pointer, _ in faults(schema, {"kind": "odd", "lines": [{"sku": ""}, {"count": 1.5}]})}
    assert pointers == {"/kind", "/lines/0/sku", "/lines/1", "/lines/1/count"}
    assert road_of(Task).schema is None
    assert road_of(Task[Any]).schema is None
    assert "schema" not in definition(road_of(Task))


def test_a_schema_that_is_given_wins_over_the_hint_and_is_deployed() -> None:
    road = road_of(Task[Order], schema={"type": "integer"})

    assert road.schema == {"type": "integer"}
    assert definition(road)["schema"] == {"type": "integer"}


def test_only_first_stages_say_what_a_payload_is() -> None:
    road = Pipeline("road")

    @road.stage()
    async def pack(task: Task[Order]) -> None: ...

    @road.stage(after="pack")
    async def ride(task: Task[list[int]]) -> None: ...

    schema = road.schema
    assert schema is not None
    assert faults(schema, [1]) != []

    @road.stage()
    async def rest(task: Task[Order]) -> None: ...

    assert road.schema == schema

    @road.stage()
    async def feed(task: Task[list[int]]) -> None: ...

    with pytest.raises(DeclarationError, match="its first stages take different payloads; say what they may be"):
        _ = road.schema


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "nonsense"}, "pipeline 'road': schema is no JSON Schema that stands alone"),
        ({"$ref": "http://127.0.0.1:9/order.json"}, "schema is no JSON Schema that stands alone"),
        ({"$ref": "#/nowhere"}, "schema is no JSON Schema that stands alone"),
        ({"pattern": "("}, "schema is no JSON Schema that stands alone"),
        ("order.json", "schema is a JSON Schema as a dict"),
    ],
)
def test_what_is_no_schema_is_refused_where_it_is_declared(schema: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        Pipeline("road", schema=schema)


@pytest.mark.parametrize(
    ("hint", "said"), [(Task[Parcel], "make it a TypedDict"), (Task[object], "has no JSON Schema")]
)
def test_a_hint_that_json_does_not_come_as_is_refused(hint: Any, said: str) -> None:
    road = road_of(hint)

    with pytest.raises(DeclarationError, match=said):
        _ = road.schema


def test_a_pointer_is_escaped_and_faults_are_bounded() -> None:
    schema = {"additionalProperties": {"type": "string"}}

    assert [pointer for pointer, _ in faults(schema, {"a/b~c": 1})] == ["/a~1b~0c"]
    assert len(faults(schema, {str(n): n for n in range(100)})) == 20
