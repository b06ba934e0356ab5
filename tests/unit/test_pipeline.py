"""Declaring a pipeline: every mistake is told at once, by the name of the stage that it is in."""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from postroad import Pipeline, PostroadError, Stage, Task
from postroad.core.errors import DeclarationError


async def work(task: Task) -> None: ...


def work_in_a_thread(task: Task) -> None: ...


async def work_in_the_transaction(task: Task, connection: AsyncConnection) -> None: ...


async def work_in_the_session(task: Task, session: AsyncSession) -> None: ...


def test_a_stage_is_named_like_its_function_and_waits_for_nobody() -> None:
    road = Pipeline("road")

    @road.stage()
    async def saddle(task: Task) -> None: ...

    assert road.graph() == {
        "saddle": Stage(
            pipeline="road",
            name="saddle",
            handler=saddle,
            after=(),
            retries=5,
            timeout=timedelta(seconds=30),
            concurrency=100,
            transaction=None,
        )
    }
    assert road.graph()["saddle"].full_name == "road.saddle"


def test_the_decorated_function_stays_what_it_was() -> None:
    assert Pipeline("road").stage()(work) is work


def test_a_stage_can_be_named_and_limited() -> None:
    road = Pipeline("road")
    road.stage("first")(work)
    road.stage("second", after="first", retries=0, timeout=timedelta(minutes=2), concurrency=3)(work)

    stage = road.graph()["second"]

    assert (stage.name, stage.after, stage.retries, stage.concurrency) == ("second", ("first",), 0, 3)
    assert stage.timeout == timedelta(minutes=2)


def test_a_stage_knows_that_its_pipeline_has_priorities() -> None:
    road = Pipeline("road", priorities=True)
    road.stage()(work)

    assert road.graph()["work"].priorities
    with pytest.raises(DeclarationError, match="pipeline 'road': priorities is True or False, not 'yes'"):
        Pipeline("road", priorities="yes")  # type: ignore[arg-type]  # a mistake


def test_a_timeout_may_be_a_fraction_of_a_second() -> None:
    road = Pipeline("road")
    road.stage(timeout=0.25)(work)

    assert road.graph()["work"].timeout == timedelta(milliseconds=250)


@pytest.mark.parametrize(
    ("handler", "transaction", "is_async", "concurrency"),
    [
        (work, None, True, 100),
        (work_in_a_thread, None, False, 16),
        (work_in_the_transaction, AsyncConnection, True, 16),
        (work_in_the_session, AsyncSession, True, 16),
    ],
)
def test_the_signature_says_how_a_handler_is_run(
    handler: Callable[..., Any], transaction: type | None, is_async: bool, concurrency: int
) -> None:
    road = Pipeline("road")
    road.stage("stage")(handler)

    stage = road.graph()["stage"]

    assert stage.transaction is transaction
    assert stage.is_async is is_async
    assert stage.concurrency == concurrency


def test_parameters_with_a_default_are_the_handlers_own() -> None:
    async def handler(task: Task, attempts: int = 3, *, unit: str = "GiB", **more: Any) -> None: ...

    road = Pipeline("road")
    road.stage()(handler)

    assert road.graph()["handler"].transaction is None


def test_the_graph_has_each_stage_after_those_it_waits_for_in_whatever_order_they_were_declared() -> None:
    road = Pipeline("road")
    road.stage("arrive", after=("left", "right"))(work)
    road.stage("right", after="fork")(work)
    road.stage("left", after=["fork"])(work)
    road.stage("fork", after="start")(work)
    road.stage("start")(work)

    order = list(road.graph())

    assert order[:2] == ["start", "fork"]
    assert set(order[2:4]) == {"left", "right"}
    assert order[4:] == ["arrive"]


def test_a_stage_may_wait_for_several() -> None:
    road = Pipeline("road")
    road.stage("a")(work)
    road.stage("b")(work)
    road.stage("c", after=(name for name in ("a", "b")))(work)

    assert road.graph()["c"].after == ("a", "b")


def test_a_pipeline_shows_its_stages() -> None:
    road = Pipeline("road")
    assert repr(road) == "<Pipeline road: no stages>"

    road.stage("a")(work)
    road.stage("b")(work)

    assert repr(road) == "<Pipeline road: a, b>"


@pytest.mark.parametrize("name", ["", "Road", "1st", "the road", "road.north", "straße", "r" * 64, "road\n", None, 7])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(DeclarationError, match="cannot name a pipeline") as caught:
        Pipeline(name)
    assert repr(name) in str(caught.value)

    if name is not None:
        with pytest.raises(DeclarationError, match="cannot name a stage of pipeline 'road'") as caught:
            Pipeline("road").stage(name)(work)
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["a", "a-1_b", "r" * 63])
def test_a_proper_name_is_taken(name: str) -> None:
    road = Pipeline(name)
    road.stage(name)(work)

    assert road.graph()[name].full_name == f"{name}.{name}"


def test_a_function_without_a_proper_name_needs_one() -> None:
    with pytest.raises(DeclarationError, match="'<lambda>' cannot name a stage of pipeline 'road'"):
        Pipeline("road").stage()(lambda task: None)


NAMES_THE_STAGE: dict[str, tuple[dict[str, Any], str]] = {
    "twice in after": ({"after": ("a", "a")}, "names a stage twice in after="),
    "after a number": ({"after": 5}, "after must be the name of a stage or several, not 5"),
    "after nothing": ({"after": None}, "after must be the name of a stage or several, not None"),
    "after a list of lists": ({"after": [["a"]]}, "after must be the name of a stage or several"),
    "no time": ({"timeout": 0}, "timeout must be a timedelta or seconds, more than 0, not"),
    "negative time": ({"timeout": timedelta(seconds=-1)}, "timeout must be a timedelta or seconds, more than 0, not"),
    "less than a microsecond": ({"timeout": 1e-9}, "timeout must be a timedelta or seconds, more than 0, not"),
    "time in words": ({"timeout": "30s"}, "timeout must be .* not '30s'"),
    "time that is none": ({"timeout": None}, "timeout must be .* not None"),
    "time not a number": ({"timeout": float("nan")}, "timeout must be .* not nan"),
    "time without end": ({"timeout": float("inf")}, "timeout must be .* not inf"),
    "time beyond counting": ({"timeout": 1e20}, "timeout must be .* not 1e"),
    "negative retries": ({"retries": -1}, "retries must be 0 or more, not -1"),
    "retries in words": ({"retries": "3"}, "retries must be 0 or more, not '3'"),
    "half a retry": ({"retries": 0.5}, "retries must be 0 or more, not 0.5"),
    "yes as retries": ({"retries": True}, "retries must be 0 or more, not True"),
    "no concurrency": ({"concurrency": 0}, "concurrency must be 1 or more, not 0"),
    "concurrency in words": ({"concurrency": "all"}, "concurrency must be 1 or more, not 'all'"),
    "half a concurrency": ({"concurrency": 2.5}, "concurrency must be 1 or more, not 2.5"),
    "yes as concurrency": ({"concurrency": True}, "concurrency must be 1 or more, not True"),
}


@pytest.mark.parametrize(("options", "message"), NAMES_THE_STAGE.values(), ids=NAMES_THE_STAGE)
def test_a_bad_option_names_the_stage(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=f"stage 'road.work'.*{message}"):
        Pipeline("road").stage(**options)(work)


def test_a_stage_is_declared_once() -> None:
    road = Pipeline("road")
    road.stage("fork")(work)

    with pytest.raises(DeclarationError, match=r"stage 'road\.fork' is declared twice"):
        road.stage("fork")(work_in_a_thread)

    assert road.graph()["fork"].handler is work


def no_task() -> None: ...
def keyword_only(task: Task, *, connection: AsyncConnection) -> None: ...
def three(task: Task, connection: AsyncConnection, session: AsyncSession) -> None: ...
def only_arguments(*arguments: Any) -> None: ...
async def unannotated(task, connection): ...  # type: ignore[no-untyped-def]
async def of_the_wrong_kind(task: Task, connection: Connection) -> None: ...
async def of_one_of_two_kinds(task: Task, connection: AsyncConnection | AsyncSession) -> None: ...
def connection_in_a_thread(task: Task, connection: AsyncConnection) -> None: ...
async def unknown_name(task: "Nothing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def unknown_member(task: Task, connection: "pytest.Nothing") -> None: ...  # type: ignore[name-defined]
async def no_expression(task: "not a type") -> None: ...  # type: ignore[valid-type]  # noqa: F722


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (no_task, "a handler takes the task, and after it a connection if it needs one"),
        (keyword_only, "a handler takes the task, and after it a connection if it needs one"),
        (three, "a handler takes the task, and after it a connection if it needs one"),
        (only_arguments, "a handler takes the task, and after it a connection if it needs one"),
        (unannotated, "annotate 'connection' as sqlalchemy.ext.asyncio's AsyncConnection or AsyncSession"),
        (of_the_wrong_kind, "annotate 'connection' as sqlalchemy.ext.asyncio's AsyncConnection or AsyncSession"),
        (of_one_of_two_kinds, "annotate 'connection' as sqlalchemy.ext.asyncio's AsyncConnection or AsyncSession"),
        (connection_in_a_thread, "a handler that takes a connection must be 'async def'"),
        (unknown_name, "an annotation of its handler cannot be read"),
        (unknown_member, "an annotation of its handler cannot be read"),
        (no_expression, "an annotation of its handler cannot be read"),
        ("work", "its handler 'work' is not a function"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_handler_that_could_not_be_called_names_the_stage(handler: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=r"stage 'road\.fork'") as caught:
        Pipeline("road").stage("fork")(handler)

    assert message in str(caught.value)


def test_a_stage_that_waits_for_an_unknown_one_is_named_with_the_known_ones() -> None:
    road = Pipeline("road")
    road.stage("start")(work)
    road.stage("fork", after="strat")(work)

    with pytest.raises(DeclarationError) as caught:
        road.graph()

    assert str(caught.value) == (
        "stage 'road.fork' waits for 'strat', which is not a stage of 'road'; its stages are 'start', 'fork'"
    )


def test_stages_that_wait_for_each_other_are_named_in_the_order_in_which_they_wait() -> None:
    road = Pipeline("road")
    road.stage("start")(work)
    road.stage("a", after=("start", "c"))(work)
    road.stage("b", after="a")(work)
    road.stage("c", after="b")(work)

    with pytest.raises(DeclarationError) as caught:
        road.graph()

    message, _, circle = str(caught.value).partition(": ")
    assert message == "stages of pipeline 'road' wait for each other"
    waits_for = {"a": "c", "b": "a", "c": "b"}
    names = circle.split(" -> ")
    assert names[0] == names[-1]
    assert all(waits_for[name] == after for name, after in pairwise(names))


def test_a_stage_that_waits_for_itself_is_named() -> None:
    road = Pipeline("road")
    road.stage("fork", after="fork")(work)

    with pytest.raises(DeclarationError, match="fork -> fork and it has no first stage"):
        road.graph()


def test_a_pipeline_without_stages_is_none() -> None:
    with pytest.raises(DeclarationError, match=r"pipeline 'road' has no stage; declare one with @pipeline\.stage\(\)"):
        Pipeline("road").graph()


def test_a_decorator_without_its_parentheses_is_told_so() -> None:
    with pytest.raises(DeclarationError, match=r"pipeline 'road': write @pipeline\.stage\(\) .* 'work'"):
        Pipeline("road").stage(work)  # type: ignore[arg-type]


def test_a_declaration_error_is_one_of_ours_and_a_value_error() -> None:
    assert issubclass(DeclarationError, PostroadError)
    assert issubclass(DeclarationError, ValueError)
