"""The archive of a topic, and what can be done with what it holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroad
from postroad import Backend, Codec, EventRegistry, OutgoingMessage, errors
from postroad.bus import (
    Archive,
    DeduplicatingEventBus,
    DeduplicationCache,
    HandlingContext,
    InProcessEventBus,
    current_context,
)
from postroad.streams import PutResult, Record, Stream
from postroad.testing.clock import FakeClock

START = datetime(2030, 1, 1, tzinfo=UTC)


@postroad.event(name="tests.archive:Placed")
class Placed:
    number: int
    session_id: str | None = None


@postroad.event(name="tests.archive:Paid")
class Paid:
    number: int


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=["sqlite", "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Backend]:
    url = f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else "memory://"
    with postroad.connect(url, clock=clock) as backend:
        yield backend


@pytest.fixture
def publish(backend: Backend, clock: FakeClock) -> Callable[..., postroad.Envelope]:
    """Publish one event as a bus would, without a bus."""
    codec = Codec(backend.registry, clock=clock)

    def publish(event: object, *, key: str | None = None, topic: str = "orders", copies: int = 1) -> postroad.Envelope:
        envelope = codec.wrap(event, publisher_id="shop", key=key)
        fifo = topic.endswith(".fifo")
        message = OutgoingMessage(codec.encode(envelope))
        if fifo:
            message = OutgoingMessage(message.body, group=key or "shop", dedup_id=str(envelope.event_id))
        assert all(result.ok for result in backend.topic(topic, fifo=fifo).publish([message] * copies))
        return envelope

    return publish


def numbers(archive: Archive, **wanted: Any) -> list[int]:
    return [archived.envelope.payload["number"] for archived in archive.events(**wanted)]


def test_what_is_published_while_no_archiver_runs_waits_in_the_archives_queue(
    backend: Backend, publish: Callable[..., Any]
) -> None:
    archive = backend.archive("orders")
    for number in range(25):
        publish(Placed(number))

    waiting = backend.queue("orders--archive").stats().visible
    archived = archive.run_once()

    assert (waiting, archived) == (25, 25)
    assert numbers(archive) == list(range(25))
    assert backend.queue_spec("orders--archive").dead_letter == "orders--archive--dead"


def test_an_archive_that_exists_is_used_as_it_is(backend: Backend, publish: Callable[..., Any]) -> None:
    backend.create_queue(postroad.QueueSpec("orders--archive", visibility=7))

    archive = backend.archive("orders")
    publish(Placed(1))

    assert archive.run_once() == 1
    assert backend.queue_spec("orders--archive").visibility == 7


def test_the_archive_keeps_envelopes_byte_for_byte_without_knowing_their_class(
    backend: Backend, clock: FakeClock
) -> None:
    archive = backend.archive("orders")
    elsewhere = EventRegistry()
    elsewhere.register(Placed, "nobody.here:Knows")
    codec = Codec(elsewhere, clock=clock)
    envelope = codec.wrap(Placed(1), publisher_id="shop", correlation_id="c")
    backend.topic("orders").publish([OutgoingMessage(codec.encode(envelope))])

    archive.run_once()

    assert [each.envelope for each in archive.events()] == [envelope]


def test_a_running_archive_archives_and_stops(backend: Backend, publish: Callable[..., Any]) -> None:
    archive = backend.archive("orders")
    archive.start()
    with pytest.raises(RuntimeError, match="already started"):
        archive.start()

    publish(Placed(1))
    _until(lambda: numbers(archive) == [1])
    archive.stop()
    archive.stop()
    publish(Placed(2))

    assert not [thread for thread in threading.enumerate() if thread.name == "postroad-archive"]
    assert numbers(archive) == [1]
    assert archive.run_once() == 1


def test_closing_the_backend_stops_its_archives(tmp_path: Path) -> None:
    with postroad.connect(f"sqlite:///{tmp_path}/closing.db") as backend:
        backend.archive("orders").start()

    assert not [thread for thread in threading.enumerate() if thread.name == "postroad-archive"]


def test_poison_rests_in_the_archives_dead_letters_and_the_next_event_is_archived(
    backend: Backend, publish: Callable[..., Any]
) -> None:
    archive = backend.archive("orders")
    backend.topic("orders").publish([OutgoingMessage("[1]"), OutgoingMessage('{"event_type": "x"}')])
    for number in range(25):
        publish(Placed(number))

    archived = archive.run_once()

    letters = backend.queue("orders--archive--dead").peek()
    reasons = [json.loads(letter.attributes["DeadLetter"])["reason"] for letter in letters]
    assert archived == 25
    assert sorted((letter.body, reason) for letter, reason in zip(letters, reasons, strict=True)) == [
        (b"[1]", "undecodable"),
        (b'{"event_type": "x"}', "invalid"),
    ]


def test_on_the_embedded_engine_a_failed_commit_archives_nothing_and_acks_nothing(tmp_path: Path) -> None:
    with postroad.connect(f"sqlite:///{tmp_path}/a.db") as backend:
        archive = backend.archive("orders")
        codec = Codec(backend.registry)
        backend.topic("orders").publish([OutgoingMessage(codec.encode(codec.wrap(Placed(1), publisher_id="shop")))])
        put = archive._stream.put

        def fails(records: Any) -> Any:
            put(records)
            raise errors.StorageFull("no room")

        archive._stream.put = fails  # type: ignore[method-assign]  # the one fault this store does not have by itself
        with pytest.raises(errors.StorageFull):
            archive.run_once()
        archive._stream.put = put  # type: ignore[method-assign]  # and its end

        assert numbers(archive) == []
        assert backend.queue("orders--archive").stats().in_flight == 1


class Apart:
    """A stream that commits by itself, as one of another service does, and refuses everything at first."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self.fails = stream, True
        self.traits = replace(stream.traits, joins_writes=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def put(self, records: Sequence[Record]) -> list[PutResult]:
        if self.fails:
            raise errors.Unavailable("throttled")
        return self._stream.put(records)


def test_what_the_stream_refuses_comes_again_later_in_order(clock: FakeClock) -> None:
    with postroad.connect("memory://", clock=clock) as backend:
        archive = backend.archive("orders", fifo=True)
        codec = Codec(backend.registry, clock=clock)
        for number in range(3):
            envelope = codec.wrap(Placed(number), publisher_id="shop", key="k")
            message = OutgoingMessage(codec.encode(envelope), group="k", dedup_id=str(number))
            backend.topic("orders.fifo", fifo=True).publish([message])
        archive._stream = stream = Apart(archive._stream)
        with pytest.raises(errors.Unavailable):
            archive.run_once()
        stream.fails = False
        at_once = archive.run_once()
        clock.advance(1.5)

        assert at_once == 0
        assert archive.run_once() == 3
        assert numbers(archive) == [0, 1, 2]


def test_an_event_is_archived_once_by_two_archivers_on_the_embedded_engine(tmp_path: Path) -> None:
    clock = FakeClock(START)
    with postroad.connect(f"sqlite:///{tmp_path}/a.db", clock=clock) as backend:
        first, second = backend.archive("orders"), backend.archive("orders")
        codec = Codec(backend.registry)
        backend.topic("orders").publish([OutgoingMessage(codec.encode(codec.wrap(Placed(1), publisher_id="shop")))])
        slow = backend.queue("orders--archive").receive()
        clock.advance(31)

        archived = second.run_once()
        late = first._archive(slow)

        assert (archived, late) == (1, 0)
        assert numbers(first) == [1]


def test_an_envelope_too_large_for_the_stream_is_archived_whole(backend: Backend, clock: FakeClock) -> None:
    @postroad.event(name="tests.archive:Large")
    class Large:
        text: str

    archive = backend.archive("orders")
    codec = Codec(backend.registry, clock=clock)
    envelope = codec.wrap(Large("x" * 1_200_000), publisher_id="shop")
    backend.topic("orders").publish([OutgoingMessage(codec.encode(envelope))])

    archive.run_once()

    [archived] = archive.events()
    assert archived.envelope == envelope


def test_events_are_chosen_by_time_type_and_session(
    backend: Backend, publish: Callable[..., Any], clock: FakeClock
) -> None:
    archive = backend.archive("orders")
    publish(Placed(1, session_id="a"))
    clock.advance(10)
    publish(Paid(2))
    clock.advance(10)
    publish(Placed(3))
    archive.run_once()

    second = START + timedelta(seconds=10)
    assert numbers(archive, since=second) == [2, 3]
    assert numbers(archive, until=second) == [1]
    assert numbers(archive, types=[Placed]) == [1, 3]
    assert numbers(archive, types=["tests.archive:Paid"]) == [2]
    assert numbers(archive, session_id="a") == [1]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"since": datetime(2030, 1, 1)}, "since"),
        ({"until": "yesterday"}, "until"),
        ({"types": Placed}, "types"),
        ({"types": "tests.archive:Placed"}, "types"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(backend: Backend, wanted: dict[str, Any], field: str) -> None:
    archive = backend.archive("orders")

    with pytest.raises(errors.InvalidInput, match=field):
        archive.events(**wanted)


@pytest.mark.parametrize("topic", ["", None, "a/b c", "x" * 75])
def test_a_topic_that_cannot_have_an_archive_is_refused(backend: Backend, topic: Any) -> None:
    with pytest.raises(errors.InvalidName):
        backend.archive(topic)

    assert backend.queues() == []


def test_a_fifo_archive_keeps_the_order_of_each_key(backend: Backend, publish: Callable[..., Any]) -> None:
    archive = backend.archive("orders", fifo=True)
    for number in range(30):
        publish(Placed(number), key=f"k{number % 3}", topic="orders.fifo")

    archive.run_once()

    seen: dict[str | None, list[int]] = {}
    for archived in archive.events():
        seen.setdefault(archived.envelope.key, []).append(archived.envelope.payload["number"])
    assert seen == {f"k{rest}": list(range(rest, 30, 3)) for rest in range(3)}
    assert "orders--archive.fifo" in backend.queues()


def test_a_duplicate_is_replayed_once(backend: Backend, publish: Callable[..., Any]) -> None:
    archive = backend.archive("orders")
    publish(Placed(1), copies=3)
    publish(Placed(2))
    archive.run_once()
    seen: list[object] = []

    report = archive.replay(seen.append)

    assert seen == [Placed(1), Placed(2)]
    assert (report.replayed, report.failed, report.read - report.duplicates) == (2, 0, 2)


def test_a_replayed_event_knows_its_envelope_and_that_it_is_replayed(
    backend: Backend, publish: Callable[..., Any]
) -> None:
    archive = backend.archive("orders")
    envelope = publish(Placed(1))
    archive.run_once()
    contexts: list[HandlingContext | None] = []

    archive.replay(lambda _: contexts.append(current_context()))

    [context] = contexts
    assert context is not None
    assert (context.replayed, context.envelope) == (True, envelope)
    assert current_context() is None


def test_a_bus_gets_a_replay_through_its_handlers_here_and_sends_nothing(
    backend: Backend, publish: Callable[..., Any]
) -> None:
    archive = backend.archive("orders")
    bus = backend.bus("orders")
    seen: list[object] = []
    bus.subscribe(Placed, seen.append)
    bus.publish(Placed(1))
    archive.run_once()

    first, second = archive.replay(bus), archive.replay(bus)

    assert seen == [Placed(1)] * 3
    assert (first.replayed, second.replayed) == (1, 1)
    assert archive.run_once() == 0


def test_the_deduplication_memory_of_a_bus_is_not_asked_in_a_replay(
    backend: Backend, publish: Callable[..., Any]
) -> None:
    archive = backend.archive("orders")
    publish(Placed(1))
    archive.run_once()
    bus = DeduplicatingEventBus(inner=InProcessEventBus(), cache=DeduplicationCache())
    seen: list[object] = []
    bus.subscribe(Placed, seen.append)

    archive.replay(bus)
    archive.replay(bus)

    assert seen == [Placed(1), Placed(1)]


def test_a_failing_event_is_counted_and_stops_nothing(backend: Backend, publish: Callable[..., Any]) -> None:
    archive = backend.archive("orders")
    for number in range(3):
        publish(Placed(number))
    archive.run_once()
    bus = InProcessEventBus()
    seen: list[int] = []

    def fails_on_one(event: Placed) -> None:
        if event.number == 1:
            raise ValueError("one")
        seen.append(event.number)

    bus.subscribe(Placed, fails_on_one)

    report = archive.replay(bus)

    assert seen == [0, 2]
    assert (report.read, report.replayed, report.failed) == (3, 2, 1)


def test_an_event_of_an_unknown_type_counts_as_failed(backend: Backend, clock: FakeClock) -> None:
    archive = backend.archive("orders")
    envelope = {"event_id": "0" * 32, "created_at": "2030-01-01T00:00:00Z", "publisher_id": "x", "payload": {}}
    body = msgspec.json.encode({"event_type": "os:system", **envelope})
    backend.topic("orders").publish([OutgoingMessage(body)])
    archive.run_once()

    report = archive.replay(lambda _: None)

    assert (report.read, report.replayed, report.failed) == (1, 0, 1)


def test_a_session_takes_each_replayed_step_once(backend: Backend, publish: Callable[..., Any]) -> None:
    from postroad.sessions import Session

    archive = backend.archive("orders")
    publish(Placed(1))
    publish(Placed(2))
    archive.run_once()
    session = Session(bus=InProcessEventBus(registry=backend.registry))

    archive.replay(session)
    archive.replay(session)

    assert session[Placed].all() == (Placed(1), Placed(2))


def test_a_dry_run_reads_and_gives_nothing_on(backend: Backend, publish: Callable[..., Any]) -> None:
    archive = backend.archive("orders")
    publish(Placed(1), copies=2)
    archive.run_once()
    seen: list[object] = []

    report = archive.replay(seen.append, dry_run=True)

    assert seen == []
    assert (report.read, report.replayed, report.duplicates) == (2, 0, 1)


def test_a_rate_holds_a_replay_back(tmp_path: Path) -> None:
    with postroad.connect("memory://") as backend:
        archive = backend.archive("orders")
        codec = Codec(backend.registry)
        for number in range(3):
            body = codec.encode(codec.wrap(Placed(number), publisher_id="shop"))
            backend.topic("orders").publish([OutgoingMessage(body)])
        archive.run_once()
        held_back: list[float] = []

        archive.replay(lambda _: held_back.append(backend.clock.monotonic()), rate=2)

    assert held_back[2] - held_back[0] >= 1


@pytest.mark.parametrize("rate", [0, -1, float("nan"), True])
def test_a_rate_that_is_none_is_refused(backend: Backend, rate: float) -> None:
    with pytest.raises(errors.InvalidInput, match="rate"):
        backend.archive("orders").replay(print, rate=rate)


def test_only_a_function_a_bus_or_something_that_reduces_can_take_a_replay(backend: Backend) -> None:
    with pytest.raises(errors.InvalidInput, match="to: int"):
        backend.archive("orders").replay(5)


def test_an_export_is_json_lines_with_each_event_once(
    backend: Backend, publish: Callable[..., Any], clock: FakeClock
) -> None:
    archive = backend.archive("orders")
    blobs = backend.blobs()
    assert blobs is not None
    first = publish(Placed(1), copies=2)
    clock.advance(10)
    publish(Placed(2))
    archive.run_once()

    [everything] = archive.export(blobs)
    [early] = archive.export(blobs, until=START + timedelta(seconds=5))
    late = archive.export(blobs, since=START + timedelta(seconds=60))

    lines = blobs.get(everything).splitlines()
    assert [json.loads(line)["payload"]["number"] for line in lines] == [1, 2]
    assert postroad.codec.decode(blobs.get(early)) == first
    assert late == []


def test_a_large_export_takes_several_blobs(
    backend: Backend, publish: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.bus.replay._MOST_BYTES", 500)
    archive = backend.archive("orders")
    for number in range(10):
        publish(Placed(number))
    archive.run_once()
    blobs = backend.blobs()
    assert blobs is not None

    refs = archive.export(blobs)

    assert len(refs) > 1
    assert all(ref.size <= 500 for ref in refs)
    lines = b"".join(blobs.get(ref) for ref in refs).splitlines()
    assert [json.loads(line)["payload"]["number"] for line in lines] == list(range(10))


def _until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(500):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it never became true")
