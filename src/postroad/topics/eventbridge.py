"""Topics on EventBridge: a topic is an event bus, a subscription a rule whose target is an SQS queue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from postroad.connections import (
    ATTEMPTS,
    THROTTLED,
    Again,
    AwsConnection,
    Entry,
    ask,
    aws_resources as resources,
    aws_rights as rights,
    deliver,
    pages,
    refused,
    translated,
)
from postroad.errors import NotSupported, PostroadError, TopicNotFound, Unavailable
from postroad.queues import EVENT_SOURCE, OutgoingMessage, Queue, SendResult, SQSQueues, wrap_detail
from postroad.topics import port
from postroad.topics.port import Filter, Subscription, TopicTraits

# A body becomes text in JSON, where a quotation mark takes two bytes: half of the entry's mebibyte always fits.
MAX_EVENTBRIDGE_BYTES = 520_000
MAX_BATCH = 10
MAX_BATCH_BYTES = 1_048_576
_RULE_PREFIX = "postroad-"
_TARGET = "queue"
_FAULTS_OF_EVENTBRIDGE = frozenset({"InternalException", "InternalFailure", "InternalError", "ServiceUnavailable"})


class EventBridgeTopics:
    """The event buses of one AWS account and region.

    Args:
        connection: The connection to AWS.
        queues: The queues that can subscribe.
        attempts: How often an entry is tried that fails through no fault of its own; 1 for a bus, which retries itself.
    """

    def __init__(self, connection: AwsConnection, queues: SQSQueues, *, attempts: int = ATTEMPTS) -> None:
        self._connection = connection
        self._queues = queues
        self._attempts = attempts

    def topic(self, name: str, *, fifo: bool = False) -> EventBridgeTopic:
        """Return the event bus of this ARN, or of this name, which is created when first used. No call is made here."""
        if fifo:
            raise NotSupported("fifo: EventBridge keeps no order", field="fifo", remedy="Use a topic on SNS.")
        arn = name if port.is_arn(name) else None
        if arn is None:
            port.check_topic_name(name, fifo=False)
        name = name.rpartition("/")[2]
        return EventBridgeTopic(self._connection, self._queues, name, arn=arn, attempts=self._attempts)

    def topics(self) -> list[str]:
        found = pages("EventBridge buses", self._connection.events.list_event_buses)
        return sorted(bus["Name"] for page in found for bus in page["EventBuses"])


class EventBridgeTopic:
    """One event bus. `source` and `detail` write the entries; `unwrap` must be able to read what `detail` returns."""

    # A changed rule takes a moment to hold everywhere.
    traits = TopicTraits(
        fifo=False, durable=True, atomic_batch=False, filters_at_once=False, max_message_bytes=MAX_EVENTBRIDGE_BYTES
    )

    def __init__(
        self,
        connection: AwsConnection,
        queues: SQSQueues,
        name: str,
        *,
        arn: str | None = None,
        source: str = EVENT_SOURCE,
        detail: Callable[[bytes, Mapping[str, str]], str] = wrap_detail,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.name = name
        self._source = source
        self._detail = detail
        self._attempts = attempts
        self._connection = connection
        self._queues = queues
        self._given_arn = arn

    @cached_property
    def bus(self) -> str:
        """Return the ARN or name for calls; create the bus of a name if it does not exist."""
        if self._given_arn is not None:
            return self._given_arn
        if self.name != "default":
            with self._translated("creating"):
                resources.make_event_bus(self._connection.events, self.name)
        return self.name

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        bodies = port.check_published(messages, fifo=False, limit=MAX_EVENTBRIDGE_BYTES)
        entries = [self._entry(message, body) for message, body in zip(messages, bodies, strict=True)]
        outcomes = deliver(entries, self._publish, most=MAX_BATCH, most_bytes=MAX_BATCH_BYTES, attempts=self._attempts)
        return [
            SendResult(ok=False, error=outcome)
            if isinstance(outcome, PostroadError)
            else SendResult(ok=True, message_id=outcome)
            for outcome in outcomes
        ]

    def subscribe(self, queue: Queue, *, filter: Filter | None = None, keep_filter: bool = False) -> None:
        """Subscribe the queue by a rule of its own."""
        values = port.check_filter(filter) or None
        port.check_subscriber(self.name, fifo=False, queue=queue)
        subscriber = self._queues.queue(queue.name)
        target_arn, bus, name = subscriber.arn, self.bus, _rule_name(queue.name)
        what, rule = f"subscribing to EventBridge bus {self.name!r}", {"Name": name, "EventBusName": bus}
        if keep_filter and ask(what, self._connection.events.describe_rule, "ResourceNotFoundException", **rule):
            return
        pattern: dict[str, Any] = {"source": [self._source]}
        if values is not None:
            pattern["detail"] = {"attributes": {name: list(allowed) for name, allowed in values.items()}}
        with self._translated("subscribing to"):
            rule_arn = resources.put_rule(self._connection.events, name, bus, pattern=pattern)
        source = {"service": "events.amazonaws.com", "source_arn": rule_arn, "queue_arn": target_arn}
        self._queues.change_policy(subscriber, lambda policy: rights.allow_source(policy, **source))
        with self._translated("subscribing to"):
            refusal = resources.put_target(self._connection.events, name, bus, {"Id": _TARGET, "Arn": target_arn})
        if refusal is not None:
            raise Unavailable(f"subscribing to {self.name!r}: {refusal}")

    def unsubscribe(self, queue: Queue) -> bool:
        """Unsubscribe the queue, and take back the right to send to it."""
        subscriber = self._queues.queue(port.check_queue(queue))
        name, bus = _rule_name(queue.name), self.bus
        with self._translated("unsubscribing from"):
            try:
                rule = self._connection.events.describe_rule(Name=name, EventBusName=bus)
                self._connection.events.remove_targets(Rule=name, EventBusName=bus, Ids=[_TARGET])
            except self._connection.events.exceptions.ResourceNotFoundException:
                return False
            self._connection.events.delete_rule(Name=name, EventBusName=bus)
        self._queues.change_policy(subscriber, lambda policy: rights.disallow_source(policy, source_arn=rule["Arn"]))
        return True

    def subscriptions(self) -> list[Subscription]:
        bus = self.bus
        found: list[Subscription] = []
        with self._translated("subscriptions of"):
            pages: Any = self._connection.events.get_paginator("list_rules").paginate(
                EventBusName=bus, NamePrefix=_RULE_PREFIX
            )
            for rule in (rule for page in pages for rule in page["Rules"]):
                targets = self._connection.events.list_targets_by_rule(Rule=rule["Name"], EventBusName=bus)["Targets"]
                if all(target["Id"] != _TARGET for target in targets):
                    # The rule of somebody else may have another pattern, or none.
                    continue
                wanted = json.loads(rule["EventPattern"]).get("detail", {}).get("attributes", {})
                values = {name: tuple(values) for name, values in wanted.items()} or None
                found += [
                    Subscription(queue=target["Arn"].rpartition(":")[2], filter=values)
                    for target in targets
                    if target["Id"] == _TARGET
                ]
        return sorted(found, key=lambda subscription: subscription.queue)

    def _translated(self, doing: str) -> Any:
        missing = TopicNotFound(f"there is no EventBridge bus {self.name!r}")
        return translated(f"{doing} EventBridge bus {self.name!r}", {"ResourceNotFoundException": lambda _: missing})

    def _entry(self, message: OutgoingMessage, body: bytes) -> Entry[dict[str, Any]]:
        detail = self._detail(body, message.attributes)
        kind = message.attributes.get("EventType", "message")[:128]
        content = {"Source": self._source, "DetailType": kind, "Detail": detail}
        return Entry(content, size=len(detail.encode()) + len(kind.encode()) + len(self._source))

    def _publish(self, contents: list[dict[str, Any]]) -> list[str | Again | PostroadError]:
        entries: list[Any] = [{"EventBusName": self.bus, **content} for content in contents]
        with self._translated("publishing to"):
            answer = self._connection.events.put_events(Entries=entries)
        return [self._outcome(entry) for entry in answer["Entries"]]

    def _outcome(self, entry: Mapping[str, Any]) -> str | Again | PostroadError:
        code = entry.get("ErrorCode")
        if not code:
            return str(entry["EventId"])
        text = f"publishing to EventBridge bus {self.name!r}: {code}: {entry.get('ErrorMessage', '')}"
        if code in THROTTLED or code in _FAULTS_OF_EVENTBRIDGE:
            return Again(Unavailable(text))
        return refused("InvalidArgument" if code == "MalformedDetail" else code, text)


def _rule_name(queue: str) -> str:
    """Return the name of the queue's rule; rule names have at most 64 characters, queue names 80."""
    return f"{_RULE_PREFIX}{queue[:40].replace('.', '-')}-{hashlib.sha256(queue.encode()).hexdigest()[:12]}"
