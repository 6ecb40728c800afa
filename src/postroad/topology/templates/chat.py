"""Chat notifications: offline messages and pushes, each with its dead letters and alarms."""

from __future__ import annotations

from typing import Any

from postroad.topology.declarations import AlarmDecl, Component, QueueDecl, TopicDecl
from postroad.topology.findings import Finding, refuse
from postroad.topology.names import role_name
from postroad.topology.templates.queues import FOUR_DAYS, dead_letters, queue
from postroad.topology.topology import Topology

VISIBLE = "ApproximateNumberOfMessagesVisible"
OLDEST = "ApproximateAgeOfOldestMessage"
_OLDEST_SECONDS = 300


def chat_topology(project: str, env: str) -> Topology:
    """The queues of a chat's notifications, named `{project}-{env}-…`."""
    base = _base(project, env)
    push, offline = f"{base}-push", f"{base}-offline"
    tags = {"Project": project, "Environment": env, "ManagedBy": "postroad"}
    return Topology(
        base,
        (
            *_pair(push, tags, visibility=60, purposes=("push-notifications", "push-notification-dlq")),
            *_pair(offline, tags, visibility=30, purposes=("offline-message-fanout", "offline-message-dlq")),
            TopicDecl(f"{base}-alerts"),
            *_alarms(base, "push"),
            *_alarms(base, "offline"),
        ),
        components=_components(base),
        tags=tags,
    )


def _base(project: str, env: str) -> str:
    base = f"{project}-{env}"
    given: dict[str, object] = {"project": project, "env": env}
    for part, value in given.items():
        if isinstance(value, str) and value:
            continue
        name = f"{base}-push-queue"
        why = "is empty" if value == "" else f"is {type(value).__name__}, not a text"
        message = f"{name!r} is not the name of a queue of its own: {part} {why}"
        raise refuse([Finding("name-invalid", "error", name, message, "Name the project and the environment.")])
    return base


def _pair(
    stem: str, tags: dict[str, str], *, visibility: int, purposes: tuple[str, str]
) -> tuple[QueueDecl, QueueDecl]:
    name, dlq = f"{stem}-queue", f"{stem}-dlq"
    kept = dead_letters(dlq, name, tags={**tags, "Name": dlq, "Purpose": purposes[1]})
    used = queue(
        name,
        tags={**tags, "Name": name, "Purpose": purposes[0]},
        visibility=visibility,
        retention=FOUR_DAYS,
        receive_wait=20,
        max_receives=3,
        dead_letter=dlq,
    )
    return kept, used


def _alarms(base: str, which: str) -> tuple[AlarmDecl, AlarmDecl]:
    alerts = f"{base}-alerts"
    return (
        AlarmDecl(f"{base}-sqs-{which}-dlq", VISIBLE, f"{base}-{which}-dlq", 1, notify=alerts),
        AlarmDecl(
            f"{base}-sqs-{which}-oldest",
            OLDEST,
            f"{base}-{which}-queue",
            _OLDEST_SECONDS,
            comparison=">",
            periods=3,
            notify=alerts,
        ),
    )


def _components(base: str) -> tuple[Component, ...]:
    queues, dlqs = (f"{base}-push-queue", f"{base}-offline-queue"), (f"{base}-push-dlq", f"{base}-offline-dlq")

    def component(name: str, **needs: Any) -> Component:
        return Component(name, role=role_name(base, name), **needs)

    return (
        component("realtime", sends=queues[1:]),
        component("workers", consumes=queues, sends=queues[:1]),
        component("operator", operates=dlqs),
        component("dashboard", observes=(*queues, *dlqs)),
    )
