"""`postroad bus publish|tail|run|replay|sweep`."""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import ANSWER_IS_NO, write, write_json
from postroad.cli.parameters import duration, moment, per_second, topic_names
from postroad.errors import InvalidInput, PostroadError, QueueNotFound, TopicNotFound
from postroad.signals import ended_by_sigterm, stopped_by_signals

if TYPE_CHECKING:
    from postroad.bus import ArchivedEvent
    from postroad.events import Envelope
    from postroad.topics import Topic
    from postroad.wiring import Backend

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=topic_names)]


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad bus`."""
    add_verb(app, "publish", publish, example="""postroad bus publish orders orders.placed '{"id": 7}' --key 7""")
    add_verb(app, "tail", tail, example="postroad bus tail orders --type orders.placed", until_stopped=True)
    add_verb(app, "run", run, example="postroad bus run shop:orders --concurrency 8", until_stopped=True)
    add_verb(app, "replay", replay, example="postroad bus replay orders --to orders-again --since 2026-01-31T00:00:00Z")
    add_verb(app, "sweep", sweep, example="postroad bus sweep orders")


def publish(
    call: Call,
    topic: TopicName,
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="The event's type, such as orders.placed.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Its fields, as a JSON object; - reads stdin.")],
    key: Annotated[str | None, typer.Option(metavar="K", help="What is kept in order together.")] = None,
    fifo: Annotated[bool, typer.Option("--fifo", help="The topic keeps the order of each key.")] = False,
) -> None:
    """Publish one event and print its id; no class is needed."""
    from postroad.bus.naming import names_of
    from postroad.bus.tail import envelope_for, message_for
    from postroad.events import Codec

    fields = _object(sys.stdin.buffer.read() if payload == "-" else payload)
    publisher_id = call.settings().app
    with call.backend() as backend:
        now = backend.clock.now()
        envelope = envelope_for(event_type, fields, publisher_id=publisher_id, now=now, key=key)
        fifo = names_of(topic, fifo=fifo).fifo
        port = _port(backend, topic, fifo=fifo)
        [result] = port.publish([message_for(envelope, Codec(backend.registry).encode(envelope), fifo=fifo)])
        if result.error is not None:
            raise result.error
        _warn_when_nobody_listens(port)
    document = {"event_id": str(envelope.event_id)}
    call.show(document, json.dumps(document))


def tail(
    call: Call,
    topic: TopicName,
    group: Annotated[str | None, typer.Option(metavar="G", help="Take the events as a member of this group.")] = None,
    type_: Annotated[list[str] | None, typer.Option("--type", metavar="T", help="Only this type; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after so many.")] = None,
    timeout: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="End after so long.")
    ] = None,
) -> None:
    """Print the events of a topic as they come, one JSON object a line, until Ctrl-C."""
    from postroad.bus.tail import tail as watch

    with ended_by_sigterm(), call.backend() as backend:
        name = existing_topic(backend, topic) if _is_there(backend, topic) else topic
        found = watch(backend, name, group, types=type_ or (), limit=limit, timeout=timeout)
        with closing(found):
            for envelope in found:
                _print(envelope)


def run(
    call: Call,
    module: Annotated[str, typer.Argument(metavar="MODULE[:NAME]", help="The module, and the bus in it.")],
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=1_000, metavar="N", help="Handlers that run at the same time.")
    ] = None,
) -> None:
    """Run the handlers of a bus until SIGTERM or Ctrl-C; without NAME, those of every bus of the module."""
    from postroad.up.runners import find_buses
    from postroad.wiring import run as receive

    buses = find_buses(module)
    with stopped_by_signals() as stop, call.backend() as backend:
        for bus in buses:
            if concurrency is not None:
                bus.set_concurrency(concurrency)
            if not bus.is_bound:
                bus.bind(backend)
        receive(*buses, stop=stop)


def replay(
    call: Call,
    topic: TopicName,
    to: Annotated[str, typer.Option(metavar="TOPIC", help="Publish there.", autocompletion=topic_names)],
    since: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="Published at this time or later.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="Published before this time.")
    ] = None,
    type_: Annotated[list[str] | None, typer.Option("--type", metavar="T", help="Only this type; repeatable.")] = None,
    rate: Annotated[
        float | None, typer.Option(parser=per_second, metavar="N", help="At most so many per second.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them, publish nothing.")] = False,
) -> None:
    """Publish the archived events of a topic to another one, under the ids they have."""
    from postroad.bus.naming import names_of
    from postroad.bus.tail import message_for

    with call.backend() as backend:
        source, target = existing_topic(backend, topic), existing_topic(backend, to)
        _refuse_without_archive(backend, names_of(source).group("archive"), source)
        fifo = names_of(target).fifo
        port = _port(backend, target, fifo=fifo)

        def pass_on(archived: ArchivedEvent) -> None:
            [result] = port.publish([message_for(archived.envelope, archived.body, fifo=fifo)])
            if result.error is not None:
                raise result.error

        wanted = {"since": since, "until": until, "types": type_ or None}
        report = backend.archive(source).replay_untyped(pass_on, rate=rate, dry_run=dry_run, **wanted)
    document = {
        "read": report.read,
        "replayed": report.replayed,
        "duplicates": report.duplicates,
        "failed": report.failed,
    }
    call.show(document, _summary(document, to, dry_run=dry_run))
    if report.failed:
        raise typer.Exit(ANSWER_IS_NO)


def sweep(call: Call, topic: TopicName) -> None:
    """Remove the queues of processes that are gone."""
    from postroad.bus.sweeping import sweep as remove

    with call.backend() as backend:
        swept = remove(backend, existing_topic(backend, topic))
    call.show({"swept": swept}, *(f"removed {name}" for name in swept), f"{len(swept):,} removed")


def _object(text: str | bytes) -> dict[str, Any]:
    import msgspec

    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _no_object(f"is broken JSON ({error})") from error
    if not isinstance(found, dict):
        raise _no_object(f"is a JSON {type(found).__name__}, not an object")
    return found


def _no_object(why: str) -> InvalidInput:
    return InvalidInput(f"""payload: {why}; give an object such as '{{"id": 7}}'""", field="payload", remedy="")


def _port(backend: Backend, topic: str, *, fifo: bool) -> Topic:
    from postroad.bus.naming import names_of

    return backend.topic(topic if topic.startswith("arn:") else names_of(topic, fifo=fifo).topic, fifo=fifo)


def _warn_when_nobody_listens(port: Topic) -> None:
    with suppress(PostroadError):
        if not port.subscriptions():
            write(f'note: nobody is subscribed to topic "{port.name}"', sys.stderr)


def _print(envelope: Envelope | None) -> None:
    from postroad.events import codec

    if envelope is None:
        write("note: a message that is no event was passed over", sys.stderr)
        return
    document = json.loads(codec.encode(envelope))
    if sys.stdout.isatty():
        # Plain ASCII, so that no event drives the terminal.
        write(json.dumps(document))
    else:
        write_json(document)


def _is_there(backend: Backend, topic: str) -> bool:
    return not topic.startswith("arn:") and bool({topic, f"{topic}.fifo"} & set(backend.topics()))


def existing_topic(backend: Backend, topic: str) -> str:
    """The topic's full name; one that does not exist is refused with the nearest that does."""
    from postroad.settings import nearest

    if topic.startswith("arn:"):
        return topic
    topics = backend.topics()
    for name in (topic, f"{topic}.fifo"):
        if name in topics:
            return name
    raise TopicNotFound(
        f'topic "{topic}" does not exist', nearest=nearest(topic, topics), remedy="Name a topic that exists."
    )


def _refuse_without_archive(backend: Backend, queue: str, topic: str) -> None:
    try:
        backend.queue(queue)
    except QueueNotFound as error:
        raise InvalidInput(
            f'topic "{topic}" has no archive',
            field="topic",
            remedy=f'backend.archive("{topic}") makes one; it keeps what is published from then on.',
        ) from error


def _summary(report: dict[str, int], to: str, *, dry_run: bool) -> str:
    if dry_run:
        return f"would replay {report['read'] - report['duplicates'] - report['failed']:,} to {to}"
    failed = f", {report['failed']:,} failed" if report["failed"] else ""
    return f"replayed {report['replayed']:,} to {to} ({report['duplicates']:,} duplicates passed over){failed}"
