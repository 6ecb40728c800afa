"""The description of the API as OpenAPI 3.1, made from the routes themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig

from postroad.http import forms
from postroad.http.answers import SAYS
from postroad.http.guard import OPEN
from postroad.http.requests import ApiRequest
from postroad.version import __version__

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
