"""Thousands of requests that nobody would mean: none is a fault of ours, and each leaves a whole task or nothing."""

import asyncio
import json
import os
from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import httpx2

from postroad import Settings
from tests.integration.door import open_door
from tests.integration.road import Road

REQUESTS = int(os.environ.get("POSTROAD_TEST_FUZZ", "2000"))
"""``POSTROAD_TEST_FUZZ=50000 pytest tests/integration/test_intake_fuzz.py --timeout 0`` takes longer, and sees more."""

AT_ONCE = 25

IDS = [f"01890a5d-ac96-774b-bcce-{number:012x}" for number in range(8)]

ODD = [
    b"null", b"true", b"0", b"-0.0", b'""', b"[]", b"{}", b"1e308", b"1e-400", b"9" * 300, b"9" * 400, b"9" * 5000,
    b"NaN", b"-Infinity", b"1e999", b"01", b"+1", b"'a'", b"nul", rb'"\u0000"', rb'"\ud800"', rb'"\udc00\ud800"',
    rb'"\ud83d\udc0e"', rb'"\x"', b'"\x00"', b'"\xff"', b'"\xed\xa0\x80"', '"\U0001f40e"'.encode(), b'{"a":1,"a":2}',
    b'{"\\u0000":1}', b'{"":{"":[{}]}}', b"[" * 150 + b"]" * 150, b"[" * 5000, b"[1,]", b'{"a"}',
    b'"%s"' % (b"x" * 9000), b'["01890a5d-ac96-774b-bcce-000000000000"]', b'"travel\\u0000"', b'{"$ref":"#"}',
]  # fmt: skip
"""JSON that is unusual, and text that is none."""

MEMBERS: dict[str, list[bytes]] = {
    "pipeline": [b'"travel"'] * 12 + [b'"voyage"', b'"Travel"'],
    "payload": [b'{"to":"Rome"}', b"1", b"[1.5,null]"],
    "task_id": [b"null", *(f'"{one}"'.encode() for one in IDS)],
    "labels": [b"null", b"{}", b'{"team":"blue"}', b'{"a b":1}', b'{"n":"' + b"x" * 300 + b'"}'],
    "idempotency_key": [b"null", b'""', b"7", *(b'"line-%d"' % number for number in range(99))],
    "priority": [b"null", b'"normal"', b'"normal"', b'"high"', b'"urgent"'],
    "not_before": [b"null", b'"2026-12-01T10:00:00+21:46"', b'"0001-01-01T00:00:00+23:59"', b'"soon"', b"0"],
    "deadline": [b"null", b'"9999-12-31T23:59:59-23:59"', b'"9999-12-31T23:59:59Z"', b'"2020-01-01T00:00:00Z"', b'""'],
    "urgency": [b"1"],
}

HEADERS: dict[bytes, list[bytes]] = {
    b"idempotency-key": [b"a", b'"a"', b"b", b'"c\\"d"', b"", b'"', b"\xff", b"k" * 300, b"e f", b"\x00"],
    b"traceparent": [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"00-0-0-0", b"\xff", b"", b"-" * 900],
    b"content-length": [b"0", b"7", b"-1", b"9" * 9, b"9" * 6000, b"1e3", b"\xb2"],
    b"content-encoding": [b"gzip"],
}

MEDIA_TYPES = [b"text/plain", b"", b"application/json;charset=utf-16", b"APPLICATION/JSON", b"\xff/\xfe"]

PATHS = [
    "/v1/tasks",
    "/v1/tasks:batch",
    f"/v1/tasks/{IDS[0]}",
    f"/v1/tasks/{IDS[1]}/events",
    "/v1/tasks/%00",
    "/livez",
    "//",
]


@dataclass(frozen=True, slots=True)
class Sent:
    """A request."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


def sent(draw: Random) -> Sent:
    """A request near to one that would be accepted."""
    headers = [(name, draw.choice(values)) for name, values in HEADERS.items() if draw.random() < 0.12]
    if draw.random() < 0.1:
        return Sent(draw.choice(("GET", "PUT", "DELETE", "POST", "HEAD")), draw.choice(PATHS), headers, b"")
    is_batch = draw.random() < 0.3
    path, media_type = ("/v1/tasks:batch", b"application/x-ndjson") if is_batch else ("/v1/tasks", b"application/json")
    headers.append((b"content-type", draw.choice(MEDIA_TYPES) if draw.random() < 0.06 else media_type))
    body = b"\n".join(document(draw, is_batch) for _ in range(draw.randint(0, 8) if is_batch else 1))
    return Sent("POST", path, headers, mutated(draw, body) if draw.random() < 0.3 else body)


def document(draw: Random, is_line: bool) -> bytes:
    """The text of a task, most of whose members are as they should be."""
    names = ["pipeline", "payload"] if draw.random() < 0.95 else draw.choices(list(MEMBERS), k=3)
    for name, share in (
        ("task_id", 0.15),
        ("labels", 0.2),
        ("idempotency_key", 0.3 * is_line),
        ("priority", 0.1),
        ("not_before", 0.08),
        ("deadline", 0.08),
        ("urgency", 0.03),
    ):
        names += [name] * (draw.random() < share)
    draw.shuffle(names)
    values = (draw.choice(ODD if draw.random() < 0.12 else MEMBERS[name]) for name in names)
    return (
        b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in zip(names, values, strict=True)) + b"}"
    )


def mutated(draw: Random, body: bytes) -> bytes:
    """``body`` after one to three accidents."""
    for _ in range(draw.randint(1, 3)):
        start, end = sorted((draw.randint(0, len(body)), draw.randint(0, len(body))))
        match draw.randrange(6):
            case 0:
                body = body[:start] + draw.randbytes(draw.randint(1, 4)) + body[start:]
            case 1:
                body = body[:start] + body[end:]
            case 2:
                body = body[:start] + body[start:end] * draw.choice((2, 3, 2000))
            case 3:
                body = body[:start]
            case 4:
                body = body[:start] + draw.choice(ODD) + body[start:]
            case _:
                body = body[:start] + bytes([draw.randrange(256)]) + body[start + 1 :]
    return body


def told(answer: httpx2.Response) -> list[tuple[int, str | None, bool]]:
    """What an answer says of each task: the status, and of an accepted one its id and whether it is a replay."""
    match answer.headers.get("content-type"):
        case "application/problem+json":
            assert answer.request.method == "HEAD" or answer.json()["status"] == answer.status_code
            return [(answer.status_code, None, False)]
        case "application/x-ndjson":
            assert answer.status_code == 200
            lines = [json.loads(line) for line in answer.text.splitlines()]
            return [
                (line["status"], line["task_id"] if line["status"] == 202 else None, "replayed" in line)
                for line in lines
            ]
        case _ if answer.status_code == 202:
            return [(202, answer.json()["task_id"], "idempotent-replayed" in answer.headers)]
        case _:
            return [(answer.status_code, None, False)]


async def test_no_request_is_a_fault_of_ours_or_leaves_half_of_an_effect(settings: Settings, road: Road) -> None:
    draw = Random(1993)
    requests = [sent(draw) for _ in range(REQUESTS)]
    statuses: Counter[int] = Counter()
    created: list[str] = []
    replayed: set[str] = set()

    async with open_door(replace(settings, body_limit=16_384, batch_limit=65_536)) as client:
        for start in range(0, REQUESTS, AT_ONCE):
            group = requests[start : start + AT_ONCE]
            answers = await asyncio.gather(
                *(client.request(one.method, one.path, headers=one.headers, content=one.body) for one in group)
            )
            for one, answer in zip(group, answers, strict=True):
                for status, task_id, is_replay in told(answer):
                    statuses[status] += 1
                    assert status < 500, one
                    if task_id and is_replay:
                        replayed.add(task_id)
                    elif task_id:
                        created.append(task_id)

    rows = [str(task_id) for (task_id,) in await road.ask("select task_id from postroad.task")]
    assert sorted(created) == sorted(rows)
    assert replayed <= set(rows)
    assert await road.count("outbox") == {"outbox": len(rows)}
    assert await road.violated() == {}
    # Or the requests have become too tame, or too wild.
    assert len(rows) > REQUESTS / 4
    assert {200, 202, 400, 404, 405, 409, 413, 415, 422} <= set(statuses)
