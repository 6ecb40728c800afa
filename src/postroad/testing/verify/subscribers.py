"""Subscribers of a topic: processes whose bus handles each event once, and what they do with their queues."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

import postroad
from postroad.bus import BusConfig
from postroad.inbox import Inbox
from postroad.queues import AckResult, Delivery
from postroad.testing.verify import workload
from postroad.testing.verify.scenario import Client, History, Place
from postroad.testing.verify.workload import HandlerFailed, Message
from postroad.wiring import Backend

_HANDLER_SECONDS = 0.002
_SETTLING = {"ack": "ack", "extend": "extend", "release": "release", "undo": "release"}
_read_event = workload.reader("payload")


@postroad.event(name="verify.happened")
class Happened:
    """The event of all scenarios; its fields are those of a message."""

    id: str
    key: str
    n: int
    fails: int
    padding: str


def event_of(message: Message) -> Happened:
    return Happened(**msgspec.structs.asdict(message.body))


def _queue_of(topic: str, group: str) -> str:
    return f"{topic}--{group}.fifo"


def config(place: Place) -> BusConfig:
    """Return the settings of a subscriber: short waits, and the visibility and receives of the scenario."""
    return BusConfig(
        wait_time_seconds=0.2,
        poll_interval_seconds=0.01,
        visibility_timeout_seconds=place.visibility,
        max_receives=workload.MAX_RECEIVES,
        retry_delays_seconds=(0.05,),
    )


def subscribe(client: Client, backend: Backend, topic: str, group: str) -> None:
    """Handle the events of a topic as one member of a group until the run ends."""
    inbox = Inbox.open(client.place.dsn)
    watch = _QueueWatch(client, _queue_of(topic, group), group)
    transaction = functools.partial(_transaction, client, inbox, group, watch.receipts)
    bus = backend.bus(topic, group, fifo=True, inbox=inbox, transaction=transaction, config=config(client.place))

    @bus.on(Happened, name=group)
    def handle(event: Happened, connection: Any) -> None:
        context = postroad.current_context()
        assert context is not None
        time.sleep(client.random.expovariate(1 / _HANDLER_SECONDS))
        if context.receive_count <= event.fails:
            raise HandlerFailed
        workload.take_effect(connection, group, event.id)

    queue = backend.queue(_queue_of(topic, group))
    watch.begin(getattr(queue, "inner", queue))
    bus.start_receiver()
    client.at_work()
    client.stop_event().wait()
    bus.close()


class _QueueWatch:
    """Writes down what this process does with one of its queues, while others of the process go unseen."""

    def __init__(self, client: Client, queue_name: str, sub: str) -> None:
        self._client, self._queue_name, self._sub = client, queue_name, sub
        self._held: set[str] = set()
        self.receipts: dict[tuple[str, int], str] = {}
        """The receipts of this process, by event and number of the receive."""

    def begin(self, queue: object) -> None:
        """Watch every queue of the same kind as this one from now on."""
        kind: Any = type(queue)
        kind.receive = self._receiving(kind.receive)
        for verb, op in _SETTLING.items():
            if hasattr(kind, verb):
                setattr(kind, verb, self._settling(op, getattr(kind, verb), undone=verb == "undo"))

    def _receiving(self, receive: Callable[..., list[Delivery]]) -> Callable[..., list[Delivery]]:
        @functools.wraps(receive)
        def call(queue: Any, **given: Any) -> list[Delivery]:
            began = time.monotonic()
            deliveries = receive(queue, **given)
            if deliveries and queue.name == self._queue_name:
                self._held.update(each.receipt for each in deliveries)
                self._client.announce(holding=True)
                for delivery in deliveries:
                    fields = workload.received(delivery, _read_event)
                    self.receipts[fields["id"], delivery.receive_count] = delivery.receipt
                    self._client.record("receive", sub=self._sub, t0=began, **fields)
            return deliveries

        return call

    def _settling(self, op: str, settle: Callable[..., list[AckResult]], *, undone: bool) -> Callable[..., Any]:
        @functools.wraps(settle)
        def call(queue: Any, deliveries: Sequence[Delivery], **given: Any) -> list[AckResult]:
            fields: dict[str, dict[str, Any]] = {}
            for delivery in deliveries if queue.name == self._queue_name else ():
                if delivery.receipt in self._held:
                    about = {"sub": self._sub, "id": _read_event(delivery.body).id, "receipt": delivery.receipt}
                    fields[delivery.receipt] = {**about, "undone": True} if undone else about
            began = time.monotonic()
            for each in fields.values():
                self._client.record(op, "unknown", **each)
            results = settle(queue, deliveries, **given)
            for delivery, result in zip(deliveries, results, strict=True):
                if delivery.receipt in fields:
                    self._client.record(op, workload.settled(result), t0=began, **fields[delivery.receipt])
            if op != "extend":
                self._held.difference_update(fields)
                self._client.announce(holding=bool(self._held))
            return results

        return call


@contextmanager
def _transaction(client: Client, inbox: Inbox, group: str, receipts: Mapping[tuple[str, int], str]) -> Iterator[Any]:
    """Open the transaction of a handler; once it is committed, the event is handled, now or at an earlier delivery."""
    context, began = postroad.current_context(), time.monotonic()
    with inbox.transaction() as connection:
        yield connection
    if context is not None and isinstance(event := context.event, Happened):
        receipt = receipts[event.id, context.receive_count]
        client.record("handled", sub=group, id=event.id, key=event.key, n=event.n, t0=began, receipt=receipt)


def make_groups(place: Place, backend: Backend, topic: str, groups: tuple[str, ...]) -> None:
    """Create the queues of groups before any process starts, so that nothing is published without them."""
    for group in groups:
        backend.bus(topic, group, fifo=True, inbox=Inbox.open(place.dsn), config=config(place)).close()


def waiting(backend: Backend, topic: str, groups: tuple[str, ...]) -> int:
    """Return how many events the groups of a topic have not handled yet."""
    return sum(workload.held(backend.queue(_queue_of(topic, group))) for group in groups)


def read_groups(backend: Backend, history: History, topic: str, groups: tuple[str, ...]) -> None:
    """Write down the dead letters of the groups, and what was left in their queues."""
    for group in groups:
        for op, name in (("dead", _queue_of(topic, f"{group}--dead")), ("left", _queue_of(topic, group))):
            workload.read_rest(history, op, group, backend.queue(name), _read_event)
