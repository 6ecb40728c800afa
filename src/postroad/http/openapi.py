"""Declaring routes, and the description of the API that is made from them: OpenAPI 3.1."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import msgspec
from litestar import Litestar, delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad import __version__
from postroad.http import forms
from postroad.http.requests import AGENT, BODILESS, OPEN, ApiRequest
from postroad.views import PROBLEM_MEDIA_TYPE, Problem

_METHODS: dict[str, Callable[..., HTTPRouteHandler]] = {"get": get, "put": put, "post": post, "delete": delete}


def route(
    address: str,
    scope: str,
    what: Any,
    *errors: int,
    status: int = 200,
    says: str | None = None,
    agent: str | None = None,
    bodiless: bool = False,
    media_type: str = "application/json",
    also: Mapping[int, ResponseSpec] = MappingProxyType({}),
) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Declare a route.

    Args:
        address: The method and the path.
        scope: The scope that a token needs, or `OPEN`.
        what: The type of the answer.
        errors: The statuses of its problems, besides those that every route has.
        status: The status of the answer.
        says: What the answer is; by default the first line of its type's docstring, or "Done." if it has none.
        agent: Which part of the path must be the agent whose token it is, or `ANY_AGENT`; None if no agent may call.
        bodiless: Whether the body may be left out.
        media_type: The type of the answer's body.
        also: Further answers, by status.
    """
    method, _, path = address.partition(" ")
    options: dict[str, Any] = {"scope": scope, AGENT: agent, BODILESS: bodiless}
    kind = getattr(what, "__origin__", what)
    described = says or ("Done." if kind is None else (kind.__doc__ or "").strip().split("\n", 1)[0])
    responses = answers(what, *errors, status=status, says=described, media_type=media_type) | dict(also)
    return _METHODS[method.lower()](path, opt=options, status_code=status, responses=responses)


def example(value: dict[str, Any]) -> Any:
    """Return the annotation of a body with an example."""
    return Body(examples=[Example(value=value)])


def answers(
    what: Any, *errors: int, status: int = 200, says: str, media_type: str = "application/json"
) -> dict[int, ResponseSpec]:
    """Return the answers of a route: the good one, and a problem for each of the other statuses."""

    def spec(what: Any, says: str, media_type: str) -> ResponseSpec:
        return ResponseSpec(data_container=what, generate_examples=False, description=says, media_type=media_type)

    good = {status: spec(what, says, media_type)}
    return good | {error: spec(Problem, SAYS[error], PROBLEM_MEDIA_TYPE) for error in errors}


SAYS = {
    400: "The request is malformed or invalid; `field` names the field at fault.",
    401: "There is no token, or it is not valid.",
    403: "The token's scope does not reach this, or the server is read-only.",
    404: "It does not exist.",
    408: "The body was sent too slowly.",
    409: "It conflicts with what exists.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests; `Retry-After` says when to try again.",
    431: "There are too many headers, or they are too long.",
    500: "An unexpected error; the log has the request id.",
    503: "The storage is not available; `Retry-After` says when to try again.",
}


_PAGE = re.compile(rb'Page_(?:[\w.]*\.)?(\w+?)_(?=")')
_EVERYWHERE = (400, 431, 500)
_WITH_TOKEN = (401, 403, 429, 503)
_WITH_BODY = (408, 413, 415)
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A repeat with the same key gets the first answer again, for 24 hours.",
    "schema": {"type": "string", "pattern": "^[ -~]{1,128}$"},
}


class Description:
    """The description of the API, made on first use."""

    def __init__(self, routes: Sequence[HTTPRouteHandler]) -> None:
        self._routes = routes

    @cached_property
    def encoded(self) -> bytes:
        """The description as JSON."""
        return msgspec.json.encode(self.document)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The description as OpenAPI."""
        config = OpenAPIConfig(
            title="Postroad",
            version=__version__,
            description="Events that arrive.",
            path="/unserved",
            use_handler_docstrings=True,
            operation_id_creator=lambda route, method, path: route.handler_name,
        )
        # A separate app that is never served: the framework would add routes and pages to the one that is.
        app = Litestar(self._routes, request_class=ApiRequest, openapi_config=config, logging_config=None)
        text = msgspec.json.encode(app.openapi_schema.to_schema())
        # The framework calls a page of rows after the module of the rows.
        return _completed(msgspec.json.decode(_PAGE.sub(rb"\1Page", text)), self._routes)


def _completed(document: dict[str, Any], routes: Sequence[HTTPRouteHandler]) -> dict[str, Any]:
    """Add what applies to all routes: tokens, problems, examples, and the limits of bodies."""
    _, described = msgspec.json.schema_components(
        forms.Form.__subclasses__(), ref_template="#/components/schemas/{name}"
    )
    # The framework leaves out some limits of the forms.
    schemas = document["components"]["schemas"]
    schemas |= {name: schema for name, schema in described.items() if name in schemas}
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    options = {route.handler_name: route.opt for route in routes}
    operations = (
        (method, path[method]) for path in document["paths"].values() for method in _METHODS if method in path
    )
    for method, operation in operations:
        scope = options[operation["operationId"]]["scope"]
        operation["security"] = [] if scope == OPEN else [{"token": []}]
        operation["x-scope"] = scope
        _add_problems(operation, needs_token=scope != OPEN)
        if "requestBody" in operation:
            operation["requestBody"]["required"] = not options[operation["operationId"]][BODILESS]
        if method == "post":
            operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
            operation["responses"].setdefault("409", _problem(409))
    return document


def _add_problems(operation: dict[str, Any], *, needs_token: bool) -> None:
    statuses = [*_EVERYWHERE, *(_WITH_TOKEN if needs_token else ())]
    if (body := operation.get("requestBody")) is not None:
        statuses.extend(_WITH_BODY)
        described = body["content"]["application/json"]
        described["example"] = described["schema"].pop("examples")[0]
    # The framework describes a 400 of its own, which no route answers.
    for status in statuses:
        operation["responses"][str(status)] = _problem(status)


def _problem(status: int) -> dict[str, Any]:
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": SAYS[status], "content": content}
