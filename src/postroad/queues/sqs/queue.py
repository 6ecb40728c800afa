"""One queue on SQS: the eight verbs, in batches of ten."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

from postroad.arguments import check, seconds_between, whole_number
from postroad.backoff import CHANCE
from postroad.clock import Clock
from postroad.connections import ATTEMPTS, Entry, deliver
from postroad.errors import NotSupported, OutcomeUnknown, PostroadError, TransportError, Unavailable
from postroad.queues import port, rules
from postroad.queues.markers import mark_dead
from postroad.queues.port import AckResult, Delivery, OutgoingMessage
from postroad.queues.rules import MAX_VISIBILITY, QueueSpec
from postroad.queues.sqs import wire
from postroad.queues.sqs.calls import SQSCalls, name_in
from postroad.queues.sqs.moves import Mover, MoveTasks
from postroad.queues.sqs.wire import MAX_BATCH

_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
_REJECT_LEASE = 60.0
_OK = AckResult(ok=True)
_EARLY_SECONDS = 1.0
"""An empty answer that arrives this much before the end of its wait is early."""
_EARLY_PAUSE_SECONDS = 0.1


class SQSQueue:
    """A queue by its URL. SQS counts in whole seconds: visibility, delay, wait and extension are rounded up."""

    def __init__(self, calls: SQSCalls, url: str, clock: Clock, *, attempts: int = ATTEMPTS) -> None:
        self.name = name_in(url)
        self.url = url
        self.clock = clock
        self._calls = calls
        self._attempts = attempts
        self._fifo = self.name.endswith(".fifo")
        self._lock = threading.Lock()
        self._known: tuple[QueueSpec, str] | None = None
        self._siblings: dict[str, SQSQueue] = {}
        mover = Mover(self)
        self.move, self.look, self.stop, self.take_out = mover.move, mover.look, mover.stop, mover.take_out

    @property
    def traits(self) -> port.QueueTraits:
        """Return what this queue promises. The queue's attributes are read once."""
        return port.QueueTraits(
            fifo=self._fifo,
            durable=True,
            exclusive=self._fifo,
            peeks_clean=False,
            tells_stale_acks=False,
            atomic_reject=False,
            keeps_release_error=False,
            counts_expired=False,
            auto_deletes=False,
            max_message_bytes=self.spec.max_message_bytes,
            visibility=self.spec.visibility,
            max_receives=None if self.spec.dead_letter is None else self.spec.max_receives,
            defers_by="retry" if self._fifo else "copy",
        )

    @property
    def spec(self) -> QueueSpec:
        """Return the settings as they were when first read."""
        return self._look()[0]

    @property
    def arn(self) -> str:
        return self._look()[1]

    def _look(self) -> tuple[QueueSpec, str]:
        with self._lock:
            if self._known is None:
                self._known = self._read()
            return self._known

    def overview(self) -> port.QueueOverview:
        """Return settings and contents by one call."""
        attributes = self.attributes("All")
        key, managed = attributes.get("KmsMasterKeyId"), attributes.get("SqsManagedSseEnabled")
        # AWS always returns one of the two; an emulator may return none.
        in_clear = (key is not None or managed is not None) and not key and managed != "true"
        return port.QueueOverview(spec=wire.spec_of(self.name, attributes), stats=_stats(attributes), in_clear=in_clear)

    def _read(self) -> tuple[QueueSpec, str]:
        if not self._calls.has("get_queue_attributes"):
            return wire.assumed(self.name), ""
        try:
            attributes = self.attributes("All")
        except Unavailable as error:
            # A sender needs no right to read attributes.
            if "AccessDenied" not in error.message:
                raise
            return wire.assumed(self.name), ""
        return wire.spec_of(self.name, attributes), attributes.get("QueueArn", "")

    def attributes(self, *names: str) -> Mapping[str, str]:
        """Return some attributes of the queue, as they are now."""
        answer = self._calls.call("get_queue_attributes", self.name, QueueUrl=self.url, AttributeNames=list(names))
        return answer.get("Attributes") or {}

    def sibling(self, name: str) -> SQSQueue:
        """Return the queue of this name in the same account and region."""
        url = f"{self.url.rpartition('/')[0]}/{name}"
        return self._siblings.setdefault(name, SQSQueue(self._calls, url, self.clock))

    def send(self, messages: Sequence[OutgoingMessage]) -> list[port.SendResult]:
        """Store the messages; what is ok is durable. On FIFO a failed one holds back the later ones of its group.

        No call carries two messages of one group, since SQS may accept the second and refuse the first, unless the
        queue was opened with `attempts=1`: then the caller retries and reports what is out of order.
        """
        rules.check_batch(messages)
        if not messages:
            return []
        bodies = rules.check_messages(self.spec, messages)
        keyed = self._fifo and self._attempts > 1
        entries = [
            Entry(
                wire.entry_of(message, body, fifo=self._fifo),
                size=wire.size_of(body, message.attributes),
                key=message.group if keyed else None,
            )
            for message, body in zip(messages, bodies, strict=True)
        ]
        return [wire.sent_result(outcome) for outcome in self._deliver("send_message", entries)]

    def _deliver(
        self, operation: str, entries: Sequence[Entry[dict[str, Any]]]
    ) -> list[Mapping[str, Any] | PostroadError]:
        call = partial(self._calls.batch, operation, self.url)
        return deliver(entries, call, most=MAX_BATCH, most_bytes=wire.MAX_BATCH_BYTES, attempts=self._attempts)

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Lease up to `max_messages`, ten by each call, waiting up to `wait` seconds for the first one."""
        rules.check_receive(max_messages, wait, visibility)
        deliveries: list[Delivery] = []
        while (missing := max_messages - len(deliveries)) > 0:
            asked = min(missing, MAX_BATCH)
            try:
                batch = self._receive(asked, 0 if deliveries else wait, visibility)
            except TransportError:
                if not deliveries:
                    raise
                break
            deliveries.extend(batch)
            if len(batch) < asked:
                break
        return deliveries

    def _receive(self, count: int, wait: float, visibility: float | None) -> list[Delivery]:
        parameters: dict[str, Any] = {
            "QueueUrl": self.url,
            "MaxNumberOfMessages": count,
            "WaitTimeSeconds": ceil(wait),
            "MessageAttributeNames": ["All"],
        }
        if visibility is not None:
            parameters["VisibilityTimeout"] = ceil(visibility)
        if self._calls.tells_system_attributes:
            parameters["MessageSystemAttributeNames"] = ["All"]
            if self._fifo:
                # A repeated attempt gets the answer that was lost; otherwise its groups would stay locked.
                parameters["ReceiveRequestAttemptId"] = uuid.uuid4().hex
        started = time.monotonic()
        answer = self._calls.call("receive_message", self.name, **parameters)
        if not answer.get("Messages") and wait - (time.monotonic() - started) > _EARLY_SECONDS:
            # Not every endpoint waits as long as it is asked to, and polling again at once only costs requests.
            time.sleep(_EARLY_PAUSE_SECONDS * CHANCE.uniform(0.5, 1.5))
        messages = answer.get("Messages") or ()
        if not all(wire.is_intact(raw["Body"], raw.get("MD5OfBody")) for raw in messages):
            # None is handed out, because those behind a damaged one would overtake it. They come back.
            raise OutcomeUnknown(f"SQS ReceiveMessage on {self.name!r}: a body does not have its checksum")
        now = self.clock.now()
        return [wire.delivery_of(raw, now) for raw in messages]

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Remove the messages. A late ack on a standard queue returns ok and may change nothing."""
        return self._settle("delete_message", deliveries)

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        """Keep the leases for `seconds` from now, rounded up, at most twelve hours in all."""
        check(seconds, seconds_between(0, MAX_VISIBILITY), "seconds")
        return self._settle("change_message_visibility", deliveries, VisibilityTimeout=ceil(seconds))

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        """Give the messages back, to be received again after `after` seconds. SQS cannot store the error."""
        check(after, seconds_between(0, MAX_VISIBILITY), "after")
        check(error, rules.Note | None, "error")
        return self._settle("change_message_visibility", deliveries, VisibilityTimeout=ceil(after))

    def _settle(self, operation: str, deliveries: Sequence[Delivery], **parameters: Any) -> list[AckResult]:
        rules.check_deliveries(deliveries)
        entries = [Entry({"ReceiptHandle": each.receipt, **parameters}) for each in deliveries]
        outcomes = self._deliver(operation, entries)
        return [AckResult(False, each) if isinstance(each, PostroadError) else _OK for each in outcomes]

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        """Send the messages to the dead letters with the reason, then delete them: under a new id."""
        check(reason, rules.Note | None, "reason")
        check(error, rules.Note | None, "error")
        if self.spec.dead_letter is None:
            raise NotSupported(
                f"queue {self.name!r} has no dead-letter queue to reject into",
                remedy="Name one with QueueSpec(dead_letter=...), or ack the message.",
            )
        # Renewing the lease first finds a stale receipt before there is a copy, and leaves time for the two steps.
        results = self.extend(deliveries, seconds=_REJECT_LEASE)
        held = [index for index, result in enumerate(results) if result.ok]
        if not held:
            return results
        target = self.sibling(self.spec.dead_letter)
        letters = [self._dead_letter(deliveries[index], reason, error, target) for index in held]
        for index, sent in zip(held, target.send(letters), strict=True):
            results[index] = AckResult(ok=sent.ok, error=sent.error)
        # What could not be sent is not deleted.
        moved = [index for index in held if results[index].ok]
        for index, acked in zip(moved, self.ack([deliveries[index] for index in moved]), strict=True):
            results[index] = acked
        return results

    def _dead_letter(self, delivery: Delivery, reason: str, error: str | None, target: SQSQueue) -> OutgoingMessage:
        marked = mark_dead(
            delivery.attributes,
            source=self.name,
            receives=delivery.receive_count,
            error=error,
            at=self.clock.now(),
            reason=reason,
        )
        fits = wire.size_of(delivery.body, marked) <= target.spec.max_message_bytes
        # The same rejection, repeated after a crash, is recognised by its dedup id.
        dedup_id = f"{delivery.message_id}-{delivery.receive_count}" if self._fifo else None
        attributes = marked if fits else delivery.attributes
        return OutgoingMessage(delivery.body, attributes, group=delivery.group, dedup_id=dedup_id)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[port.PeekedMessage]:
        """Return some messages, by receiving them without hiding them: this counts as a receive."""
        check(limit, whole_number(1, rules.MAX_RECEIVE), "limit")
        if self.spec.dead_letter is not None and not force:
            raise NotSupported(
                f"a look at queue {self.name!r} counts as receiving; repeated looks make its messages dead letters",
                remedy="Look at its dead-letter queue instead, or pass force=True (on the command line --force).",
            )
        seen: dict[str, port.PeekedMessage] = {}
        while len(seen) < limit:
            found = self._receive(MAX_BATCH, 0, 0)
            new = {each.message_id: wire.peeked_of(each) for each in found if each.message_id not in seen}
            if not new:
                break
            seen.update(new)
        ids = list(seen)
        start = ids.index(after) + 1 if after in seen else 0
        return [seen[message_id] for message_id in ids[start : start + limit]]

    def stats(self) -> port.QueueStats:
        """Count what the queue holds, approximately, without ages and expired messages."""
        return _stats(self.attributes(*_COUNTS))

    def whereabouts(self, ids: Collection[str]) -> None:
        """Return None: SQS finds no message by its id."""

    def native(self) -> MoveTasks:
        return MoveTasks(self._calls, self)

    def end(self) -> str | None:
        """Return None: the messages of SQS have no order."""
        return None

    def purge(self) -> int:
        """Remove everything the queue holds, leased messages included; return about how many there were."""
        stats = self.stats()
        self._calls.call("purge_queue", self.name, QueueUrl=self.url)
        return stats.visible + stats.in_flight + stats.delayed


def _stats(attributes: Mapping[str, str]) -> port.QueueStats:
    visible, in_flight, delayed = (int(attributes.get(name, 0)) for name in _COUNTS)
    return port.QueueStats(visible=visible, in_flight=in_flight, delayed=delayed, oldest_age_seconds=None, expired=None)
