"""`/health`, `/ready`, `/status`, `/`: how the service is."""

from __future__ import annotations

import time

import msgspec
from litestar import Response, get
from litestar.response import Redirect

from postroad.http.answers import answers
from postroad.http.guard import OPEN
from postroad.http.requests import ApiRequest
from postroad.version import __version__
from postroad.views import BackendShown, Health, Ready, Status

_HEALTH = msgspec.json.encode(Health("ok", __version__))


@get("/health", opt={"scope": OPEN}, responses=answers(Health, says="The process lives."))
async def health() -> Response[bytes]:
    """Whether the process lives; touches no storage."""
    return Response(_HEALTH, media_type="application/json")


@get(
    "/ready",
    opt={"scope": OPEN},
    responses=answers(Ready, says="It can do its work.") | answers(Ready, status=503, says="It cannot, for now."),
)
async def ready(request: ApiRequest) -> Response[Ready]:
    """Whether storage and runners can do their work; 503 when not."""
    document = await request.context.readiness.document()
    is_ready = document.status == "ready"
    headers = {} if is_ready else {"Retry-After": "1"}
    return Response(document, status_code=200 if is_ready else 503, headers=headers)


@get("/status", opt={"scope": "read"}, responses=answers(Status, says="What runs."))
async def status(request: ApiRequest) -> Response[Status]:
    """The version, the backend and every part with its process."""
    context = request.context
    return Response(
        Status(
            version=__version__,
            uptime_seconds=round(time.monotonic() - context.started_at, 3),
            backend=BackendShown(context.backend.url, context.backend.kind),
            read_only=context.settings.read_only,
            parts=list(context.parts),
        )
    )


@get("/", opt={"scope": "read"}, responses=answers(None, status=303, says="Go to /schema."), status_code=303)
async def root() -> Redirect:
    """Where to start."""
    return Redirect("/schema", status_code=303)
