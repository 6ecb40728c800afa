"""`postroad bus publish|tail|run|replay|sweep` and `postroad bus group list|show|create|set`."""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from postroad.cli.call import Call, verb
from postroad.cli.display import number, table
from postroad.cli.output import write, write_json
from postroad.cli.packages import bus, bus_groups, bus_tail, events, topics, up_runners, views, wiring
from postroad.cli.parameters import (
    argument,
    duration_option,
    flag,
    json_object,
    option,
    per_second,
    time_option,
    topic_names,
)
from postroad.errors import InvalidInput, PostroadError, QueueNotFound, TopicNotFound
from postroad.settings import nearest
from postroad.signals import ended_by_sigterm, stopped_by_signals
from postroad.telemetry import counted

TopicName = Annotated[str, argument("TOPIC", "The topic.", autocompletion=topic_names)]
GroupName = Annotated[str, argument("GROUP", "The group, such as billing.")]
Fifo = Annotated[bool, flag("--fifo", "The topic keeps the order of each key.")]
TypeFilter = Annotated[list[str] | None, option("T", "Only this type; repeatable.", "--type")]
MaxReceives = Annotated[
    int | None, option("N", "Receives before an event becomes a dead letter; max_attempts needs it.")
]
Types = Annotated[str | None, option("A,B", "The types that it receives, or all.")]
_ALL = "all"


@verb("bus publish", """orders orders.placed '{"id": 7}' --key 7""")
def publish(
    call: Call,
    topic: TopicName,
    event_type: Annotated[str, argument("TYPE", "The event's type, such as orders.placed.")],
    payload: Annotated[str, argument("JSON", "Its fields, as a JSON object; - reads stdin.")],
    key: Annotated[str | None, option("K", "Events with the same key stay in order.")] = None,
    fifo: Fifo = False,
) -> None:
    """Publish one event and print its id; no class is needed."""
    text = sys.stdin.buffer.read() if payload == "-" else payload
    fields = json_object(text, "payload", example="""'{"id": 7}'""")
    publisher_id = call.settings().app
    with call.backend() as backend:
        now = backend.clock.now()
        envelope = bus_tail.envelope_for(event_type, fields, publisher_id=publisher_id, now=now, key=key)
        fifo = bus_groups.names_of(topic, fifo=fifo).fifo
        port = _port(backend, topic, fifo=fifo)
        [result] = port.publish(
            [bus_tail.message_for(envelope, events.Codec(backend.registry).encode(envelope), fifo=fifo)]
        )
        if result.error is not None:
            raise result.error
        # Whoever may only publish cannot list the subscriptions.
        with suppress(PostroadError):
            if not port.subscriptions():
                write(f'note: nobody is subscribed to topic "{port.name}"', sys.stderr)
    write_json(views.EventPublished(str(envelope.event_id)))


@verb("bus tail", "orders --type orders.placed", until_stopped=True)
def tail(
    call: Call,
    topic: TopicName,
    group: Annotated[str | None, option("G", "Receive events as a member of this group.")] = None,
    type_: TypeFilter = None,
    limit: Annotated[int | None, option("N", "Stop after this many.", min=1)] = None,
    timeout: Annotated[float | None, duration_option("Stop after this long.")] = None,
) -> None:
    """Print the events of a topic as they arrive, one JSON object per line, until Ctrl-C."""
    with ended_by_sigterm(), call.backend() as backend:
        exists = not topic.startswith("arn:") and bool({topic, f"{topic}.fifo"} & set(backend.topics()))
        name = existing_topic(backend, topic) if exists else topic
        found = bus_tail.tail(backend, name, group, types=type_ or (), limit=limit, timeout=timeout)
        with closing(found):
            for envelope in found:
                if envelope is None:
                    write("note: a message that is no event was passed over", sys.stderr)
                    continue
                document = json.loads(events.codec.encode(envelope))
                if sys.stdout.isatty():
                    # Plain ASCII, so that no event controls the terminal.
                    write(json.dumps(document))
                else:
                    write_json(document)


@verb("bus run", "shop:orders --concurrency 8", until_stopped=True)
def run(
    call: Call,
    module: Annotated[str, argument("MODULE[:NAME]", "The module, and the bus in it.")],
    concurrency: Annotated[int | None, option("N", "Handlers that run at the same time.", min=1, max=1_000)] = None,
) -> None:
    """Run the handlers of a bus until SIGTERM or Ctrl-C; without NAME, those of every bus of the module."""
    # Before the module is imported, which may configure the logs of its program itself.
    call.settings(logs=True)
    buses = up_runners.find_buses(module)
    with stopped_by_signals() as stop, call.backend() as backend:
        for bus in buses:
            if concurrency is not None:
                bus.set_concurrency(concurrency)
            if not bus.is_bound:
                bus.bind(backend)
        wiring.run(*buses, stop=stop)


@verb("bus replay", "orders --to orders-again --since 2026-01-31T00:00:00Z")
def replay(
    call: Call,
    topic: TopicName,
    to: Annotated[str, option("TOPIC", "The topic to publish them to.", autocompletion=topic_names)],
    since: Annotated[datetime | None, time_option("Published at this time or later.")] = None,
    until: Annotated[datetime | None, time_option("Published before this time.")] = None,
    type_: TypeFilter = None,
    rate: Annotated[float | None, option("N", "At most this many per second.", parser=per_second)] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Count them, publish nothing.")] = False,
) -> None:
    """Publish the archived events of a topic to another one, with the ids they have."""
    with call.backend() as backend:
        source, target = existing_topic(backend, topic), existing_topic(backend, to)
        try:
            backend.queue(bus_groups.names_of(source).group("archive"))
        except QueueNotFound as error:
            raise InvalidInput(
                f'topic "{source}" has no archive',
                field="topic",
                remedy="A program that archives the topic must run first; it keeps what is published from then on.",
            ) from error
        fifo = bus_groups.names_of(target).fifo
        port = _port(backend, target, fifo=fifo)

        wanted = {"since": since, "until": until, "types": type_ or None}
        with call.working(f"reading the archive of {source}", lambda count: f"{count:,} replayed") as progress:
            passed_on = 0

            def pass_on(archived: bus.ArchivedEvent) -> None:
                nonlocal passed_on
                [result] = port.publish([bus_tail.message_for(archived.envelope, archived.body, fifo=fifo)])
                if result.error is not None:
                    raise result.error
                passed_on += 1
                progress(passed_on)

            report = backend.archive(source).replay_untyped(pass_on, rate=rate, dry_run=dry_run, **wanted)
    failed = f", {report.failed:,} failed" if report.failed else ""
    skipped = counted(report.duplicates, "duplicate")
    done = f"replayed {report.replayed:,} to {to} ({skipped} skipped){failed}"
    would = f"would replay {report.read - report.duplicates - report.failed:,} to {to}"
    document = {name: getattr(report, name) for name in ("read", "replayed", "duplicates", "failed")}
    call.show(document, would if dry_run else done, ok=not report.failed)


@verb("bus sweep", "orders")
def sweep(call: Call, topic: TopicName) -> None:
    """Delete the queues of processes that no longer exist."""
    with call.backend() as backend:
        swept = bus_groups.sweep(backend, existing_topic(backend, topic))
    call.show({"swept": swept}, *(f"removed {name}" for name in swept), f"{len(swept):,} removed")


def _port(backend: wiring.Backend, topic: str, *, fifo: bool = False) -> topics.Topic:
    names = bus_groups.names_of(topic, fifo=fifo)
    return backend.topic(topic if topic.startswith("arn:") else names.topic, fifo=names.fifo)


def existing_topic(backend: wiring.Backend, topic: str) -> str:
    """Return the topic's full name; raise `TopicNotFound` with the nearest name that exists."""
    if topic.startswith("arn:"):
        return topic
    topics = backend.topics()
    for name in (topic, f"{topic}.fifo"):
        if name in topics:
            return name
    raise TopicNotFound(
        f'topic "{topic}" does not exist', nearest=nearest(topic, topics), remedy="Name a topic that exists."
    )


@verb("bus group list", "orders")
def list_groups(call: Call, topic: TopicName) -> None:
    """List the groups of a topic with the types that each receives."""
    with call.backend() as backend:
        documents = [_document(group, backend) for group in _groups(backend, topic)]
    rows = ([each["group"], number(each["waiting"]), _types_text(each)] for each in documents)
    nothing = f"no groups; make one with: postroad bus group create {topic} GROUP"
    call.show({"items": documents}, table(["GROUP", ">WAITING", "TYPES"], rows, nothing))


@verb("bus group show", "orders billing")
def show_group(call: Call, topic: TopicName, group: GroupName) -> None:
    """Show the queue of a group and the types that it receives."""
    with call.backend() as backend:
        document = _document(_find(backend, topic, group), backend)
    shown = {"queue": document["queue"], "types": _types_text(document), "waiting": f"{document['waiting']:,}"}
    call.show(document, *(f"{name}: {value}" for name, value in shown.items()))


@verb("bus group create", "orders billing --types orders.placed")
def create_group(
    call: Call,
    topic: TopicName,
    group: GroupName,
    types: Types = None,
    fifo: Fifo = False,
    max_receives: MaxReceives = None,
) -> None:
    """Create the queue of a group, so that events wait for it before its service first starts."""
    with call.backend() as backend:
        backend.bus(topic, group, fifo=fifo).close()
        port = _port(backend, topic, fifo=fifo)
        _set(backend, port, _find(backend, port.name, group), types, max_receives)
        document = _document(_find(backend, port.name, group), backend)
    call.show(document, f"created {document['queue']}: {_types_text(document)}")


@verb("bus group set", "orders billing --types all")
def set_group(
    call: Call,
    topic: TopicName,
    group: GroupName,
    types: Types = None,
    max_receives: MaxReceives = None,
) -> None:
    """Change what a group receives, and how often, from now on; messages in its queue stay."""
    if types is None and max_receives is None:
        raise InvalidInput(
            "types: is missing, and so is max_receives", field="types", remedy="Give --types, --max-receives, or both."
        )
    with call.backend() as backend:
        name = existing_topic(backend, topic)
        _set(backend, _port(backend, name), _find(backend, name, group), types, max_receives)
        document = _document(_find(backend, name, group), backend)
    call.show(document, f"{group} receives {_types_text(document)}")


def _set(
    backend: wiring.Backend, port: topics.Topic, group: bus.Group, types: str | None, max_receives: int | None
) -> None:
    wanted = None if types is None else [each.strip() for each in types.split(",") if each.strip()]
    if wanted == []:
        raise InvalidInput(
            "types: is empty", field="types", remedy="Name types, as in --types orders.placed,orders.paid, or all."
        )
    if max_receives is not None:
        backend.update_queue(replace(backend.queue_spec(group.queue), max_receives=max_receives))
    if wanted is not None:
        bus_groups.set_types(port, backend.queue(group.queue), None if wanted == [_ALL] else wanted)


def _groups(backend: wiring.Backend, topic: str) -> list[bus.Group]:
    name = existing_topic(backend, topic)
    return bus_groups.groups_of(_port(backend, name), bus_groups.names_of(name))


def _find(backend: wiring.Backend, topic: str, group: str) -> bus.Group:
    groups = {each.name: each for each in _groups(backend, topic)}
    if group not in groups:
        raise QueueNotFound(
            f'topic "{topic}" has no group "{group}"',
            nearest=nearest(group, list(groups)),
            remedy=f"postroad bus group create {topic} {group} makes it.",
        )
    return groups[group]


def _document(group: bus.Group, backend: wiring.Backend) -> dict[str, Any]:
    waiting = backend.queue(group.queue).stats().visible
    types = _ALL if group.types is None else list(group.types)
    return {"group": group.name, "queue": group.queue, "types": types, "waiting": waiting}


def _types_text(document: dict[str, Any]) -> str:
    return "all types" if document["types"] == _ALL else ", ".join(document["types"])
