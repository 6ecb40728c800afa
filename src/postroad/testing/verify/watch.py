"""What a bus or a consumer does with its queue, written down at the queue itself: receives, acks, releases."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from postroad.errors import StaleReceipt
from postroad.queues import AckResult, Delivery
from postroad.testing.verify.history import Outcome
from postroad.testing.verify.scenario import Client
from postroad.testing.verify.workload import Body, received, sha

_SETTLING = {"ack": "ack", "extend": "extend", "release": "release", "undo": "release"}


class _Event(msgspec.Struct):
    """The part of an event, in either of its JSON forms, that holds the message."""

    payload: Body


def read_event(raw: bytes) -> Body:
    """Return the message in the body of an event; what nobody published has an id that nobody knows."""
    try:
        return msgspec.json.decode(raw, type=_Event).payload
    except msgspec.DecodeError:
        return Body(f"unreadable {sha(raw)}", "", -1)


class QueueWatch:
    """Writes down what this process does with some of its queues, while others of the process go unseen.

    Args:
        client: This process.
        subs: The subscription of each queue that is watched, by the queue's name.
    """

    def __init__(self, client: Client, subs: Mapping[str, str]) -> None:
        self._client, self._subs = client, subs
        self._held: set[str] = set()

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
            if deliveries and (sub := self._subs.get(queue.name)) is not None:
                self._hold([each.receipt for each in deliveries])
                for delivery in deliveries:
                    self._client.record("receive", sub=sub, t0=began, **received(delivery, read_event))
            return deliveries

        return call

    def _settling(self, op: str, settle: Callable[..., list[AckResult]], *, undone: bool) -> Callable[..., Any]:
        @functools.wraps(settle)
        def call(queue: Any, deliveries: Sequence[Delivery], **given: Any) -> list[AckResult]:
            sub = self._subs.get(queue.name)
            known = [each for each in deliveries if each.receipt in self._held] if sub is not None else []
            fields = {each.receipt: self._fields(sub, each, undone=undone) for each in known}
            began = time.monotonic()
            for each in fields.values():
                self._client.record(op, "unknown", **each)
            results = settle(queue, deliveries, **given)
            for delivery, result in zip(deliveries, results, strict=True):
                if delivery.receipt in fields:
                    self._client.record(op, _outcome(result), t0=began, **fields[delivery.receipt])
            if op != "extend":
                self._let_go(fields)
            return results

        return call

    @staticmethod
    def _fields(sub: str | None, delivery: Delivery, *, undone: bool) -> dict[str, Any]:
        fields = {"sub": sub, "id": read_event(delivery.body).id, "receipt": delivery.receipt}
        return fields | {"undone": True} if undone else fields

    def _hold(self, receipts: Sequence[str]) -> None:
        self._held.update(receipts)
        self._client.announce(holding=True)

    def _let_go(self, receipts: Mapping[str, Any]) -> None:
        self._held.difference_update(receipts)
        self._client.announce(holding=bool(self._held))


def _outcome(result: AckResult) -> Outcome:
    return "ok" if result.ok else "fail" if isinstance(result.error, StaleReceipt) else "unknown"
