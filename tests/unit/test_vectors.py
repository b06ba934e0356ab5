"""The requests of examples/polyglot/vectors.json, for other languages: signed ones are ours, forged ones are not."""

import json
from datetime import datetime
from email.message import Message
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from examples.polyglot.book import is_signed
from postroad import HttpStage, Pipeline, Task
from postroad.core.http_stage import secret_bytes
from postroad.stages.service import request_headers, signature

FILE = json.loads((Path(__file__).parents[2] / "examples/polyglot/vectors.json").read_text("utf-8"))
SECRET, SECOND = secret_bytes(FILE["secret"]), secret_bytes(FILE["second_secret"])
GOOD = [vector for vector in FILE["vectors"] if vector["is_good"]]


def named(vector: dict[str, Any]) -> str:
    return str(vector["name"])


@pytest.mark.parametrize("vector", GOOD, ids=named)
def test_a_good_vector_is_what_we_send(vector: dict[str, Any]) -> None:
    headers, body = vector["headers"], vector["body"].encode()
    told = json.loads(body)
    orders = Pipeline("orders")
    orders.add("price", HttpStage("http://host/"))
    task = Task(
        task_id=UUID(told["task_id"]),
        pipeline="orders",
        stage="price",
        payload=told["payload"],
        results={},
        attempt=1,
        labels={},
        created_at=datetime.fromisoformat(told["created_at"]),
        traceparent=headers["traceparent"],
    )

    sent = request_headers(orders.graph()["price"], task, body, [], headers["traceparent"])
    signed = signature(headers["webhook-id"], int(headers["webhook-timestamp"]), body, [SECRET])

    assert task.document() == told
    assert {name: sent[name] for name in sent if name != "user-agent"} == {
        name: value for name, value in headers.items() if not name.startswith("webhook-")
    }
    assert signed["webhook-signature"] == vector["expected"]
    assert vector["expected"] in headers["webhook-signature"].split(" ")


@pytest.mark.parametrize("vector", FILE["vectors"], ids=named)
def test_the_service_of_the_example_tells_good_ones_from_forged_ones(vector: dict[str, Any]) -> None:
    headers = Message()
    for name, value in vector["headers"].items():
        headers[name] = value

    assert is_signed(headers, vector["body"].encode(), SECRET, FILE["now"]) is vector["is_good"]


def test_the_second_secret_is_that_of_the_pairs() -> None:
    pairs = [vector for vector in GOOD if "while secrets are changed" in vector["name"]]

    for vector in pairs:
        headers = vector["headers"]
        other = signature(headers["webhook-id"], int(headers["webhook-timestamp"]), vector["body"].encode(), [SECOND])
        assert set(headers["webhook-signature"].split(" ")) == {vector["expected"], other["webhook-signature"]}
    assert len(pairs) == 2
