"""Events, and the envelope in which they travel."""

from collections.abc import Mapping
from uuid import UUID, uuid4

import pytest

from postroad import Event, EventType
from postroad.core.errors import UnstorableError
from postroad.core.event import Envelope

TASK = UUID("01936f5e-0000-7000-8000-000000000001")
FIELDS = {
    "event": "7",
    "type": "StageCompleted",
    "task": str(TASK),
    "time": "1700000000000",
    "traceparent": "00-1-2-00",
}


def test_an_event_is_called_by_its_type_and_stage() -> None:
    assert str(Event("HostReserved", TASK, "road")) == "HostReserved"
    assert str(Event(EventType.STAGE_COMPLETED, TASK, "road", "allocate")) == "StageCompleted:allocate"


def test_an_event_has_no_data_of_another() -> None:
    assert Event("HostReserved", TASK, "road").data is not Event("HostReserved", TASK, "road").data


@pytest.mark.parametrize("event_type", EventType)
def test_our_own_types_are_names_as_authors_must_choose_them(event_type: EventType) -> None:
    assert Event(event_type, TASK, "road").type == str(event_type)


@pytest.mark.parametrize("name", ["H", "HostReserved", "Host2Reserved", "H" * 64])
def test_an_author_may_name_events(name: str) -> None:
    assert Event(name, TASK, "road").type == name


@pytest.mark.parametrize(
    "name", ["", "hostReserved", "host_reserved", "Host Reserved", "2Hosts", "H" * 65, "Straße", "Host\x00", "Host\n"]
)
def test_a_type_that_is_no_such_name_is_refused(name: str) -> None:
    with pytest.raises(UnstorableError, match="an event's type is a CamelCase name of up to 64 letters") as caught:
        Event(name, TASK, "road")

    assert repr(name) in str(caught.value)


def test_an_entry_is_read_back() -> None:
    assert Envelope.parse("5-1", FIELDS, deliveries=3) == Envelope(
        entry_id="5-1",
        task_id=TASK,
        type="StageCompleted",
        event=7,
        time=1_700_000_000_000,
        traceparent="00-1-2-00",
        deliveries=3,
    )


@pytest.mark.parametrize(
    "fields", [FIELDS | {"traceparent": ""}, {k: v for k, v in FIELDS.items() if k != "traceparent"}]
)
def test_an_entry_without_a_trace_is_read_too(fields: Mapping[str, str]) -> None:
    envelope = Envelope.parse("5-1", fields)

    assert envelope is not None
    assert envelope.traceparent is None
    assert envelope.deliveries == 1


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    assert Envelope.parse("5-1", FIELDS | {"shape": "round"}) == Envelope.parse("5-1", FIELDS)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {},
        {"foreign": "entry"},
        *(
            {name: value for name, value in FIELDS.items() if name != left_out}
            for left_out in ("event", "type", "task", "time")
        ),
        FIELDS | {"task": "nobody"},
        FIELDS | {"task": ""},
        FIELDS | {"event": "seven"},
        FIELDS | {"time": "1.5"},
    ],
)
def test_what_is_none_of_ours_or_was_deleted_is_nothing(fields: Mapping[str, str] | None) -> None:
    assert Envelope.parse("5-1", fields) is None


def test_any_task_id_survives_the_journey() -> None:
    task_id = uuid4()
    envelope = Envelope.parse("1-1", FIELDS | {"task": str(task_id)})

    assert envelope is not None
    assert envelope.task_id == task_id
