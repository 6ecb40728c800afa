from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.memory import memory_blobs, memory_queues

from postroad.blobs import BlobRef
from postroad.blobs.directory import DirectoryBlobs
from postroad.errors import (
    BlobNotFound,
    InvalidMessage,
    MessageTooLarge,
    NotSupported,
    OutcomeUnknown,
    PostroadError,
    StorageFull,
    Unavailable,
)
from postroad.queues import Move, OutgoingMessage, Queue, QueueSpec, SendResult
from postroad.queues.markers import read_dead
from postroad.queues.overflow import KEEP_FOR, OverflowingQueue, Pruning
from postroad.testing.clock import FakeClock
from postroad.testing.queues import QueueConformance, QueueFixture

LARGE = "é" * 2_000
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SHA = "0" * 64


class OverflowingQueues:
    """Memory queues, each inside an overflowing one."""

    def __init__(self, clock: FakeClock) -> None:
        self._queues = memory_queues(clock)
        self._clock = clock
        self._blobs = memory_blobs(clock)
        self.delete_queue = self._queues.delete_queue
        self.queue_spec = self._queues.queue_spec
        self.queues = self._queues.queues
        self.overviews = self._queues.overviews
        self.sources = self._queues.sources

    def create_queue(self, spec: QueueSpec) -> Queue:
        return self._around(self._queues.create_queue(spec))

    def update_queue(self, spec: QueueSpec) -> Queue:
        return self._around(self._queues.update_queue(spec))

    def queue(self, name: str) -> Queue:
        return self._around(self._queues.queue(name))

    def _around(self, queue: Queue) -> Queue:
        return OverflowingQueue(queue, self._blobs, clock=self._clock)


class TestOverflowingQueue(QueueConformance):
    known_differences = {
        "test_a_body_of_the_limit_fits_and_one_byte_more_does_not": "what is above the limit travels as a blob",
        "test_a_queue_may_have_a_lower_limit": "what is above the limit travels as a blob",
        "test_attributes_count_towards_the_limit": "what is above the limit travels as a blob",
    }

    @pytest.fixture
    def ground(self) -> QueueFixture:
        clock = FakeClock()
        return QueueFixture(queues=OverflowingQueues(clock), clock=clock)


@dataclass
class Fixture:
    clock: FakeClock
    blobs: DirectoryBlobs
    inner: Queue
    dead: Queue
    queue: OverflowingQueue

    def stored(self) -> int:
        """How many blobs there are; counting ends them."""
        self.clock.advance(1)
        return self.blobs.prune("overflow/", older_than=0)

    def reference(self) -> BlobRef:
        """Where the body of the only message is."""
        (message,) = self.inner.peek()
        return msgspec.convert(msgspec.json.decode(message.body)["postroad_blob"], BlobRef)


def _fixture(*, fifo: bool = False, dead_letter: bool = True, **settings: Any) -> Fixture:
    clock, end = FakeClock(NOW), ".fifo" if fifo else ""
    queues, blobs = memory_queues(clock), memory_blobs(clock)
    dead = queues.create_queue(QueueSpec(f"dead{end}", fifo=fifo))
    spec = QueueSpec(
        f"jobs{end}", fifo=fifo, max_message_bytes=1_024, dead_letter=dead.name if dead_letter else None, **settings
    )
    inner = queues.create_queue(spec)
    ids = (f"{n:032x}" for n in itertools.count())
    queue = OverflowingQueue(inner, blobs, clock=clock, new_id=ids.__next__)
    return Fixture(clock, blobs, inner, dead, queue)


@pytest.fixture
def fixture() -> Fixture:
    return _fixture()


@pytest.fixture
def ordered() -> Fixture:
    return _fixture(fifo=True, content_dedup=True)


def test_a_large_body_comes_back_whole_without_a_trace(fixture: Fixture) -> None:
    sent = fixture.queue.send([OutgoingMessage(LARGE, {"k": "v"})])

    (delivery,) = fixture.queue.receive()

    assert (delivery.body.decode(), delivery.attributes) == (LARGE, {"k": "v"})
    assert delivery.message_id == sent[0].message_id
    assert fixture.queue.ack([delivery])[0].ok
    assert fixture.queue.stats().in_flight == 0


def test_a_large_body_travels_as_a_reference_under_a_key_built_by_postroad(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE, {"k": "v"})])

    (packed,) = fixture.inner.peek()

    key = fixture.reference().key
    assert key == "overflow/20300101/00000000000000000000000000000000"
    assert packed.attributes == {"k": "v", "PostroadBlob": "1"}
    assert len(packed.body) < 300


def test_a_body_at_the_limit_travels_by_itself_and_one_byte_more_as_a_blob(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage("x" * 1_024)])
    fixture.queue.send([OutgoingMessage("x" * 1_025)])

    assert [len(d.body) for d in fixture.queue.receive()] == [1_024, 1_025]
    assert fixture.stored() == 1


def test_attributes_count_towards_the_limit(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage("x" * 1_020, {"k": "v"})])

    assert [(len(d.body), d.attributes) for d in fixture.queue.receive()] == [(1_020, {"k": "v"})]
    assert fixture.stored() == 1


def test_a_batch_may_mix_small_and_large_bodies(fixture: Fixture) -> None:
    bodies = ["small", LARGE, "also small", LARGE + "!"]

    results = fixture.queue.send([OutgoingMessage(body) for body in bodies])

    assert all(result.ok for result in results)
    assert [delivery.body.decode() for delivery in fixture.queue.receive()] == bodies


def test_peeking_shows_the_whole_body(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE, {"k": "v"})])

    (message,) = fixture.queue.peek()

    assert (message.body.decode(), message.attributes) == (LARGE, {"k": "v"})


def test_peeking_at_a_message_whose_blob_is_lost_shows_the_reference(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE)])
    fixture.blobs.delete(fixture.reference())

    assert fixture.queue.peek() == fixture.inner.peek()


def test_the_traits_tell_the_limit_of_blobs(fixture: Fixture) -> None:
    assert fixture.queue.traits.max_message_bytes == 104_857_600
    assert fixture.queue.name == "jobs"


def test_a_released_extended_or_rejected_large_message_keeps_its_blob(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE)])

    assert fixture.queue.release(fixture.queue.receive())[0].ok
    assert fixture.queue.extend(held := fixture.queue.receive(), seconds=60)[0].ok
    assert fixture.queue.reject(held, reason="poison")[0].ok

    (buried,) = OverflowingQueue(fixture.dead, fixture.blobs).receive()
    assert buried.body.decode() == LARGE


def test_a_lost_blob_is_a_failed_delivery_and_ends_in_the_dead_letters(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE), OutgoingMessage("small")])
    fixture.blobs.delete(msgspec.convert(msgspec.json.decode(fixture.inner.peek()[0].body)["postroad_blob"], BlobRef))

    received = [[d.body for d in fixture.queue.receive()] for _ in range(4)]

    (buried,) = fixture.dead.peek()
    marker = read_dead(buried.attributes)
    assert received == [[b"small"], [], [], []]
    assert marker is not None
    assert marker.error == "BlobNotFound: there is no blob 'overflow/20300101/00000000000000000000000000000000'"


def test_a_damaged_blob_is_a_failed_delivery(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE)])
    fixture.blobs.put(fixture.reference().key, b"other")

    assert [fixture.queue.receive() for _ in range(4)] == [[], [], [], []]
    assert len(fixture.dead.peek()) == 1


FORGED: list[bytes | dict[str, Any]] = [
    b"not json",
    b"{}",
    {"key": "secrets/a", "size": 1, "sha256": SHA},
    {"key": "overflow/../secrets/a", "size": 1, "sha256": SHA},
    {"key": "/etc/passwd", "size": 1, "sha256": SHA},
    {"key": "overflow/a", "size": 10**12, "sha256": SHA},
    {"key": "overflow/a", "size": -1, "sha256": SHA},
    {"key": "overflow/a", "size": 1, "sha256": "?"},
    {"key": "overflow/a", "size": "1", "sha256": SHA},
    {"key": "overflow/a", "size": 1, "sha256": SHA, "more": "x"},
]


@pytest.mark.parametrize("forged", FORGED, ids=str)
def test_a_forged_reference_is_a_failed_delivery_and_reads_nothing(
    fixture: Fixture, forged: bytes | dict[str, Any]
) -> None:
    fixture.blobs.put("secrets/a", b"s")
    body = forged if isinstance(forged, bytes) else msgspec.json.encode({"postroad_blob": forged})
    fixture.inner.send([OutgoingMessage(body, {"PostroadBlob": "1"})])

    assert [fixture.queue.receive() for _ in range(4)] == [[], [], [], []]
    assert [letter.body for letter in fixture.dead.peek()] == [body]


def test_a_body_that_looks_like_a_reference_is_a_body(fixture: Fixture) -> None:
    body = b'{"postroad_blob":{"key":"overflow/a","size":1,"sha256":"%s"}}' % SHA.encode()

    fixture.queue.send([OutgoingMessage(body)])

    assert [delivery.body for delivery in fixture.queue.receive()] == [body]


def test_a_lost_blob_without_dead_letters_comes_back_ever_slower() -> None:
    fixture = _fixture(dead_letter=False)
    fixture.queue.send([OutgoingMessage(LARGE)])
    fixture.blobs.delete(fixture.reference())

    for _ in range(12):
        assert fixture.queue.receive() == []

    (message,) = fixture.inner.peek()
    assert message.receive_count == 10


class _AwayBlobs(DirectoryBlobs):
    def get(self, ref: BlobRef) -> bytes:
        raise Unavailable("the store of blobs does not answer")


def test_a_store_of_blobs_that_does_not_answer_costs_one_receive_and_a_pause(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE)])
    away = OverflowingQueue(fixture.inner, _AwayBlobs(fixture.blobs.path, fixture.clock), clock=fixture.clock)

    assert [away.receive() for _ in range(4)] == [[], [], [], []]
    fixture.clock.advance(31)

    (delivery,) = fixture.queue.receive()
    assert (delivery.body.decode(), delivery.receive_count) == (LARGE, 2)


def test_on_fifo_a_lost_blob_does_not_take_the_messages_behind_it_along(ordered: Fixture) -> None:
    ordered.queue.send([OutgoingMessage(body, group="g") for body in (LARGE, "second", "third")])
    ordered.blobs.delete(msgspec.convert(msgspec.json.decode(ordered.inner.peek()[0].body)["postroad_blob"], BlobRef))

    received = ordered.queue.receive()

    assert [(d.body, d.receive_count) for d in received] == [(b"second", 1), (b"third", 1)]
    (buried,) = ordered.dead.peek()
    marker = read_dead(buried.attributes)
    assert marker is not None
    assert str(marker.error).startswith("BlobNotFound")


def test_on_fifo_nothing_overtakes_a_message_whose_store_of_blobs_does_not_answer(ordered: Fixture) -> None:
    ordered.queue.send([OutgoingMessage(body, group="g") for body in (LARGE, "second")])
    ordered.queue.send([OutgoingMessage("free", group="h")])
    away = OverflowingQueue(ordered.inner, _AwayBlobs(ordered.blobs.path, ordered.clock), clock=ordered.clock)

    first = away.receive()
    ordered.clock.advance(31)

    assert [d.body for d in first] == [b"free"]
    assert [d.body.decode() for d in ordered.queue.receive() if d.group == "g"] == [LARGE, "second"]


def test_on_fifo_a_repeated_large_body_is_recognised(ordered: Fixture) -> None:
    first, second = ordered.queue.send([OutgoingMessage(LARGE, group="g")] * 2)

    assert first.message_id == second.message_id
    assert len(ordered.inner.peek()) == 1


def test_on_fifo_a_dedup_id_of_the_senders_own_is_kept(ordered: Fixture) -> None:
    first, second = ordered.queue.send(
        [OutgoingMessage(body, group="g", dedup_id="same") for body in (LARGE, LARGE + "!")]
    )

    assert first.message_id == second.message_id


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("body", OutgoingMessage("\x00" + LARGE)),
        ("body", OutgoingMessage(b"\xff" * 2_000)),
        ("attributes", OutgoingMessage(LARGE, {f"k{n}": "v" for n in range(11)})),
        ("attributes.k", OutgoingMessage(LARGE, {"k": "\x00"})),
        ("attributes.PostroadBlob", OutgoingMessage("small", {"PostroadBlob": "1"})),
        ("attributes.PostroadBlob", OutgoingMessage(LARGE, {"PostroadBlob": "1"})),
        ("delay", OutgoingMessage(LARGE, delay=901)),
        ("body", OutgoingMessage("small", {"k": "x" * 2_000})),
    ],
)
def test_a_bad_message_is_refused_and_leaves_no_blob(fixture: Fixture, field: str, message: OutgoingMessage) -> None:
    with pytest.raises(InvalidMessage) as refused:
        fixture.queue.send([message])

    assert refused.value.field == field
    assert fixture.stored() == 0
    assert fixture.inner.peek() == []


def test_one_bad_message_of_a_batch_is_named_and_leaves_no_blob(fixture: Fixture) -> None:
    with pytest.raises(InvalidMessage) as refused:
        fixture.queue.send([OutgoingMessage(LARGE), OutgoingMessage("")])

    assert refused.value.field == "messages[1].body"
    assert fixture.stored() == 0


def test_a_large_body_with_all_ten_attribute_places_taken_is_refused(fixture: Fixture) -> None:
    with pytest.raises(MessageTooLarge, match="all are taken"):
        fixture.queue.send([OutgoingMessage(LARGE, {f"k{n}": "v" for n in range(10)})])

    assert fixture.stored() == 0


def test_a_body_above_the_limit_of_blobs_is_refused(fixture: Fixture) -> None:
    with pytest.raises(MessageTooLarge, match="104857600") as refused:
        fixture.queue.send([OutgoingMessage("x" * 104_857_601)])

    assert refused.value.field == "body"


class _FailingQueue:
    """A queue whose sends end in an error, raised or reported."""

    def __init__(self, queue: Queue, failure: Callable[[int], list[SendResult]]) -> None:
        self._queue, self._failure = queue, failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        return self._failure(len(messages))


def _failing(fixture: Fixture, failure: Callable[[int], list[SendResult]]) -> OverflowingQueue:
    inner: Any = _FailingQueue(fixture.inner, failure)
    return OverflowingQueue(inner, fixture.blobs, clock=fixture.clock)


@pytest.mark.parametrize(
    ("error", "blobs"), [(Unavailable("no"), 0), (StorageFull("no"), 0), (OutcomeUnknown("perhaps"), 1)]
)
def test_a_blob_is_kept_unless_its_message_surely_was_not_sent(
    fixture: Fixture, error: PostroadError, blobs: int
) -> None:
    def report(count: int) -> list[SendResult]:
        return [SendResult(ok=False, error=error)] * count

    (result,) = _failing(fixture, report).send([OutgoingMessage(LARGE)])

    assert result.error is error
    assert fixture.stored() == blobs


@pytest.mark.parametrize(("error", "blobs"), [(Unavailable("no"), 0), (OutcomeUnknown("perhaps"), 1)])
def test_a_blob_is_kept_unless_the_raised_error_says_that_nothing_was_sent(
    fixture: Fixture, error: PostroadError, blobs: int
) -> None:
    def fail(_: int) -> list[SendResult]:
        raise error

    with pytest.raises(type(error)):
        _failing(fixture, fail).send([OutgoingMessage(LARGE)])

    assert fixture.stored() == blobs


def test_redriven_messages_start_their_blobs_time_anew(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE)])
    ref = fixture.reference()
    fixture.clock.advance(100)

    step = fixture.queue.move(lambda message: Move(to="dead", attributes=dict(message.attributes)))

    assert len(step.moved) == 1
    assert fixture.blobs.prune("overflow/", older_than=50) == 0
    assert fixture.blobs.get(ref).decode() == LARGE


def test_messages_that_stay_do_not_keep_their_blobs(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE)])
    fixture.clock.advance(100)

    fixture.queue.move(lambda message: None)

    assert fixture.blobs.prune("overflow/", older_than=50) == 1


def test_a_message_whose_blob_is_lost_can_still_be_moved(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE)])
    fixture.blobs.delete(fixture.reference())

    step = fixture.queue.move(lambda message: Move(to="dead", attributes=dict(message.attributes)))

    assert len(step.moved) == 1


def test_purging_goes_through(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE), OutgoingMessage("small")])

    assert fixture.queue.purge() == 2


def test_a_queue_that_cannot_move_says_so(fixture: Fixture) -> None:
    class Still:
        name = "still"

    queue = OverflowingQueue(Still(), fixture.blobs)  # type: ignore[arg-type]  # an adapter without the moving verbs

    with pytest.raises(NotSupported, match="still"):
        queue.purge()


def test_blobs_are_removed_when_no_retention_can_hold_their_message_any_more(fixture: Fixture) -> None:
    fixture.queue.send([OutgoingMessage(LARGE)])
    ref = fixture.reference()

    fixture.clock.advance(KEEP_FOR - 1)
    fixture.queue.send([OutgoingMessage("small")])
    assert fixture.blobs.get(ref)

    fixture.clock.advance(3_601)
    fixture.queue.send([OutgoingMessage("small")])
    with pytest.raises(BlobNotFound):
        fixture.blobs.get(ref)


class _CountingBlobs(DirectoryBlobs):
    prunings = 0

    def prune(self, prefix: str, *, older_than: float) -> int:
        self.prunings += 1
        raise Unavailable("the store of blobs does not answer")


def test_blobs_are_pruned_once_an_hour_by_all_queues_together_and_a_failure_harms_no_send(fixture: Fixture) -> None:
    blobs = _CountingBlobs(fixture.blobs.path, fixture.clock)
    pruning = Pruning(blobs, fixture.clock)
    queues = [OverflowingQueue(fixture.inner, blobs, clock=fixture.clock, pruning=pruning) for _ in range(3)]

    for queue in queues:
        assert queue.send([OutgoingMessage("small")])[0].ok
    assert blobs.prunings == 0
    fixture.clock.advance(3_600)
    for queue in queues:
        assert queue.send([OutgoingMessage("small")])[0].ok

    assert blobs.prunings == 1


def test_the_first_blob_that_is_stored_prunes_at_once(fixture: Fixture) -> None:
    blobs = _CountingBlobs(fixture.blobs.path, fixture.clock)
    queue = OverflowingQueue(fixture.inner, blobs, clock=fixture.clock)

    for _ in range(3):
        assert queue.send([OutgoingMessage(LARGE)])[0].ok

    assert blobs.prunings == 1
