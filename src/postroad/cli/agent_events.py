"""`postroad agent publish|tail|run`: publish, move and receive the events of agents."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from postroad.cli.agents import agents_of
from postroad.cli.call import Call, verb
from postroad.cli.output import write, write_json
from postroad.cli.parameters import argument, duration_option, flag, json_value, option
from postroad.errors import InvalidEvent, InvalidInput, PostroadError
from postroad.signals import ended_by_sigterm, stopped_by_signals
from postroad.telemetry import counted, legible

if TYPE_CHECKING:
    from postroad.agents import AgentEvent, Agents
    from postroad.queues import Delivery, Queue
    from postroad.views import EventAccepted

_SLICE_SECONDS = 1.0
_FOREVER = 315_360_000.0


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
    from postroad.agents import AgentEvent

    if file is not None:
        if producer is not None:
            raise InvalidInput("file: both an event and a file are given", field="file", remedy="Give one of them.")
        _publish_file(call, file)
        return
    if producer is None or event_type is None or data is None:
        raise InvalidInput("give PRODUCER, TYPE and JSON, or --file", field="producer")
    event = AgentEvent(producer, event_type, json_value(data, "data", InvalidEvent), timestamp, event_id)
    with agents_of(call) as agents:
        document = _publish(agents, event)
    call.show(document, f"published {legible(document.event_id)}")


@verb("agent tail", "bob --max 10 --wait 5", until_stopped=True)
def tail(
    call: Call,
    agent_id: Annotated[str, argument("ID", "The agent.")],
    max_: Annotated[int | None, option("N", "Stop after this many.", "--max", min=1)] = None,
    wait: Annotated[float | None, duration_option("Stop after this long without an event.")] = None,
    no_ack: Annotated[bool, flag("--no-ack", "Release the events at the end instead.")] = False,
) -> None:
    """Receive an agent's events, print them as one JSON object per line, and ack them."""
    from postroad.views import agent_delivery

    with ended_by_sigterm(), agents_of(call) as agents:
        queue = agents.queue(agent_id)
        held: list[Delivery] = []
        try:
            for delivery in _deliveries(queue, max_, _FOREVER if wait is None else wait):
                write_json(agent_delivery(delivery))
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
                document = _publish(agents, _event(line))
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


@contextmanager
def _opened(name: str) -> Iterator[Iterable[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file: BinaryIO = Path(name).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InvalidInput(f"file: {legible(name)} cannot be read: {error.strerror}", field="file") from error
    with file:
        yield file


def _event(line: bytes) -> AgentEvent:
    from postroad.agents import AgentEvent

    fields = json_value(line, "data", InvalidEvent)
    if not isinstance(fields, dict):
        raise InvalidEvent("is not a JSON object")
    unknown = set(fields) - {"agentId", "timestamp", "eventType", "data", "eventId"}
    if unknown:
        raise InvalidEvent(f"{min(unknown)}: is not a field of an event", field=min(unknown))
    # Publishing refuses a field that is missing or has the wrong type.
    wanted: Any = fields.get
    return AgentEvent(*(wanted(name) for name in ("agentId", "eventType", "data", "timestamp", "eventId")))


def _publish(agents: Agents, event: AgentEvent) -> EventAccepted:
    from postroad.views import accepted

    [outcome] = agents.publish_each([event])
    return accepted(outcome)


def _deliveries(queue: Queue, most: int | None, silence: float) -> Iterator[Delivery]:
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
