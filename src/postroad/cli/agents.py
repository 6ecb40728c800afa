"""`postroad agent`: create agents, connect them, publish and receive their events, and show what waits for them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec

from postroad.arguments import check, seconds_between
from postroad.cli.audit import audit_log
from postroad.cli.call import Call, verb
from postroad.cli.display import more, table
from postroad.cli.output import confirm_yes, write, write_json
from postroad.cli.packages import agents, agents_model, queues, views
from postroad.cli.parameters import Cursor, PageSize, Yes, argument, duration_option, flag, json_value, option
from postroad.errors import InvalidEvent, InvalidInput, PostroadError
from postroad.signals import ended_by_sigterm, stopped_by_signals
from postroad.telemetry import counted, legible, recorded

AgentId = Annotated[str, argument("ID", "The agent.")]
Listener = Annotated[str, argument("LISTENER", "The agent that subscribes.")]
Producer = Annotated[str, argument("PRODUCER", "The agent that publishes.")]
_MAX_OVERLAP = 86_400.0
_SLICE_SECONDS = 1.0
_FOREVER = 315_360_000.0


@contextmanager
def agents_of(call: Call) -> Iterator[agents.Agents]:
    with call.backend() as backend:
        yield backend.agents(**call.settings().agents)


@verb("agent create", "ann --accept all")
def create(
    call: Call,
    agent_id: Annotated[str | None, argument("ID", "Its id; by default a new one.")] = None,
    order: Annotated[
        str, option("O", "Keep the order of each producer, or of all events: producer or total.")
    ] = "producer",
    accept: Annotated[
        str, option("A", "Who may subscribe to it: listed, which are those with a grant, or all.")
    ] = "listed",
) -> None:
    """Create an agent and print its token, which is shown only once."""
    with agents_of(call) as agents:
        made = agents.register(agent_id, order=order, accept=accept)  # type: ignore[arg-type]  # checked there
    call.show(
        views.AgentMade(made.agent_id, made.token, made.created_at),
        f"created agent {made.agent_id}",
        f"token, shown only once: {made.token}",
    )


@verb("agent list", "--limit 50")
def list_agents(call: Call, limit: PageSize = 20, cursor: Cursor = None) -> None:
    """List agents, a page at a time."""
    with agents_of(call) as agents:
        page = agents.list(limit=limit, cursor=cursor)
    items = [views.agent_row(agent) for agent in page.items]
    rows = ([each.agent_id, each.order, each.accept, each.created_at] for each in items)
    shown = table(["AGENT", "ORDER", "ACCEPT", "CREATED"], rows, "no agents; make one with: postroad agent create")
    call.show(views.Page(items, page.next_cursor), shown, *more(page.next_cursor))


@verb("agent show", "ann")
def show(call: Call, agent_id: AgentId) -> None:
    """Show an agent, its subscriptions and how many messages wait for it."""
    with agents_of(call) as agents:
        document = views.agent_detail(agents.get(agent_id))
        stats = views.agent_stats(agents.stats(agent_id))
    shown = {**msgspec.to_builtins(document), **msgspec.to_builtins(stats)}
    del shown["subscriptions"]
    # `inFlight` is shown as `in flight`.
    names = (re.sub("[A-Z]", lambda each: f" {each[0].lower()}", name) for name in shown)
    lines = [f"{name}: {'-' if value is None else value}" for name, value in zip(names, shown.values(), strict=True)]
    subscriptions = [
        f"listens to {each.producer_id} ({each.state})"
        + (f": {', '.join(each.event_types)}" if each.event_types else "")
        for each in document.subscriptions
    ]
    call.show(document, *map(legible, [*lines, *subscriptions]))


@verb("agent token", "ann --overlap 0")
def token(
    call: Call,
    agent_id: AgentId,
    overlap: Annotated[float, duration_option("How long the previous token stays valid, up to 1d.")] = 600,
) -> None:
    """Give an agent a new token, which is shown only once; with --overlap 0 the previous one is revoked at once."""
    check(overlap, seconds_between(0, _MAX_OVERLAP), "overlap")
    with call.backend() as backend:
        made = backend.agents().rotate_token(agent_id, overlap=overlap)
        until = agents_model.now_text(backend.clock.now() + timedelta(seconds=overlap))
    document = views.AgentToken(made, until)
    call.show(document, f"token, shown only once: {made}", f"the previous token is valid until {until}")


@verb("agent delete", "ann --yes", destructive=True)
def delete(call: Call, agent_id: AgentId, yes: Yes = False) -> None:
    """Delete an agent with its subscriptions and waiting messages; its id is never used again."""
    with agents_of(call) as agents:
        waiting = agents.stats(agent_id)
        confirm_yes(
            yes,
            f'deleting agent "{legible(agent_id)}"',
            lambda: (
                f'deletes "{legible(agent_id)}" with {counted(waiting.visible + waiting.in_flight, "waiting message")}'
            ),
        )
        gone = agents.delete(agent_id)
    call.show(gone, f"deleted {legible(agent_id)} with {counted(gone.discarded, 'message')}")


@verb("agent subscribe", "bob ann --type 'order.*'")
def subscribe(
    call: Call,
    listener: Listener,
    producer: Producer,
    type_: Annotated[
        list[str] | None, option("T", "Only events of this type, exact or prefix.*; repeatable.", "--type")
    ] = None,
) -> None:
    """Subscribe an agent to another one, or change the event types of its subscription."""
    with agents_of(call) as agents:
        new = agents.subscribe(listener, producer, event_types=type_ or None)
    types = f" ({', '.join(type_)})" if type_ else ""
    call.show({"subscribed": new}, legible(f"{listener} {'now' if new else 'already'} listens to {producer}{types}"))


@verb("agent unsubscribe", "bob ann")
def unsubscribe(
    call: Call,
    listener: Listener,
    producer: Producer,
    discard: Annotated[bool, flag("--discard", "Delete the waiting messages too.")] = False,
) -> None:
    """End a subscription."""
    with agents_of(call) as agents:
        ended = agents.unsubscribe(listener, producer, discard=discard)
    result = "no longer listens" if ended else "did not listen"
    call.show({"unsubscribed": ended}, legible(f"{listener} {result} to {producer}"))


@verb("agent grant", "ann bob")
def grant(call: Call, producer: Producer, listener: Listener) -> None:
    """Allow a listener to subscribe itself to a producer."""
    with agents_of(call) as agents:
        agents.grant(producer, listener)
    call.show({"granted": True}, f"{listener} may listen to {producer}")


@verb("agent pause", "bob ann")
def pause(call: Call, listener: Listener, producer: Producer) -> None:
    """Hold a producer's events back from a listener; they are kept."""
    with agents_of(call) as agents:
        agents.pause(listener, producer)
    call.show({"state": "paused"}, f"events of {producer} are held back from {listener}")


@verb("agent resume", "bob ann")
def resume(call: Call, listener: Listener, producer: Producer) -> None:
    """Deliver the held events, before any newer ones."""
    with agents_of(call) as agents:
        agents.resume(listener, producer)
    call.show({"state": "active"}, f"events of {producer} are delivered to {listener}")


@verb("agent replay", "bob ann --since 2025-07-01T12:00:00Z")
def replay(
    call: Call,
    listener: Listener,
    producer: Producer,
    since: Annotated[str, option("TIME", "Events since this time.")] = "trim_horizon",
) -> None:
    """Deliver a producer's events to a listener again."""
    with agents_of(call) as agents:
        replayed = agents.replay(listener, producer, since=since)
    call.show(views.Replayed(replayed), f"delivered {counted(replayed, 'event')} again")


@verb("agent provision", "--url aws://eu-central-1")
def provision(call: Call) -> None:
    """Create the tables, streams and queues that are missing."""
    with agents_of(call) as agents:
        agents.provision()
    call.show({"provisioned": True}, "everything that agents need exists")


@verb("agent dead", "bob")
def dead(call: Call, agent_id: AgentId, limit: Annotated[int, option("N", "At most this many.")] = 10) -> None:
    """List an agent's dead letters, oldest first."""
    with agents_of(call) as agents:
        items = [views.agent_dead_letter(each) for each in agents.dead_letters(agent_id, limit=limit)]
    lines = [
        legible(f"{each.event_id}  {each.event_type} of {each.agent_id}: {each.error or each.reason or '-'}")
        for each in items
    ]
    call.show(views.Listed(items), *(lines or ["no dead letters"]))


@verb("agent redrive", "bob")
def redrive(
    call: Call,
    agent_id: AgentId,
    limit: Annotated[int | None, option("N", "At most this many.")] = None,
    yes: Yes = False,
) -> None:
    """Send an agent's dead letters back to the end of its queue, without asking; `--yes` has no effect."""
    del yes
    with agents_of(call) as agents:
        agents.get(agent_id)
        with recorded(audit_log(call), "agent.redrive", agent_id, {"limit": limit}) as done:
            redriven = done["redriven"] = agents.redrive(agent_id, limit=limit)
    nothing = f"nothing to redrive: {legible(agent_id)} has no dead letters"
    call.show(views.Redriven(redriven), f"redrove {counted(redriven, 'dead letter')}" if redriven else nothing)


@verb("agent publish", """ann order.placed '{"id": 7}'""")
def publish(
    call: Call,
    producer: Annotated[str | None, argument("PRODUCER", "The agent that publishes it.")] = None,
    event_type: Annotated[str | None, argument("TYPE", "The event's type.")] = None,
    data: Annotated[str | None, argument("JSON", "Its data, a JSON object.")] = None,
    timestamp: Annotated[str | None, option("TIME", "When it happened (now).")] = None,
    event_id: Annotated[str | None, option("ID", "Its id; by default a new one.")] = None,
    file: Annotated[str | None, option("F", "A file with one event per line; '-' reads stdin.")] = None,
) -> None:
    """Publish one event, or the events of a file with one JSON object per line."""
    if file is not None:
        if producer is not None:
            raise InvalidInput("file: both an event and a file are given", field="file", remedy="Give one of them.")
        _publish_file(call, file)
        return
    if producer is None or event_type is None or data is None:
        raise InvalidInput("give PRODUCER, TYPE and JSON, or --file", field="producer")
    event = agents.AgentEvent(producer, event_type, json_value(data, "data", InvalidEvent), timestamp, event_id)
    with agents_of(call) as opened:
        document = views.accepted(*opened.publish_each([event]))
    call.show(document, f"published {legible(document.event_id)}")


@verb("agent tail", "bob --max 10 --wait 5", until_stopped=True)
def tail(
    call: Call,
    agent_id: AgentId,
    max_: Annotated[int | None, option("N", "Stop after this many.", "--max", min=1)] = None,
    wait: Annotated[float | None, duration_option("Stop after this long without an event.")] = None,
    no_ack: Annotated[bool, flag("--no-ack", "Release the events at the end instead.")] = False,
) -> None:
    """Receive an agent's events, print them as one JSON object per line, and ack them."""
    with ended_by_sigterm(), agents_of(call) as agents:
        queue = agents.queue(agent_id)
        held: list[queues.Delivery] = []
        try:
            for delivery in _deliveries(queue, max_, _FOREVER if wait is None else wait):
                write_json(views.agent_delivery(delivery))
                if no_ack:
                    held.append(delivery)
                else:
                    queue.ack([delivery])
        finally:
            if held:
                getattr(queue, "undo", queue.release)(held)


@verb("agent run", "--once", until_stopped=True)
def run(call: Call, once: Annotated[bool, flag("--once", "Stop when nothing is left.")] = False) -> None:
    """Move events from the stream into the agents' queues, until Ctrl-C."""
    call.settings(logs=True)
    with stopped_by_signals() as stop, agents_of(call) as agents:
        runner = agents.runner()
        if not once:
            runner.run(stop)
            return
        rounds = [runner.run_once()]
        while rounds[-1].read and not stop.is_set():
            rounds.append(runner.run_once())
    totals = {name: sum(getattr(each, name) for each in rounds) for name in ("read", "written", "released", "rejected")}
    call.show(totals, ", ".join(f"{value:,} {name}" for name, value in totals.items()))


def _publish_file(call: Call, name: str) -> None:
    published = 0
    with (
        agents_of(call) as agents,
        _opened(name) as lines,
        call.working("publishing", lambda so_far: f"{so_far:,} published", step=1_000) as progress,
    ):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                document = views.accepted(*agents.publish_each([_event(line)]))
            except PostroadError as error:
                raise InvalidEvent(
                    f"line {number}: {error.message}",
                    field=error.field,
                    remedy=f"Correct the line; published before it: {counted(published, 'event')}.",
                ) from error
            published += 1
            if call.json:
                write_json(document)
            progress(published)
    if not call.json:
        write(f"published {counted(published, 'event')}")


def _opened(name: str) -> AbstractContextManager[Iterable[bytes]]:
    try:
        return nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb")
    except OSError as error:
        raise InvalidInput(f"file: {legible(name)} cannot be read: {error.strerror}", field="file") from error


def _event(line: bytes) -> agents.AgentEvent:
    fields = json_value(line, "data", InvalidEvent)
    if not isinstance(fields, dict):
        raise InvalidEvent("is not a JSON object")
    unknown = set(fields) - {"agentId", "timestamp", "eventType", "data", "eventId"}
    if unknown:
        raise InvalidEvent(f"{min(unknown)}: is not a field of an event", field=min(unknown))
    # Publishing refuses a field that is missing or has the wrong type.
    wanted: Any = fields.get
    return agents.AgentEvent(*(wanted(name) for name in ("agentId", "eventType", "data", "timestamp", "eventId")))


def _deliveries(queue: queues.Queue, most: int | None, silence: float) -> Iterator[queues.Delivery]:
    """Yield deliveries until there were `most` of them, or none for `silence` seconds."""
    count, last_at = 0, time.monotonic()
    while most is None or count < most:
        left = silence - (time.monotonic() - last_at)
        batch = 10 if most is None else min(10, most - count)
        leased = queue.receive(max_messages=batch, wait=max(0.0, min(_SLICE_SECONDS, left)))
        if not leased and left <= 0:
            return
        for delivery in leased:
            yield delivery
            count, last_at = count + 1, time.monotonic()
