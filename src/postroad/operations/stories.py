"""What happened to an event, a message, a push, a task or a job, and what would move it on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from postroad.agents import AgentStore, EventDelivery
from postroad.connections import dialect_of, path_of
from postroad.errors import ConfigurationError, InvalidInput, NotFound, PostroadError
from postroad.jobs import Jobs, job_story
from postroad.journal import Kind, Related, Step, Story, Verdict
from postroad.notifications import NotificationStore, configured_store, push_results
from postroad.operations.story_parts import Part, agent_part, answers_part, message_part, row_part
from postroad.outbox import Outbox
from postroad.ports import Store
from postroad.queues import MessageHistory
from postroad.settings import database_dsn
from postroad.tasks import task_story

_WORST_FIRST: Final[tuple[Verdict, ...]] = (
    *("dead", "failed", "blocked", "retrying", "in_flight", "delayed", "waiting"),
    *("expired", "handled", "completed"),
)
_OFFLINE: Final = "offline:"
_DISPATCHER: Final = "a dispatcher publishes it: postroad outbox run"
_PUSHER: Final = "a notification worker sends it: postroad notifications worker"
_REMEDY: Final = (
    "Give the id of an event, a message, a push, a task or a job. Of settled messages the last ones are remembered "
    "(`trail_keep`)."
)
_REMEDY_ON_AWS: Final = (
    "Give the id of an event of the outbox, a push, a task or a job. SQS tells nothing about a message by its id, and "
    "events of agents have no index there."
)


def why(backend: Store, name: str, *, tenant: str, app: str, agents: Callable[[], AgentStore] | None = None) -> Story:
    """Return what happened to the event, message, push, task or job with this id, and what it waits for.

    Args:
        backend: Where to look.
        name: The id.
        tenant: The tenant of tasks and jobs.
        app: The app of tasks and jobs.
        agents: Opens the store of agents; without it, their events are not looked for.

    Raises:
        NotFound: Nothing is known under this id.
    """
    history = backend.message_history()
    tellers: tuple[Callable[[], Story | None], ...] = (
        lambda: job_story(Jobs(backend, tenant_id=tenant, app=app), backend.journal(), tenant, name),
        lambda: task_story(backend, tenant, name),
        lambda: None if history is None else _message_story(history, name),
        lambda: _push_story(backend.url, history, name),
        lambda: _event_story(history, name, _deliveries(agents, name)),
    )
    unread: list[str] = []
    for tell in tellers:
        try:
            if (story := tell()) is not None:
                # SQS tells neither where a message is nor what became of it.
                limit = "" if history is not None else "; on AWS only what Postroad itself saw is known"
                return msgspec.structs.replace(story, summary=story.summary + limit)
        except InvalidInput:
            continue  # A text that cannot be an id is not found either.
        except ConfigurationError as error:
            unread.append(str(error))  # Who only uses queues has no tables of tasks.
    text = "; ".join(dict.fromkeys([f'nothing is known of "{name[:300]}"', *unread]))
    raise NotFound(text, remedy=_REMEDY_ON_AWS if history is None else _REMEDY)


def _message_story(history: MessageHistory, name: str) -> Story | None:
    part = message_part(history, name, first="sent")
    return None if part is None else _told("message", name, [part])


def _event_story(history: MessageHistory | None, name: str, deliveries: Sequence[EventDelivery]) -> Story | None:
    """Return the story of an event in the outbox, in each queue that got a copy, and with each agent."""
    copies = _copies(history, name, first="copied")
    recorded = _outbox_part(name)
    by_agents = [agent_part(each) for each in deliveries]
    parts = [*([] if recorded is None else [recorded]), *copies, *by_agents]
    if not parts:
        return None
    if recorded is not None and recorded.verdict == "handled" and len(parts) > 1:
        # It was dispatched; what matters from then on is where its copies are.
        parts = [recorded._replace(summary="it was dispatched"), *parts[1:]]
    sent = sorted(step.at for step in (*_steps(copies), *_steps(by_agents)))
    published = [Step(at=sent[0], what="published")] if sent else []
    kind: Kind = "message" if len(deliveries) == 1 and deliveries[0].message_id == name else "event"
    story = _told(kind, name, parts, [*(() if recorded is None else recorded.steps), *published])
    causes = [Related(each, "causes", "event") for each in ([] if history is None else history.caused_by(name))]
    return msgspec.structs.replace(story, related=[*story.related, *causes])


def _told(kind: Kind, name: str, parts: Sequence[Part], first: Sequence[Step] = ()) -> Story:
    """Return the story of all parts: the worst one gives the verdict."""
    worst = min(parts, key=lambda part: _WORST_FIRST.index(part.verdict))
    later = sorted((step for step in _steps(parts) if step not in first), key=lambda step: step.at)
    related = {(each.id, each.relation): each for part in parts for each in part.related if each.id != name}
    return Story(
        id=name,
        kind=kind,
        verdict=worst.verdict,
        summary=f"{kind} {name}: " + "; ".join(dict.fromkeys(part.summary for part in parts)),
        steps=[*first, *later],
        related=list(related.values()),
        next=worst.next,
    )


def _steps(parts: Iterable[Part]) -> list[Step]:
    return [step for part in parts for step in part.steps]


def _copies(history: MessageHistory | None, name: str, *, first: str) -> list[Part]:
    if history is None:
        return []
    told = [message_part(history, message_id, first=first) for message_id in history.messages_of(name)]
    return [part for part in told if part is not None]


def _deliveries(agents: Callable[[], AgentStore] | None, name: str) -> Sequence[EventDelivery]:
    if agents is None:
        return ()
    # A file that may only be read, or a store without agents, has none.
    with suppress(PostroadError):
        return agents().deliveries(name)
    return ()


def _outbox_part(name: str) -> Part | None:
    """Return how far the event is in the outbox that the environment names; None if it is not there."""
    dsn = database_dsn()
    if dsn is None or (event_id := _uuid(name)) is None:
        return None
    if dialect_of(dsn) == "sqlite" and not Path(path_of(dsn)).exists():
        return None  # Opening would create it.
    with suppress(PostroadError), closing(Outbox.open(dsn)) as outbox:
        row = outbox.get(event_id)
        return None if row is None else row_part(row, outbox.why(event_id), _DISPATCHER)
    return None


def _push_story(backend_url: str, history: MessageHistory | None, name: str) -> Story | None:
    """Return the story of a push, from the store of notifications that the environment names."""
    with suppress(PostroadError), closing(configured_store(backend_url)) as store:
        results, recorded = push_results(store, name), _recorded_push(store, name)
        # Events have UUIDs; what else a message carries is the id of a push that nobody has recorded or sent yet.
        may_be_push = results or recorded is not None or _uuid(name) is None
        queued = _copies(history, name, first="sent") if may_be_push else []
        answered = [] if not results else [answers_part(results)]
        parts = [*([] if recorded is None else [recorded]), *queued, *answered]
        if not parts:
            return None
        # What the providers answered decides, unless the push itself waits or is a dead letter.
        open_parts = [part for part in queued if part.verdict != "handled"] or answered or parts
        steps = sorted(_steps(parts), key=lambda step: step.at)
        return msgspec.structs.replace(_told("push", name, open_parts), steps=steps)
    return None


def _recorded_push(store: NotificationStore, name: str) -> Part | None:
    event_id = _uuid(name.removeprefix(_OFFLINE)) if name.startswith(_OFFLINE) else None
    row = None if event_id is None else store.outbox.get(event_id)
    return None if row is None or event_id is None else row_part(row, store.outbox.why(event_id), _PUSHER)


def _uuid(text: str) -> UUID | None:
    with suppress(ValueError):
        return UUID(text)
    return None
