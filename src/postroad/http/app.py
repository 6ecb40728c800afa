"""The app: all routes behind one middleware, and the HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import h11
import uvicorn
from litestar import Litestar
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from postroad.errors import InvalidInput
from postroad.http.authentication import guard
from postroad.http.context import Context
from postroad.http.middleware import RequestMiddleware
from postroad.http.openapi import Description
from postroad.http.requests import MEDIA_TYPE, ApiRequest, answer_error, encoded
from postroad.http.routes.agent_leases import (
    ack_events,
    extend_events,
    lease_events,
    list_agent_dead_letters,
    redrive_agent_dead_letters,
    reject_events,
    release_events,
    show_lane,
    stream_events,
)
from postroad.http.routes.agents import (
    create_agent,
    delete_agent,
    grant_listener,
    list_agents,
    list_subscribers,
    list_subscriptions,
    pause_subscription,
    replay_subscription,
    resume_subscription,
    revoke_listener,
    rotate_agent_token,
    show_agent,
    subscribe_agent,
    unsubscribe_agent,
)
from postroad.http.routes.events import publish_event, publish_events
from postroad.http.routes.leases import ack_messages, extend_leases, lease_messages, reject_messages, release_messages
from postroad.http.routes.queues import (
    delete_queue,
    list_failure_groups,
    list_queues,
    peek_messages,
    purge_queue,
    put_queue,
    send_messages,
    show_queue,
)
from postroad.http.routes.service import (
    create_token,
    explain_error,
    health,
    list_tokens,
    openapi,
    ready,
    revoke_token,
    root,
    schema,
    status,
    style,
    tell_why,
)
from postroad.http.routes.work import (
    add_job_tasks,
    cancel_job,
    list_jobs,
    resume_job,
    show_job,
    show_task,
    show_task_history,
    submit_job,
    submit_task,
)

ROUTES: tuple[HTTPRouteHandler, ...] = (
    *(root, health, ready, status, explain_error, schema, openapi, style),
    *(list_queues, show_queue, put_queue, delete_queue, purge_queue, list_failure_groups),
    *(send_messages, peek_messages),
    *(lease_messages, ack_messages, extend_leases, release_messages, reject_messages),
    *(create_token, list_tokens, revoke_token),
    *(submit_task, show_task, show_task_history),
    *(submit_job, list_jobs, show_job, add_job_tasks, resume_job, cancel_job, tell_why),
    *(create_agent, list_agents, show_agent, delete_agent, rotate_agent_token),
    *(subscribe_agent, unsubscribe_agent, list_subscriptions, list_subscribers, grant_listener, revoke_listener),
    *(pause_subscription, resume_subscription, replay_subscription),
    *(publish_event, publish_events),
    *(lease_events, ack_events, extend_events, release_events, reject_events, stream_events),
    *(show_lane, list_agent_dead_letters, redrive_agent_dead_letters),
)


def create_app(context: Context) -> ASGIApp:
    """The API over what the context holds."""
    return RequestMiddleware(_routing(), context)


@cache
def _routing() -> ASGIApp:
    """Finds the route of a request and runs it on the context that the door gave it; the same for every context."""
    return Litestar(
        ROUTES,
        state=State({"openapi": Description(ROUTES)}),
        request_class=ApiRequest,
        # Before the body is read. The framework's own guards do the same, but copy the route for every request.
        before_request=guard,
        exception_handlers={Exception: answer_error},
        openapi_config=None,
        logging_config=None,
        # The limit is ours: it is checked before and while the body is read.
        request_max_body_size=None,
    )


_HEADER_SECONDS = 15.0
_KEEP_ALIVE_SECONDS = 75
_STOP_SECONDS = 8


class PatientProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time, and speaks of errors in our form."""

    header_seconds = _HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        super().connection_made(transport)
        self._expect_more()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering():
            self._expect_nothing()
        else:
            self._expect_more()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering():
            self._expect_nothing()
            if self.conn.their_state is h11.SEND_BODY:
                # The rest of a body that was refused: it may trickle in for a while, but not for ever.
                self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_more(self) -> None:
        """Measure the time from here, unless it is being measured already."""
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _answering(self) -> bool:
        # The base says that there is always a cycle; before the first request there is none.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        body = encoded(InvalidInput("this is not an HTTP request"), None)
        headers = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A server that leaves signals to whoever started the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, **options: Any) -> Server:
    """A server for the app; `serve(sockets=[…])` runs it until `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
        **options,
    )
    return Server(config)
