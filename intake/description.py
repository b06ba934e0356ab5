"""The door's description as it is served: the OpenAPI document, and a page of it that needs nothing from elsewhere."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from .endpoint import Endpoint
from .keyring import Keyring
from .openapi import describe

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
details { border: 1px solid #8886; border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer } summary code { font-weight: 600 } summary span { opacity: .75 }
pre { overflow-x: auto; background: #8882; padding: .6rem; border-radius: .4rem }
table { border-collapse: collapse; width: 100% }
td { padding: .2rem .8rem .2rem 0; vertical-align: top }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Nothing is loaded, and nothing runs: the page is text and one style of its own."""


class Description:
    """Answers with what ``endpoints`` are; whether they need a key, ``keyring`` knows."""

    def __init__(self, endpoints: Sequence[Endpoint], keyring: Keyring) -> None:
        self._endpoints = endpoints
        self._keyring = keyring
        self._documents: dict[bool, dict[str, Any]] = {}

    @property
    def _document(self) -> dict[str, Any]:
        needs_key = self._keyring.is_needed
        if needs_key not in self._documents:
            self._documents[needs_key] = describe(self._endpoints, needs_key=needs_key)
        return self._documents[needs_key]

    async def document(self, request: Request) -> Response:
        """The OpenAPI document."""
        return JSONResponse(self._document)

    async def page(self, request: Request) -> Response:
        """The same for people."""
        return HTMLResponse(page_of(self._document), headers={"Content-Security-Policy": _POLICY})


def page_of(document: dict[str, Any]) -> str:
    """The OpenAPI ``document`` as one page of HTML."""
    operations = "\n".join(
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "\n".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>'
        for name, schema in document["components"]["schemas"].items()
    )
    info = document["info"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])} {escape(info["version"])}: the HTTP door</title><style>{_STYLE}</style></head>
<body><h1>{escape(info["title"])} <small>{escape(info["version"])}</small></h1>
<p>{escape(info["description"])} The same as <a href="openapi.json">OpenAPI 3.1</a>.</p>
<h2>Calls</h2>
{operations}
<h2>Shapes</h2>
{schemas}
</body></html>
"""


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}</td>"
        f"<td>{escape(one.get('description', ''))}</td></tr>"
        for one in operation["parameters"]
    )
    body = "".join(
        f"<h4>Body: <code>{escape(media_type)}</code></h4>{_content(content)}"
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items()
    )
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(answer['description'])}</td><td>{_shapes(answer)}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    scopes = ", ".join(scope for needed in operation.get("security", ()) for scope in needed["key"])
    return (
        f"<details><summary><code>{escape(method.upper())} {escape(path)}</code> "
        f"<span>{escape(operation['summary'])}</span></summary>"
        + (f"<p>Scope: {escape(scopes)}</p>" if scopes else "")
        + (f"<h4>Parameters</h4><table>{parameters}</table>" if parameters else "")
        + f"{body}<h4>Answers</h4><table>{answers}</table></details>"
    )


def _content(content: dict[str, Any]) -> str:
    example = f"<p>Example</p>{_json(content['example'])}" if "example" in content else ""
    name = _name_of(content["schema"])
    return (f'<p><a href="#{escape(name)}">{escape(name)}</a></p>' if name else _json(content["schema"])) + example


def _shapes(answer: dict[str, Any]) -> str:
    names = [_name_of(content["schema"]) for content in answer.get("content", {}).values()]
    return ", ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names if name)


def _name_of(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _json(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2)
    return f"<pre>{escape(text)}</pre>"
