"""The public names: what an author of pipelines can rely on."""

import postroad


def test_the_public_names_are_these_and_no_others() -> None:
    assert postroad.__all__ == [
        "CommandStage",
        "Event",
        "EventType",
        "HttpStage",
        "Pipeline",
        "PostroadError",
        "Reject",
        "Retry",
        "Settings",
        "Snooze",
        "Stage",
        "Status",
        "Task",
        "append",
        "submit",
        "submit_many",
    ]


def test_every_public_name_is_there_and_documented() -> None:
    for name in postroad.__all__:
        assert getattr(postroad, name).__doc__, name


def test_nothing_else_is_exported_by_a_star() -> None:
    names: dict[str, object] = {}
    exec("from postroad import *", names)

    assert set(names) - {"__builtins__"} == set(postroad.__all__)


def test_public_classes_show_where_they_come_from() -> None:
    assert postroad.Pipeline.__module__ == "postroad.core.pipeline"
    assert postroad.append.__module__ == "postroad.outbox.append"
