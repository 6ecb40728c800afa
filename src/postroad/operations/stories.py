"""What happened to an event, a message, a push, a task or a job, and what would move it on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from postroad.agents import AgentStore, EventDelivery
from postroad.connections import dialect_of, path_of
from postroad.errors import InvalidInput, NotFound, PostroadError
from postroad.events import codec
from postroad.jobs import JobViews, job_story
from postroad.journal import NOTHING, Kind, Related, Step, Story, Verdict, iso
from postroad.notifications import NotificationStore, PushShown, configured_store, push_results
from postroad.outbox import Outbox, OutboxRow
from postroad.ports import Store
from postroad.queues import Located, MessageHistory, Settled, legible, read_dead
from postroad.settings import database_dsn
from postroad.tasks import task_story

_WORST_FIRST: Final[tuple[Verdict, ...]] = (
    *("dead", "failed", "blocked", "retrying", "in_flight", "delayed", "waiting"),
    *("expired", "handled", "completed"),
)
_GONE: Final = "nothing: it is gone"
_FOR_EVER: Final = 1e9
_OFFLINE: Final = "offline:"
_REMEDY: Final = (
    "Give the id of an event, a message, a push, a task or a job. Of settled messages the embedded engine remembers "
    "the last ones (`trail_keep`), and SQS none."
)


class _Part(NamedTuple):
    """The story of one copy of an event, or of one message."""

    verdict: Verdict
    summary: str
    next: str
    steps: Sequence[Step]
    related: Sequence[Related] = ()


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
        lambda: job_story(JobViews.of(backend, tenant_id=tenant, app=app), backend.journal(), tenant, name),
        lambda: task_story(backend, tenant, name),
        lambda: None if history is None else _message_story(history, name),
        lambda: _push_story(backend.url, history, name),
        lambda: _event_story(history, name, _deliveries(agents, name)),
    )
    for tell in tellers:
        # A text that cannot be an id is not found either.
        with suppress(InvalidInput):
            if (story := tell()) is not None:
                return story if history is not None or story.kind in ("task", "job") else _limited(story)
    raise NotFound(f'nothing is known of "{name[:300]}"', remedy=_REMEDY)


def _limited(story: Story) -> Story:
    """Return the story with what it cannot know: SQS does not say where a message is."""
    return msgspec.structs.replace(story, summary=f"{story.summary}; on AWS only what Postroad itself saw is known")


def _message_story(history: MessageHistory, name: str) -> Story | None:
    part = _message(history, name, first="sent")
    return None if part is None else _told("message", name, [part])


def _event_story(history: MessageHistory | None, name: str, deliveries: Sequence[EventDelivery]) -> Story | None:
    """Return the story of an event in the outbox, in each queue that got a copy, and with each agent."""
    copies = _copies(history, name, first="copied")
    recorded = _outbox_part(name)
    by_agents = [_agent_part(each) for each in deliveries]
    parts = [*([] if recorded is None else [recorded]), *copies, *by_agents]
    if not parts:
        return None
    if recorded is not None and recorded.verdict == "handled" and len(parts) > 1:
        # It was dispatched; what matters from then on is where its copies are.
        parts = [recorded._replace(summary="was dispatched"), *parts[1:]]
    sent = sorted(step.at for step in (*_steps(copies), *_steps(by_agents)))
    published = [Step(at=sent[0], what="published")] if sent else []
    kind: Kind = "message" if len(deliveries) == 1 and deliveries[0].message_id == name else "event"
    return _told(kind, name, parts, [*(() if recorded is None else recorded.steps), *published])


def _told(kind: Kind, name: str, parts: Sequence[_Part], first: Sequence[Step] = ()) -> Story:
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


def _steps(parts: Iterable[_Part]) -> list[Step]:
    return [step for part in parts for step in part.steps]


def _copies(history: MessageHistory | None, name: str, *, first: str) -> list[_Part]:
    """Return the story of each message that carries the event or push."""
    if history is None:
        return []
    told = [_message(history, message_id, first=first) for message_id in history.messages_of(name)]
    return [part for part in told if part is not None]


def _message(history: MessageHistory, message_id: str, *, first: str) -> _Part | None:
    located, settled = history.located(message_id), history.settled(message_id)
    if located is None and not settled:
        return None
    verdict, summary, following = _standing(located, settled)
    return _Part(verdict, summary, following, _message_steps(located, settled, first), _related(located, message_id))


def _message_steps(located: Located | None, settled: Sequence[Settled], first: str) -> list[Step]:
    source, sent_at = _origin(located, settled)
    received = [each.first_received_at for each in settled if each.first_received_at is not None]
    if located is not None and located.first_received_at is not None:
        received.append(located.first_received_at)
    steps = [] if sent_at is None else [Step(at=_at(sent_at), what=first, where=source)]
    if received:
        steps.append(Step(at=_at(min(received)), what="received", where=source))
    for each in settled:
        ok = each.what in ("acked", "redriven")
        steps.append(Step(at=_at(each.at), what=each.what, where=each.queue, ok=ok, detail=_first_line(each.detail)))
    return steps


def _origin(located: Located | None, settled: Sequence[Settled]) -> tuple[str | None, datetime | None]:
    """Return the queue that a message was first sent to, and when."""
    if settled:
        return settled[0].queue, settled[0].sent_at
    if located is None:
        return None, None
    dead = read_dead(located.message.attributes)
    return located.queue if dead is None else dead.source, located.message.sent_at


def _standing(located: Located | None, settled: Sequence[Settled]) -> tuple[Verdict, str, str]:
    """Return the verdict on a message, what it is doing, and what would move it on."""
    if located is None:
        last = settled[-1]
        match last.what:
            case "acked":
                return "handled", f"was handled from queue {last.queue}", NOTHING
            case "expired":
                return "expired", f"was not handled in time in queue {last.queue}", _GONE
        return "expired", "is gone: its queue was purged or deleted", _GONE
    queue, message = located.queue, located.message
    dead = read_dead(message.attributes)
    if dead is not None or (settled and settled[-1].what == "dead"):
        error = (dead and (dead.error or dead.reason)) or (settled and settled[-1].detail) or "no error recorded"
        return "dead", f"is a dead letter in {queue}: {_first_line(error)}", f"redrive queue {queue}"
    if located.head is not None:
        return "blocked", f"waits in queue {queue} behind its key's head", f"waits for its key's head {located.head}"
    times = f"{message.receive_count} receive{'' if message.receive_count == 1 else 's'}"
    failed = f"is in queue {queue} after {times}: {_first_line(located.error) or 'no error recorded'}"
    if located.due_seconds > _FOR_EVER:
        return "blocked", f"was set aside in queue {queue}: {_first_line(located.error)}", f"purge queue {queue}"
    seconds = max(1, round(located.due_seconds))
    match message.state:
        case "in_flight":
            return "in_flight", f"is with a receiver of queue {queue}", f"its lease ends in {seconds} s"
        case "delayed" if message.receive_count:
            return "retrying", failed, f"visible again in {seconds} s"
        case "delayed":
            return "delayed", f"is delayed in queue {queue}", f"visible in {seconds} s"
    if message.receive_count:
        return "retrying", failed, f"a receiver of queue {queue} takes it again"
    return "waiting", f"waits in queue {queue}", f"a receiver of queue {queue} takes it"


def _related(located: Located | None, message_id: str) -> list[Related]:
    """Return the message, its event, and the events that led to it, as far as its content says."""
    found = [Related(message_id, "correlates", "message")]
    if located is None:
        return found
    with suppress(PostroadError):
        envelope = codec.decode(located.message.body)
        found.append(Related(str(envelope.event_id), "correlates", "event"))
        if envelope.causation_id is not None:
            found.append(Related(str(envelope.causation_id), "caused_by", "event"))
        if envelope.correlation_id not in (None, envelope.event_id):
            found.append(Related(str(envelope.correlation_id), "correlates", "event"))
    return found


def _deliveries(agents: Callable[[], AgentStore] | None, name: str) -> Sequence[EventDelivery]:
    if agents is None:
        return ()
    # A file that may only be read, or a store without agents, has none.
    with suppress(PostroadError):
        return agents().deliveries(name)
    return ()


def _agent_part(each: EventDelivery) -> _Part:
    where, to = f"agent {each.subscriber_id}", each.subscriber_id
    steps = [Step(at=_at(each.arrived_at), what="copied", where=where, by=each.producer_id)]
    if each.first_received_at is not None:
        steps.append(Step(at=_at(each.first_received_at), what="received", where=where))
    if each.dead_at is not None:
        steps.append(Step(at=_at(each.dead_at), what="dead", where=where, ok=False, detail=_first_line(each.error)))
    verdict, summary, following = _agent_standing(each, to)
    related = [Related(each.event_id, "correlates", "event")]
    if each.message_id:
        related.append(Related(each.message_id, "correlates", "message"))
    return _Part(verdict, summary, following, steps, related)


def _agent_standing(each: EventDelivery, to: str) -> tuple[Verdict, str, str]:
    seconds = max(1, round(each.due_seconds))
    match each.state:
        case "settled":
            return "handled", f"agent {to} handled it", NOTHING
        case "dead":
            error = _first_line(each.error) or "no error recorded"
            return "dead", f"is a dead letter of agent {to}: {error}", f"postroad agent redrive {to}"
        case "held":
            return "delayed", f"is held back for agent {to}", "it is released when its hold-back window ends"
        case "paused":
            following = f"postroad agent resume {to} {each.producer_id}"
            return "blocked", f"agent {to} paused {each.producer_id}", following
        case "in_flight":
            return "in_flight", f"agent {to} is handling it", f"its lease ends in {seconds} s"
        case "returned":
            error = _first_line(each.error) or "no error recorded"
            following = f"visible again in {seconds} s" if each.due_seconds else f"agent {to} receives it again"
            return "retrying", f"agent {to} failed: {error}", following
    if each.head is not None:
        return "blocked", f"waits for agent {to} behind another event", f"waits for its key's head {each.head}"
    return "waiting", f"waits for agent {to}", f"agent {to} receives it"


def _outbox_part(name: str) -> _Part | None:
    """Return how far the event is in the outbox that the environment names; None if it is not there."""
    dsn = database_dsn()
    if dsn is None or (event_id := _uuid(name)) is None or _is_missing(dsn):
        return None
    with suppress(PostroadError), closing(Outbox.open(dsn)) as outbox:
        row = outbox.get(event_id)
        return None if row is None else _row_part(row, outbox.why(event_id))
    return None


def _is_missing(dsn: str) -> bool:
    """Return whether this is a file that opening would create."""
    return dialect_of(dsn) == "sqlite" and not Path(path_of(dsn)).exists()


def _row_part(row: OutboxRow, waits_for: str) -> _Part:
    steps = [Step(at=_at(row.created_at), what="outbox_added", where="outbox")]
    match row.state:
        case "SENT":
            steps.append(Step(at=_at(row.updated_at), what="dispatched", where="outbox"))
            return _Part("handled", "was dispatched; what its receivers did is not known here", NOTHING, steps)
        case "SKIPPED":
            return _Part("expired", "was skipped in the outbox by an operator", _GONE, steps)
        case "PARKED":
            return _Part("blocked", f"is parked in the outbox: {waits_for}", f"the outbox: {waits_for}", steps)
        case "PENDING" if row.attempts:
            return _Part("retrying", f"is retried by the outbox: {_first_line(row.last_error)}", waits_for, steps)
        case "PENDING":
            verdict: Verdict = "blocked" if waits_for.startswith(("blocked", "target")) else "waiting"
            following = "a dispatcher publishes it: postroad outbox run" if waits_for == "ready" else waits_for
            return _Part(verdict, "waits in the outbox", following, steps)
    following = f"postroad outbox redrive {row.event_id} --by NAME --reason TEXT"
    steps.append(
        Step(at=_at(row.updated_at), what="failed", where="outbox", ok=False, detail=_first_line(row.last_error))
    )
    return _Part("dead", f"failed in the outbox: {_first_line(row.last_error)}", following, steps)


def _push_story(backend_url: str, history: MessageHistory | None, name: str) -> Story | None:
    """Return the story of a push, from the store of notifications that the environment names."""
    with suppress(PostroadError), closing(configured_store(backend_url)) as store:
        results, recorded = push_results(store, name), _recorded_push(store, name)
        queued = _copies(history, name, first="sent") if results or recorded else []
        answered = [] if not results else [_answers(results)]
        parts = [*([] if recorded is None else [recorded]), *queued, *answered]
        if not parts:
            return None
        # What the providers answered decides, unless the push itself waits or is a dead letter.
        open_parts = [part for part in queued if part.verdict != "handled"] or answered or parts
        steps = sorted(_steps(parts), key=lambda step: step.at)
        return msgspec.structs.replace(_told("push", name, open_parts), steps=steps)
    return None


def _recorded_push(store: NotificationStore, name: str) -> _Part | None:
    event_id = _uuid(name.removeprefix(_OFFLINE)) if name.startswith(_OFFLINE) else None
    row = None if event_id is None else store.outbox.get(event_id)
    return None if row is None or event_id is None else _row_part(row, store.outbox.why(event_id))


def _answers(results: Sequence[PushShown]) -> _Part:
    steps = [
        Step(
            at=_at(each.updated_at),
            what="completed" if each.outcome == "sent" else "failed",
            where=f"device {each.token_hash[:12]}",
            ok=each.outcome == "sent",
            detail=_first_line(f"{each.reason} ({each.outcome})" if each.reason else each.outcome),
        )
        for each in results
    ]
    outcomes = [each.outcome for each in results]
    counted = ", ".join(f"{outcomes.count(each)} {each.replace('_', ' ')}" for each in dict.fromkeys(outcomes))
    summary = f"its devices: {counted}"
    if "auth" in outcomes:
        return _Part("blocked", summary, "correct the provider's key, account or topic", steps)
    if "retry" in outcomes:
        return _Part("retrying", summary, "a notification worker sends it again", steps)
    if "sent" in outcomes:
        return _Part("handled", summary, NOTHING, steps)
    return _Part("failed", summary, "nothing: no device of the push can be reached", steps)


def _uuid(text: str) -> UUID | None:
    with suppress(ValueError):
        return UUID(text)
    return None


def _at(moment: datetime) -> str:
    return iso(round(moment.timestamp() * 1_000))


def _first_line(text: str | None) -> str | None:
    return None if text is None else legible((text.splitlines() or [""])[0])
