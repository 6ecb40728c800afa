"""The work that scenarios share: messages that can be recognised, sent and handled with every step written down."""

from __future__ import annotations

import functools
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any
from uuid import uuid4

import msgspec

from postroad.errors import InvalidInput, PostroadError, StaleReceipt, StorageFull
from postroad.inbox import Inbox
from postroad.queues import AckResult, Delivery, PeekedMessage, Queue
from postroad.streams import TRIM_HORIZON, Stream, StreamRecord
from postroad.testing import ledger
from postroad.testing.verify.scenario import Client, History, Outcome, Place

KEYS = 12
MAX_RECEIVES = 3
"""After how many receives a message of a scenario is dead."""
_FAILS_ONCE, _FAILS_ALWAYS = 0.05, 0.01
_PADDINGS = (*(0,) * 5, *(40,) * 5, *(400,) * 5, 3_000)
"""The last one is above `LIMIT_BYTES`, so its body travels as a blob."""
LIMIT_BYTES = 2_048
"""The largest message of the queues of scenarios."""
_PAUSE_SECONDS = 0.05
_IDLE_SECONDS = 0.005
_RETRY_SECONDS = 0.02
_HANDLER_SECONDS = 0.002


class Body(msgspec.Struct, frozen=True):
    """The body of a message: what identifies it, how often its handler fails, and bytes that must not change."""

    id: str
    key: str
    n: int
    fails: int = 0
    """How many receives its handler fails at."""
    padding: str = ""


Read = Callable[[bytes], Body]


class Message(msgspec.Struct, frozen=True):
    """A message to send, and what the history says about it."""

    body: Body
    raw: bytes

    @property
    def fields(self) -> dict[str, Any]:
        return fields_of(self.body, self.raw)


def fields_of(body: Body, raw: bytes) -> dict[str, Any]:
    return {"id": body.id, "key": body.key, "n": body.n, "sha": hashlib.sha256(raw).hexdigest()}


def messages(client: Client) -> Iterator[Message]:
    """Yield the messages that this process has to send, each when it may be sent; wait for the end afterwards."""
    counts: Counter[str] = Counter()
    random = client.random
    while not client.stopping:
        if not client.may_send():
            time.sleep(_IDLE_SECONDS)
            continue
        key = f"k{random.randrange(KEYS)}"
        chance = random.random()
        fails = 0 if not client.place.faults else 1_000 if chance < _FAILS_ALWAYS else int(chance < _FAILS_ONCE)
        body = Body(str(uuid4()), key, counts[key], fails, "x" * random.choice(_PADDINGS))
        counts[key] += 1
        yield Message(body, msgspec.json.encode(body))
        client.sent()


Send = Callable[[Message], Exception | bool | None]
"""Publishes a message; returns None or True if it is stored, why it may not be, or raises."""


def publish_all(client: Client, topic: str, send: Send) -> None:
    """Publish the messages of this process to a topic, as in `subscriptions` of the run's facts."""
    client.at_work()
    for message in messages(client):
        publish(client, topic, message, send)


def publish(client: Client, topic: str, message: Message, send: Send) -> None:
    """Publish a message and write down its outcome, again under the same id while the outcome is not known.

    Before each call a line says `unknown`, since nobody writes one if this process is killed while it calls. The last
    line of an id tells its outcome: once a call has an unknown outcome, a later failure does not make it certain.
    """
    uncertain = False
    while not client.stopping:
        client.record("publish", "unknown", topic=topic, **message.fields)
        outcome = _outcome(send, message)
        uncertain = uncertain or outcome == "unknown"
        if outcome == "ok" or not uncertain:
            client.record("publish", outcome, topic=topic, **message.fields)
        if outcome == "ok" or (outcome == "fail" and not uncertain and client.random.random() < 0.5):
            return
        time.sleep(_RETRY_SECONDS)


def _outcome(send: Send, message: Message) -> Outcome:
    """Return the outcome of a call: it surely failed only if the store had no room for it."""
    try:
        answer = send(message)
    except InvalidInput:
        # A mistake of the scenario, which no repetition mends.
        raise
    except PostroadError as error:
        answer = error
    if answer is None or answer is True:
        return "ok"
    return "fail" if isinstance(answer, StorageFull) else "unknown"


Effect = Callable[[Any, str, str], None]
_effects: list[Effect] = [ledger.record]


def take_effect(connection: Any, sub: str, event_id: str) -> None:
    """Let the handlers of the run take effect in the caller's transaction."""
    for effect in _effects:
        effect(connection, sub, event_id)


def take_effect_once(inbox: Inbox, sub: str, event_id: str) -> None:
    """Let the handlers take effect, unless they have for this event."""
    with inbox.transaction() as connection:
        if inbox.first_time(connection, sub, event_id):
            take_effect(connection, sub, event_id)


def use_handlers(modules: Sequence[str]) -> None:
    """Let the functions `handle(connection, sub, event_id)` of these modules take effect instead of the ledger alone.

    Raises:
        InvalidInput: A module cannot be imported, or has no such function.
    """
    found: list[Effect] = []
    for name in modules:
        try:
            found.append(import_module(name).handle)
        except Exception as error:
            raise InvalidInput(
                f"--load: {name!r} cannot be used: {type(error).__name__}: {error}",
                field="load",
                remedy="Name a module with a function handle(connection, sub, event_id) that calls "
                "postroad.testing.ledger.record(connection, sub, event_id).",
            ) from error
    _effects[:] = found or [ledger.record]


def is_away(error: Exception) -> bool:
    """Return whether the database may be away; the driver's own errors in a caller's statements are not translated."""
    return isinstance(error, PostroadError) or type(error).__module__.startswith(("psycopg", "sqlite3"))


class HandlerFailed(Exception):
    """The handler of a message that fails on purpose."""


class Handler:
    """Handles deliveries of one subscription: each moves one unit in the transaction that holds its inbox row."""

    def __init__(self, client: Client, sub: str) -> None:
        self._client, self._sub = client, sub
        self._inbox = Inbox.open(client.place.dsn)

    def handle(self, body: Body, receive_count: int) -> None:
        """Take effect once, or raise if the message fails on purpose."""
        if receive_count <= body.fails:
            time.sleep(self._seconds())
            raise HandlerFailed
        self.take_effect(body)

    def take_effect(self, body: Body) -> None:
        """Move one unit, unless this event has moved it before; while the database is away, try again."""
        time.sleep(self._seconds())
        while True:
            try:
                return take_effect_once(self._inbox, self._sub, body.id)
            except Exception as error:
                if not is_away(error):
                    raise
            time.sleep(_RETRY_SECONDS)

    def _seconds(self) -> float:
        return self._client.random.expovariate(1 / _HANDLER_SECONDS)


def consume(client: Client, queue: Queue, sub: str, *, batch: int = 1, read: Read | None = None) -> None:
    """Receive, handle and ack until the run ends, and write down each step; `read` finds messages in larger bodies."""
    handler, find = Handler(client, sub), read or read_body
    watch = QueueWatch(client, queue.name, sub, read)
    watch.begin(queue)
    client.at_work()
    while not client.stopping:
        try:
            deliveries = queue.receive(max_messages=batch, wait=0.2)
        except PostroadError:
            time.sleep(_PAUSE_SECONDS)
            continue
        for delivery in deliveries:
            body, started = find(delivery.body), time.monotonic()
            try:
                handler.handle(body, delivery.receive_count)
            except HandlerFailed:
                with suppress(PostroadError):
                    queue.release([delivery], after=0.05)
                continue
            about: dict[str, Any] = {"key": body.key, "n": body.n, "receipt": delivery.receipt}
            client.record("handled", sub=sub, id=body.id, t0=started, **about)
            with suppress(PostroadError):
                queue.ack([delivery])
        watch.forget()


class QueueWatch:
    """Writes down what this process does with one of its queues, while others of the process go unseen."""

    def __init__(self, client: Client, queue_name: str, sub: str, read: Read | None = None) -> None:
        self._client, self._queue_name, self._sub, self._read = client, queue_name, sub, read
        self._held: set[str] = set()
        self.receipts: dict[tuple[str, int], str] = {}
        """The receipts of this process, by event and number of the receive."""

    def begin(self, queue: object) -> None:
        """Watch every queue of the same kind as this one from now on."""
        kind: Any = type(queue)
        kind.receive = self._receiving(kind.receive)
        for verb, op in {"ack": "ack", "extend": "extend", "release": "release", "undo": "release"}.items():
            if (own := getattr(queue, "__dict__", {}).get(verb)) is not None:
                # A queue that hands this over to another one, by an attribute of its own.
                call = self._settling(op, functools.partial(_without_queue, own), undone=verb == "undo")
                setattr(queue, verb, functools.partial(call, queue))
            elif hasattr(kind, verb):
                setattr(kind, verb, self._settling(op, getattr(kind, verb), undone=verb == "undo"))

    def forget(self) -> None:
        """Hold nothing any more: what could not be settled comes again."""
        self._held.clear()
        self._client.announce(holding=False)

    def _receiving(self, receive: Callable[..., list[Delivery]]) -> Callable[..., list[Delivery]]:
        @functools.wraps(receive)
        def call(queue: Any, **given: Any) -> list[Delivery]:
            began = time.monotonic()
            deliveries = receive(queue, **given)
            if deliveries and queue.name == self._queue_name:
                self._held.update(each.receipt for each in deliveries)
                self._client.announce(holding=True)
                for delivery in deliveries:
                    fields = received(delivery, self._read)
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
                    body = (self._read or read_body)(delivery.body)
                    about = {"sub": self._sub, "id": body.id, "receipt": delivery.receipt}
                    fields[delivery.receipt] = {**about, "undone": True} if undone else about
            began = time.monotonic()
            for each in fields.values():
                self._client.record(op, "unknown", **each)
            results = settle(queue, deliveries, **given)
            for delivery, result in zip(deliveries, results, strict=True):
                if delivery.receipt in fields:
                    stale = isinstance(result.error, StaleReceipt)
                    outcome: Outcome = "ok" if result.ok else "fail" if stale else "unknown"
                    self._client.record(op, outcome, t0=began, **fields[delivery.receipt])
            if op != "extend":
                self._held.difference_update(fields)
                self._client.announce(holding=bool(self._held))
            return results

        return call


def _without_queue(settle: Callable[..., list[AckResult]], _: object, *given: Any, **options: Any) -> list[AckResult]:
    return settle(*given, **options)


def received(delivery: Delivery, read: Read | None = None) -> dict[str, Any]:
    """Return the fields of a delivery's `receive` line; `read` finds the message in a larger body."""
    body = (read or read_body)(delivery.body)
    raw = delivery.body if read is None else msgspec.json.encode(body)
    fields = fields_of(body, raw)
    fields |= {"receive_count": delivery.receive_count, "receipt": delivery.receipt, "token": delivery.receive_count}
    return fields if delivery.sequence is None else fields | {"sequence": delivery.sequence}


def read_body(raw: bytes) -> Body:
    """Return a body; one that nobody sent has an id that nobody published."""
    try:
        return msgspec.json.decode(raw, type=Body)
    except msgspec.DecodeError:
        return Body(f"unreadable {hashlib.sha256(raw).hexdigest()}", "", -1)


def reader(field: str) -> Read:
    """Return a function that reads the message in this field of a larger body."""
    carrier = msgspec.defstruct("Carrier", [(field, Body)])

    def read(raw: bytes) -> Body:
        try:
            found: Body = getattr(msgspec.json.decode(raw, type=carrier), field)
        except msgspec.DecodeError:
            return read_body(raw)
        return found

    return read


def prepare_ledger(place: Place) -> None:
    inbox = Inbox.open(place.dsn)
    inbox.init()
    with inbox.transaction() as connection:
        ledger.create(connection)


def read_ledger(place: Place, history: History) -> None:
    """Write an `effect` line for each effect, and check that the balances agree with them."""
    found: Counter[str] = Counter()
    with Inbox.open(place.dsn).transaction() as connection:
        for sub, event_id in ledger.effects(connection):
            found[sub] += 1
            history.write("effect", sub=sub, id=event_id)
        balances = ledger.balances(connection)
    history.check("I5", balances == dict(found), f"balances {balances}, effects {dict(found)}")


def effects_of(place: Place, sub: str, *, last: int = 0) -> set[str]:
    """Return the events that took effect for one subscription, or the `last` of them."""
    with Inbox.open(place.dsn).transaction() as connection:
        return set([event_id for each, event_id in ledger.effects(connection) if each == sub][-last:])


def held(queue: Queue) -> int:
    """Return how many messages a queue holds, in whatever state."""
    stats = queue.stats()
    return stats.visible + stats.in_flight + stats.delayed


def unread(stream: Stream, consumer: str) -> int:
    """Return how many records a consumer has not passed, all of them: a supervisor waits while the number falls."""
    return sum(len(behind(stream, consumer, shard)) for shard in stream.shards())


def behind(stream: Stream, consumer: str, shard: str) -> list[StreamRecord]:
    """Return the records of a shard that a consumer has not passed."""
    return whole(stream, shard, after=stream.position(consumer, shard) or TRIM_HORIZON)


def whole(stream: Stream, shard: str, *, after: str = TRIM_HORIZON) -> list[StreamRecord]:
    """Return all records of a shard, or those after a position."""
    found: list[StreamRecord] = []
    while page := stream.read(shard, after=found[-1].sequence if found else after, limit=1_000):
        found += page
    return found


def peeked(queue: Queue) -> Iterator[PeekedMessage]:
    after = None
    while page := queue.peek(limit=100, after=after):
        yield from page
        after = page[-1].message_id


def read_rest(history: History, op: str, sub: str, queue: Queue, read: Read | None = None) -> None:
    """Write a line of `op` for each message that rests in a queue."""
    for message in resting(queue):
        history.write(op, sub=sub, id=(read or read_body)(message.body).id)


def resting(queue: Queue) -> Iterator[PeekedMessage | Delivery]:
    """Yield what a queue holds at the end; where peeking counts, it is received and acked."""
    if queue.traits.peeks_clean:
        yield from peeked(queue)
        return
    while page := queue.receive(wait=1, visibility=600):
        yield from page
        # In an ordered queue, what is held would hide what is behind it.
        queue.ack(page)
