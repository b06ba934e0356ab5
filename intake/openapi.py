"""The door's description, OpenAPI 3.1, made from its endpoints."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from .endpoint import Body, Endpoint, Reply, ref
from .members import Member
from .problems import MEDIA_TYPE
from .schemas import SCHEMAS

_PROBLEMS: Mapping[int, str] = {
    400: "No JSON, not UTF-8, a bad header or query, or a body that breaks off.",
    401: "No key, or none that is valid.",
    403: "The key does not allow this.",
    404: "There is no such thing.",
    409: "It does not fit the state that things are in.",
    413: "The body is too large.",
    415: "Another Content-Type, or a Content-Encoding.",
    422: "JSON, but not what is asked for; `errors` names the members.",
    429: "Too much at once; `Retry-After` says when to ask again.",
    503: "Postgres is away, or cannot take more now; `Retry-After` says when to ask again.",
}

_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "task_id": {"type": "string", "format": "uuid"},
    "pipeline": {"type": "string", "minLength": 1},
    "stage": {"type": "string", "minLength": 1},
    "token": {"type": "string", "minLength": 1},
}
"""What the parts of paths are."""

_KEYS = {"key": {"type": "http", "scheme": "bearer", "description": "a key that postroad key create has made"}}

VERSION: Final = version("postroad")


def describe(endpoints: Iterable[Endpoint], *, needs_key: bool) -> dict[str, Any]:
    """The OpenAPI document of ``endpoints``; ``needs_key``: callers must show that they are allowed to ask."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, needs_key=needs_key)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "postroad",
            "version": VERSION,
            "description": "Tasks come in, are stored before they are acknowledged, and travel from stage to stage.",
        },
        "paths": paths,
        "components": {"schemas": SCHEMAS} | ({"securitySchemes": _KEYS} if needs_key else {}),
    }


def _operation(endpoint: Endpoint, *, needs_key: bool) -> dict[str, Any]:
    statuses = {
        *endpoint.problems,
        *((400, 413, 415) if endpoint.body else ()),
        *((401, 403) if endpoint.scope else ()),
    }
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": [
            *(_parameter("path", name, _PARAMETERS[name]) for name in re.findall(r"{(\w+)}", endpoint.path)),
            *(_given("query", name, member) for name, member in endpoint.query.items()),
            *(_given("header", name, member) for name, member in endpoint.headers.items()),
        ],
        "responses": {
            **{str(status): _reply(reply) for status, reply in endpoint.replies.items()},
            **{str(status): _problem(status) for status in sorted(statuses)},
        },
    }
    if endpoint.body:
        operation["requestBody"] = _body(endpoint.body)
    if needs_key and endpoint.scope:
        operation["security"] = [{"key": [endpoint.scope]}]
    return operation


def _parameter(place: str, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"in": place, "name": name, "required": True, "schema": schema}


def _given(place: str, name: str, member: Member) -> dict[str, Any]:
    return {
        "in": place, "name": name, "required": False, "description": member.description, "schema": member.schema,
    }  # fmt: skip


def _body(body: Body) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": body.schema}
    if body.example is not None:
        content["example"] = body.example
    return {"required": body.is_required, "content": {body.media_type: content}}


def _reply(reply: Reply) -> dict[str, Any]:
    told: dict[str, Any] = {"description": reply.description}
    if reply.schema is not None:
        content: dict[str, Any] = {"schema": reply.schema}
        if reply.example is not None:
            content["example"] = reply.example
        others = {media_type: {"schema": schema} for media_type, schema in reply.also.items()}
        told["content"] = {reply.media_type: content} | others
    if reply.headers:
        told["headers"] = {
            name: {"description": says, "schema": {"type": "string"}} for name, says in reply.headers.items()
        }
    return told


def _problem(status: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}. {_PROBLEMS[status]}",
        "content": {MEDIA_TYPE: {"schema": ref("Problem")}},
    }
    if status in (429, 503):
        told["headers"] = {"Retry-After": {"description": "in so many seconds", "schema": {"type": "string"}}}
    return told
