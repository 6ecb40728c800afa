"""The description of the API as OpenAPI 3.1, made from the routes themselves, and the page that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from html import escape
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec

from postroad import __version__
from postroad.http import forms
from postroad.http.authentication import OPEN
from postroad.http.requests import ApiRequest
from postroad.views import Problem


def answers(
    what: Any, *more: int, status: int = 200, says: str, media_type: str = "application/json"
) -> dict[int, ResponseSpec]:
    """The answers of a route: the good one, and a problem for each of the other statuses."""
    good = ResponseSpec(data_container=what, generate_examples=False, description=says, media_type=media_type)
    return {status: good} | {
        other: ResponseSpec(
            data_container=Problem,
            generate_examples=False,
            description=SAYS[other],
            media_type="application/problem+json",
        )
        for other in more
    }


SAYS = {
    400: "Malformed or invalid; `field` names what is at fault.",
    401: "No token, or one that opens nothing.",
    403: "The token's scope does not reach this, or the server is read-only.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    409: "It conflicts with what is there.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too much at once; `Retry-After` says when to come again.",
    500: "Nothing Postroad foresaw; the log has the request id.",
    503: "The storage refuses for now; `Retry-After` says when to come again.",
}


_EVERYWHERE = (400, 500)
_WITH_TOKEN = (401, 403, 429, 503)
_WITH_BODY = (408, 413, 415)
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key again gets the first answer again, for 24 hours.",
    "schema": {"type": "string", "pattern": "^[ -~]{1,128}$"},
}


class Description:
    """Made when somebody first asks for it."""

    def __init__(self, routes: Sequence[HTTPRouteHandler]) -> None:
        self._routes = routes

    @cached_property
    def encoded(self) -> bytes:
        """The description as bytes."""
        return msgspec.json.encode(self.document)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The description."""
        config = OpenAPIConfig(
            title="Postroad",
            version=__version__,
            description="Events that arrive.",
            path="/unserved",
            use_handler_docstrings=True,
            operation_id_creator=lambda route, method, path: route.handler_name,
        )
        # An app of its own that nobody serves: the framework would add routes and pages that are not ours.
        app = Litestar(self._routes, request_class=ApiRequest, openapi_config=config, logging_config=None)
        document: dict[str, Any] = msgspec.to_builtins(app.openapi_schema.to_schema())
        return _completed(document, self._routes)


def _completed(document: dict[str, Any], routes: Sequence[HTTPRouteHandler]) -> dict[str, Any]:
    """Add what holds for all routes: tokens, problems, examples, and that unknown fields are refused."""
    for form in forms.Form.__subclasses__():
        if form.__name__ in document["components"]["schemas"]:
            document["components"]["schemas"][form.__name__]["additionalProperties"] = False
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    scopes = {route.handler_name: route.opt["scope"] for route in routes}
    for method, operation in _operations(document):
        scope = scopes[operation["operationId"]]
        operation["security"] = [] if scope == OPEN else [{"token": []}]
        operation["x-scope"] = scope
        _add_problems(operation, needs_token=scope != OPEN)
        if method == "post":
            operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in document["paths"].values():
        yield from ((method, path[method]) for method in ("get", "put", "post", "delete") if method in path)


def _add_problems(operation: dict[str, Any], *, needs_token: bool) -> None:
    statuses = [*_EVERYWHERE, *(_WITH_TOKEN if needs_token else ())]
    if (body := operation.get("requestBody")) is not None:
        statuses.extend(_WITH_BODY)
        content = body["content"]["application/json"]
        content["example"] = content["schema"].pop("examples")[0]
    for status in statuses:
        content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        operation["responses"].setdefault(str(status), {"description": SAYS[status], "content": content})


STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
article { border: 1px solid var(--line); border-radius: 8px; padding: 0 1rem; margin: 1rem 0; }
h2 { font: 600 1rem/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid var(--line); border-radius: 6px; }
dt { font-weight: 600; } .scope { opacity: .75; font-weight: 400; }
"""
_METHODS = ("get", "put", "post", "delete")


def render(document: dict[str, Any]) -> str:
    """The description as HTML."""
    routes = "\n".join(
        _route(method.upper(), path, item[method])
        for path, item in sorted(document["paths"].items())
        for method in _METHODS
        if method in item
    )
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: API</title><link rel="stylesheet" href="/schema/style.css"></head><body>'
        f'<main id="main" data-page="schema"><h1>{title}: API</h1>'
        "<p>Send <code>Authorization: Bearer …</code> with every request. For programs: "
        f'<a href="/schema/openapi.json">openapi.json</a>.</p>{routes}</main></body></html>'
    )


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{escape(operation.get('description', ''))}</p>"]
    if "requestBody" in operation:
        example = operation["requestBody"]["content"]["application/json"]["example"]
        parts.append(f"<pre>{escape(msgspec.json.format(msgspec.json.encode(example)).decode())}</pre>")
    parts.append("<dl>" + "".join(_parameter(one) for one in operation.get("parameters", [])) + "</dl>")
    answers = ", ".join(
        f"{status} {escape(one['description'])}" for status, one in sorted(operation["responses"].items())
    )
    parts.append(f"<details><summary>Answers</summary><p>{answers}</p></details>")
    scope = f'<span class="scope">{escape(operation["x-scope"])}</span>'
    return f"<article><h2>{method} {escape(path)} {scope}</h2>{''.join(parts)}</article>"


def _parameter(parameter: dict[str, Any]) -> str:
    return f"<dt>{escape(parameter['name'])}</dt><dd>{escape(parameter.get('description', ''))}</dd>"
