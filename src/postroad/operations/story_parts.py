"""The parts of a story: a message, a delivery to an agent, a row of an outbox, and the answers to a push."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from postroad.agents import EventDelivery
from postroad.errors import PostroadError
from postroad.events import codec
from postroad.journal import NOTHING, Related, Step, Verdict, iso
from postroad.notifications import PushShown
from postroad.outbox import OutboxRow
from postroad.queues import Located, MessageHistory, Settled, legible, read_dead
from postroad.telemetry import counted

_GONE: Final = "nothing: it is gone"
_FOR_EVER: Final = 1e9
_WELL: Final = ("acked", "redriven", "released")
_FAILURES: Final = ("failed", "dead")
_NOT_SETTLED: Final = "its receiver did not settle it before its lease ended"


class Part(NamedTuple):
    """The story of one copy of an event, or of one message."""

    verdict: Verdict
    summary: str
    next: str
    steps: Sequence[Step]
    related: Sequence[Related] = ()


def message_part(history: MessageHistory, message_id: str, *, first: str) -> Part | None:
    """Return what happened to a message, which begins with the step `first`; None if nothing is known of it."""
    located, settled = history.located(message_id), history.settled(message_id)
    if located is None and not settled:
        return None
    verdict, summary, following = _standing(located, settled)
    lines = history.traceback(message_id)
    steps = _message_steps(located, settled, first)
    if lines and (place := _last_failure(steps, settled)) is not None:
        steps[place] = msgspec.structs.replace(steps[place], traceback=lines)
    return Part(verdict, summary, following, steps, _related(located, message_id))


def _last_failure(steps: Sequence[Step], settled: Sequence[Settled]) -> int | None:
    """Return the place of the step in which the message failed last.

    A message that is moved to the dead letters after its last receive failed before; one that is rejected fails then.
    """
    failures = [each for each in settled if each.what in _FAILURES]
    places = [place for place, step in enumerate(steps) if step.what in _FAILURES]
    if len(failures) > 1 and failures[-1].what == "dead" and failures[-2].receives == failures[-1].receives:
        return places[-2]
    return places[-1] if places else None


def _message_steps(located: Located | None, settled: Sequence[Settled], first: str) -> list[Step]:
    source, sent_at = _origin(located, settled)
    received = [each.first_received_at for each in settled if each.first_received_at is not None]
    if located is not None and located.first_received_at is not None:
        received.append(located.first_received_at)
    steps = [] if sent_at is None else [Step(at=_at(sent_at), what=first, where=source)]
    if received:
        steps.append(Step(at=_at(min(received)), what="received", where=source))
    happened = [(each.what, each.at, each.queue, each.receives, each.detail) for each in settled]
    if located is not None and located.lease_ended_at is not None:
        happened.append(("lease_expired", located.lease_ended_at, located.queue, located.message.receive_count, None))
    for what, at, queue, receives, error in happened:
        detail = _first_line(error) or (f"receive {receives}" if receives > 1 else None)
        steps.append(Step(at=_at(at), what=what, where=queue, ok=what in _WELL, detail=detail))
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
                return "handled", f"it was handled from queue {last.queue}", NOTHING
            case "expired":
                return "expired", f"it was not handled in time in queue {last.queue}", _GONE
            case "purged" if last.queue is not None:
                return "expired", f"it was purged from queue {last.queue}", _GONE
        return "expired", "it is gone: its queue was deleted", _GONE
    queue, message = located.queue, located.message
    dead = read_dead(message.attributes)
    if dead is not None or (settled and settled[-1].what == "dead"):
        error = settled[-1].detail if dead is None else dead.error or dead.reason
        what = f"it is a dead letter in {queue}: {_first_line(error) or 'no error recorded'}"
        return "dead", what, f"redrive queue {queue}"
    if located.head is not None:
        return "blocked", f"it waits in queue {queue} behind its key's head", f"waits for its key's head {located.head}"
    times = counted(message.receive_count, "receive")
    error = located.error if located.lease_ended_at is None else _NOT_SETTLED
    failed = f"it is in queue {queue} after {times}: {_first_line(error) or 'no error recorded'}"
    if located.due_seconds > _FOR_EVER:
        return "blocked", f"it was set aside in queue {queue}: {_first_line(located.error)}", f"purge queue {queue}"
    seconds = max(1, round(located.due_seconds))
    match message.state:
        case "in_flight":
            return "in_flight", f"it is with a receiver of queue {queue}", f"its lease ends in {seconds} s"
        case "delayed" if message.receive_count:
            return "retrying", failed, f"visible again in {seconds} s"
        case "delayed":
            return "delayed", f"it is delayed in queue {queue}", f"visible in {seconds} s"
    if message.receive_count:
        return "retrying", failed, f"a receiver of queue {queue} takes it again"
    return "waiting", f"it waits in queue {queue}", f"a receiver of queue {queue} takes it"


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


def agent_part(each: EventDelivery) -> Part:
    """Return how far an event is on its way to one agent."""
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
    return Part(verdict, summary, following, steps, related)


def _agent_standing(each: EventDelivery, to: str) -> tuple[Verdict, str, str]:
    seconds = max(1, round(each.due_seconds))
    match each.state:
        case "settled":
            return "handled", f"agent {to} handled it", NOTHING
        case "dead":
            error = _first_line(each.error) or "no error recorded"
            return "dead", f"it is a dead letter of agent {to}: {error}", f"postroad agent redrive {to}"
        case "held":
            return "delayed", f"it is held back for agent {to}", "it is released when its hold-back window ends"
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
        return "blocked", f"it waits for agent {to} behind another event", f"waits for its key's head {each.head}"
    return "waiting", f"it waits for agent {to}", f"agent {to} receives it"


def row_part(row: OutboxRow, waits_for: str, if_ready: str) -> Part:
    """Return how far an event is in its outbox, which says what it waits for; `if_ready` says who takes it."""
    steps = [Step(at=_at(row.created_at), what="outbox_added", where="outbox")]
    match row.state:
        case "SENT":
            steps.append(Step(at=_at(row.updated_at), what="dispatched", where="outbox"))
            return Part("handled", "it was dispatched; what its receivers did is not known here", NOTHING, steps)
        case "SKIPPED":
            return Part("expired", "it was skipped in the outbox by an operator", _GONE, steps)
        case "PARKED":
            return Part("blocked", f"it is parked in the outbox: {waits_for}", f"the outbox: {waits_for}", steps)
        case "PENDING" if row.attempts:
            return Part("retrying", f"it is retried by the outbox: {_first_line(row.last_error)}", waits_for, steps)
        case "PENDING":
            verdict: Verdict = "blocked" if waits_for.startswith(("blocked", "target")) else "waiting"
            following = if_ready if waits_for == "ready" else waits_for
            return Part(verdict, "it waits in the outbox", following, steps)
    following = f"postroad outbox redrive {row.event_id} --by NAME --reason TEXT"
    steps.append(
        Step(at=_at(row.updated_at), what="failed", where="outbox", ok=False, detail=_first_line(row.last_error))
    )
    return Part("dead", f"it failed in the outbox: {_first_line(row.last_error)}", following, steps)


def answers_part(results: Sequence[PushShown]) -> Part:
    """Return what the providers answered to a push, device by device."""
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
        return Part("blocked", summary, "correct the provider's key, account or topic", steps)
    if "retry" in outcomes:
        return Part("retrying", summary, "a notification worker sends it again", steps)
    if "sent" in outcomes:
        return Part("handled", summary, NOTHING, steps)
    return Part("failed", summary, "nothing: no device of the push can be reached", steps)


def _at(moment: datetime) -> str:
    return iso(round(moment.timestamp() * 1_000))


def _first_line(text: str | None) -> str | None:
    return None if text is None else legible((text.splitlines() or [""])[0])
