"""The forms of what is sent to the routes of agents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from postroad.http.forms import Form, Reason, Receipts, Seconds

MAX_EVENTS = 500


class NewAgent(Form, frozen=True):
    """An agent to make; what is left out is chosen."""

    agentId: str | None = None
    order: Literal["producer", "total"] = "producer"
    accept: Literal["listed", "all"] = "listed"
    principalArn: str | None = None


class Event(Form, frozen=True):
    """One event. Its content is checked field by field, so that one bad event of a batch stops no other agent's."""

    agentId: Any = None
    timestamp: Any = None
    eventType: Any = None
    data: Any = None
    eventId: Any = None


class Events(Form, frozen=True):
    """Events of one or several agents, each agent's in order."""

    events: Annotated[list[Any], Meta(min_length=1, max_length=MAX_EVENTS)]


class AgentLease(Form, frozen=True):
    """How many events to lease, for how long, and how long to wait for the first."""

    wait: Annotated[float, Meta(ge=0, le=20)] = 0.0
    max_messages: Annotated[int, Meta(ge=1, le=10)] = 10
    visibility: Annotated[float, Meta(ge=1, le=43_200)] = 30.0


class AgentAcks(Form, frozen=True):
    """Leases whose events are done."""

    receipts: Receipts


class AgentExtensions(Form, frozen=True):
    """Leases to keep for `seconds` from now."""

    receipts: Receipts
    seconds: Seconds = 30.0


class AgentReleases(Form, frozen=True):
    """Leases to give back, to be received again after `after` seconds. `error` says what went wrong."""

    receipts: Receipts
    after: Seconds = 0.0
    error: str | None = None


class AgentRejections(Form, frozen=True):
    """Leases whose events go to the dead letters now, and why."""

    receipts: Receipts
    reason: Reason
    error: str | None = None


class TokenRotation(Form, frozen=True):
    """For how many seconds more the former token opens; with 0 it is void at once."""

    overlap: Annotated[float, Meta(ge=0, le=86_400)] = 600.0


class Replay(Form, frozen=True):
    """From when on to deliver again: a time, or 'trim_horizon' for all that is kept."""

    since: Any = "trim_horizon"


class AgentRedrive(Form, frozen=True):
    """How many dead letters to bring back; all without a limit."""

    limit: Annotated[int, Meta(ge=1, le=100_000)] | None = None
