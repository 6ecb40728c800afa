"""The app: all routes behind one door."""

from __future__ import annotations

from functools import cache

from litestar import Litestar
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from postroad.http.context import Context
from postroad.http.door import Door
from postroad.http.guard import guard
from postroad.http.openapi import Description
from postroad.http.problems import answer_error
from postroad.http.requests import ApiRequest
from postroad.http.routes.agents import (
    create_agent,
    delete_agent,
    list_agents,
    rotate_agent_token,
    show_agent,
)
from postroad.http.routes.errors import explain_error
from postroad.http.routes.events import publish_event, publish_events
from postroad.http.routes.jobs import add_job_tasks, cancel_job, list_jobs, resume_job, show_job, submit_job
from postroad.http.routes.lanes import (
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
from postroad.http.routes.leases import ack_messages, extend_leases, lease_messages, reject_messages, release_messages
from postroad.http.routes.messages import peek_messages, send_messages
from postroad.http.routes.queues import (
    delete_queue,
    list_failure_groups,
    list_queues,
    purge_queue,
    put_queue,
    show_queue,
)
from postroad.http.routes.schema import openapi, schema, style
from postroad.http.routes.service import health, ready, root, status
from postroad.http.routes.subscriptions import (
    grant_listener,
    list_subscribers,
    list_subscriptions,
    pause_subscription,
    replay_subscription,
    resume_subscription,
    revoke_listener,
    subscribe_agent,
    unsubscribe_agent,
)
from postroad.http.routes.tasks import show_task, show_task_history, submit_task
from postroad.http.routes.tokens import create_token, list_tokens, revoke_token
from postroad.http.routes.why import tell_why

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
    return Door(_routing(), context)


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
