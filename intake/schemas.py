"""The shapes of what the door answers, as JSON Schema. The tests hold real answers against them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.priority import WORDS
from ..core.task import Status
from ..outbox.explain import State
from .endpoint import Schema, ref

_ID = {"type": "string", "format": "uuid"}
_MOMENT = {"type": "string", "format": "date-time"}
_NO_MOMENT = {"type": ["string", "null"], "format": "date-time"}
_TEXT = {"type": "string"}
_NO_TEXT = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}
_ANY: Schema = {}


def shape(properties: Mapping[str, Schema], *, optional: Sequence[str] = (), **more: Any) -> Schema:
    """An object with exactly these members, of which ``optional`` may be missing."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
        **more,
    }


_SUMMARY: dict[str, Schema] = {
    "task_id": _ID,
    "pipeline": _TEXT,
    "priority": {"enum": list(WORDS)},
    "status": {"enum": [str(status) for status in Status]},
    "stage_status": _TEXT,
    "stages_done": {"type": "array", "items": _TEXT},
    "retry_count": _COUNT,
    "labels": {"type": "object", "additionalProperties": _TEXT},
    "trace_id": _TEXT,
    "not_before": _NO_MOMENT,
    "deadline": _NO_MOMENT,
    "created_at": _MOMENT,
    "updated_at": _MOMENT,
    "finished_at": _NO_MOMENT,
    "submitted_by": _NO_TEXT,
}
"""What lists have of a task."""

_CAPPED = {
    **shape({"count": _COUNT, "capped": {"type": "boolean"}}),
    "description": "capped: there are at least so many",
}

SCHEMAS: dict[str, Schema] = {
    "NewTask": {
        "type": "object",
        "required": ["pipeline", "payload"],
        "additionalProperties": False,
        "properties": {
            "pipeline": {"type": "string", "minLength": 1, "description": "the name of a pipeline that is deployed"},
            "payload": {"description": "any JSON that Postgres keeps; null is one"},
            "task_id": {"type": ["string", "null"], "format": "uuid", "description": "chosen by you; else made"},
            "labels": {
                "type": ["object", "null"],
                "maxProperties": 16,
                "propertyNames": {"pattern": "^[A-Za-z0-9_.-]{1,63}$"},
                "additionalProperties": {"type": "string", "maxLength": 255},
            },
            "not_before": {**_NO_MOMENT, "description": "its first stages do not start before; at most a year ahead"},
            "deadline": {**_NO_MOMENT, "description": "no stage of it is started at or after this moment"},
            "priority": {"enum": [*WORDS, None], "description": "in a pipeline that has priorities; else normal"},
        },
    },
    "AcceptedTask": shape(
        {
            "task_id": _ID,
            "pipeline": _TEXT,
            "status": {"const": "pending"},
            "created_at": _MOMENT,
            "trace_id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        }
    ),
    "BatchAnswer": {
        "description": "the answer to a line: as to a task that comes alone, or a problem",
        "type": "object",
        "required": ["line", "status"],
        "properties": {
            "line": {"type": "integer", "minimum": 1},
            "status": {"type": "integer"},
            "rest": {"const": True, "description": "in the last line: it and every line after it was not taken"},
        },
    },
    "StageRun": shape(
        {
            "stage": _TEXT,
            "status": {"enum": ["done", "failed", "snoozed", "waiting", "dead"]},
            "attempts": _COUNT,
            "result": _ANY,
            "error": _NO_TEXT,
            "next_retry_at": _NO_MOMENT,
            "worker": _NO_TEXT,
            "started_at": _NO_MOMENT,
            "finished_at": _NO_MOMENT,
        }
    ),
    "Task": shape(
        {
            **_SUMMARY,
            "version": {"type": "integer", "minimum": 1},
            "payload": _ANY,
            "stages": {"type": "array", "items": ref("StageRun")},
        }
    ),
    "Tasks": shape({"tasks": {"type": "array", "items": shape(_SUMMARY)}, "next_cursor": _NO_TEXT}),
    "Stage": shape(
        {
            "stage": _TEXT,
            "after": {"type": "array", "items": _TEXT},
            "paused": {"type": "boolean"},
            "resting_until": _NO_MOMENT,
            "trouble": _NO_TEXT,
            "rate": _NO_TEXT,
            "burst": {"type": ["integer", "null"]},
            "max_running": {"type": ["integer", "null"]},
            "ready": {**_CAPPED, "description": "in a stream, or run just now"},
            "retrying": {**_CAPPED, "description": "their last attempt failed or snoozed"},
            "waiting": {**_CAPPED, "description": "a service has them, and will report"},
            "scheduled": {**_CAPPED, "description": "they may not start yet"},
            "dead": {**_CAPPED, "description": "unresolved dead letters"},
            "oldest_ready_seconds": {"type": ["number", "null"], "minimum": 0},
        }
    ),
    "Pipeline": shape(
        {
            "pipeline": _TEXT,
            "version": {"type": "integer", "minimum": 1},
            "deployed_at": _MOMENT,
            "priorities": {"type": "boolean"},
            "stages": {"type": "array", "items": ref("Stage")},
        }
    ),
    "Pipelines": shape({"pipelines": {"type": "array", "items": ref("Pipeline")}}),
    "Event": shape(
        {
            "position": _COUNT,
            "type": _TEXT,
            "stage": _NO_TEXT,
            "data": {"type": "object"},
            "occurred_at": _MOMENT,
        }
    ),
    "Journey": shape({"task_id": _ID, "events": {"type": "array", "items": ref("Event")}}),
    "Explanation": shape(
        {
            "task_id": _ID,
            "pipeline": _TEXT,
            "status": {"enum": [str(status) for status in Status]},
            "headline": {**_TEXT, "description": "the most telling sentence"},
            "reasons": {
                "type": "array",
                "description": "one for each stage that is not done, or one for a task that has ended",
                "items": shape(
                    {
                        "stage": _NO_TEXT,
                        "state": {"enum": [str(state) for state in State]},
                        "sentence": _TEXT,
                        "since": _NO_MOMENT,
                        "until": _NO_MOMENT,
                        "by": {**_NO_TEXT, "description": "the person or the process that it is due to"},
                    }
                ),
            },
        }
    ),
    "Cancelled": shape({"task_id": _ID, "status": {"const": "cancelled"}, "changed": {"type": "boolean"}}),
    "Retried": shape({"task_id": _ID, "stages": {"type": "array", "items": _TEXT}}),
    "StageState": shape(
        {"pipeline": _TEXT, "stage": _TEXT, "paused": {"type": "boolean"}, "changed": {"type": "boolean"}}
    ),
    "Reported": shape({"stage_run": _TEXT, "outcome": {"enum": ["completed", "failed", "rejected"]}}),
    "Extended": shape({"stage_run": _TEXT, "until": _MOMENT}),
    "DeadLetter": shape(
        {
            "dead_letter_id": {"type": "integer", "minimum": 1},
            "task_id": _ID,
            "pipeline": _TEXT,
            "stage": _TEXT,
            "reason": _TEXT,
            "error": _NO_TEXT,
            "fingerprint": _TEXT,
            "attempts": _COUNT,
            "died_at": _MOMENT,
            "resolved_at": _NO_MOMENT,
            "resolution": _NO_TEXT,
            "resolved_by": _NO_TEXT,
        }
    ),
    "DeadLetters": shape({"dead_letters": {"type": "array", "items": ref("DeadLetter")}}),
    "DeadLetterGroup": shape(
        {
            "pipeline": _TEXT,
            "stage": _TEXT,
            "fingerprint": _TEXT,
            "letters": {"type": "integer", "minimum": 1},
            "oldest": _MOMENT,
            "newest": _MOMENT,
            "reason": _TEXT,
        }
    ),
    "DeadLetterGroups": shape({"groups": {"type": "array", "items": ref("DeadLetterGroup")}}),
    "Requeued": shape({"matched": _COUNT, "requeued": _COUNT}),
    "Discarded": shape({"matched": _COUNT, "discarded": _COUNT}),
    "Alive": shape({"status": {"const": "alive"}}),
    "Ready": shape(
        {"status": {"enum": ["ready", "not ready"]}, "checks": {"type": "object", "additionalProperties": _TEXT}}
    ),
    "Problem": {
        "description": "What is wrong, and what to do (RFC 9457).",
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": _TEXT,
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "errors": {
                "type": "array",
                "items": shape({"detail": _TEXT, "pointer": _TEXT}),
                "description": "the members at fault, the first 20, each by its JSON pointer as a fragment",
            },
        },
    },
}
"""By the names under which the document has them."""
