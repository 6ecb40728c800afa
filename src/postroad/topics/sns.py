"""Topics on SNS, standard and FIFO, delivered raw into SQS queues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from postroad.connections import (
    ATTEMPTS,
    THROTTLED,
    Again,
    AwsConnection,
    Entry,
    Make,
    aws_resources as resources,
    aws_rights as rights,
    deliver,
    refused,
    short_code,
    translated,
)
from postroad.errors import InvalidInput, NotPermitted, PostroadError, Throttled, TopicNotFound, Unavailable
from postroad.queues import (
    OutgoingMessage,
    Queue,
    SendResult,
    SQSQueue,
    SQSQueues,
    kept_verbatim,
    message_attributes,
    outcomes_of,
    sent_result,
    size_of,
)
from postroad.topics import port
from postroad.topics.port import Filter, Subscription, TopicTraits, Values

MAX_SNS_BYTES = 262_144
MAX_BATCH = 10
_NO_FILTER = "{}"


class SNSTopics:
    """The topics of one AWS account and region.

    Args:
        connection: The connection to AWS.
        queues: The queues that can subscribe.
        attempts: How often an entry is tried that fails through no fault of its own. With 1, each call is made once
            and may carry several messages of a FIFO group: for a bus, which retries and reports what is out of order.
    """

    def __init__(self, connection: AwsConnection, queues: SQSQueues, *, attempts: int = ATTEMPTS) -> None:
        self._connection = connection
        self._queues = queues
        self._attempts = attempts

    def topic(self, name: str, *, fifo: bool = False) -> SNSTopic:
        """Return the topic of this ARN, or of this name, which is created when first used. No call is made here."""
        arn = name if port.is_arn(name) else None
        if arn is None:
            port.check_topic_name(name, fifo=fifo)
        return SNSTopic(self._connection, self._queues, name.rpartition(":")[2], arn=arn, attempts=self._attempts)

    def existing(self, name: str, *, fifo: bool = False) -> SNSTopic:
        """Return the topic of this name, which is never created; raise `TopicNotFound` if it does not exist.

        Without the right to list topics, return the topic at the ARN of the name; publishing fails if it is not there.
        """
        if port.is_arn(name):
            return self.topic(name)
        port.check_topic_name(name, fifo=fifo)
        try:
            arns = {arn.rpartition(":")[2]: arn for arn in self._arns()}
        except NotPermitted:
            with translated("the account"):
                _, partition, _, _, account, _ = self._connection.sts.get_caller_identity()["Arn"].split(":", 5)
            return self.topic(f"arn:{partition}:sns:{self._connection.region}:{account}:{name}")
        if name not in arns:
            raise port.no_topic(name, arns)
        return self.topic(arns[name])

    def topics(self) -> list[str]:
        return sorted(arn.rpartition(":")[2] for arn in self._arns())

    def topics_without_subscriptions(self) -> list[str]:
        """Return the names of the topics that nothing is subscribed to, neither a queue nor anything else, sorted."""
        with translated("SNS subscriptions"):
            pages: Any = self._connection.sns.get_paginator("list_subscriptions").paginate()
            subscribed = {found["TopicArn"] for page in pages for found in page["Subscriptions"]}
        return sorted(arn.rpartition(":")[2] for arn in self._arns() if arn not in subscribed)

    def _arns(self) -> list[str]:
        with translated("SNS topics"):
            pages: Any = self._connection.sns.get_paginator("list_topics").paginate()
            return [topic["TopicArn"] for page in pages for topic in page["Topics"]]


class SNSTopic:
    """One topic on SNS."""

    def __init__(
        self,
        connection: AwsConnection,
        queues: SQSQueues,
        name: str,
        *,
        arn: str | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.name = name
        self._attempts = attempts
        self._connection = connection
        self._queues = queues
        self._given_arn = arn
        self._fifo = fifo = name.endswith(".fifo")
        # SNS may take 15 minutes until a changed filter holds everywhere.
        self.traits = TopicTraits(
            fifo=fifo, durable=True, atomic_batch=False, filters_at_once=False, max_message_bytes=MAX_SNS_BYTES
        )

    @cached_property
    def arn(self) -> str:
        """Return the topic's ARN; create the topic of a name if it does not exist."""
        if self._given_arn is not None:
            return self._given_arn
        with self._translated("creating"):
            return resources.make_topic(self._connection.sns, self.name, fifo=self._fifo)

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        """Copy each message to every queue whose filter matches; on FIFO a failed one holds back its group."""
        bodies = port.check_published(messages, fifo=self._fifo, limit=MAX_SNS_BYTES)
        entries = [self._entry(message, body) for message, body in zip(messages, bodies, strict=True)]
        outcomes = deliver(entries, self._publish, most=MAX_BATCH, most_bytes=MAX_SNS_BYTES, attempts=self._attempts)
        return [sent_result(outcome) for outcome in outcomes]

    def subscribe(self, queue: Queue, *, filter: Filter | None = None, keep_filter: bool = False) -> None:
        """Subscribe the queue, and give SNS the right to send to it."""
        values = port.check_filter(filter)
        port.check_subscriber(self.name, fifo=self._fifo, queue=queue)
        subscriber = self._queues.queue(queue.name)
        source = {"service": "sns.amazonaws.com", "source_arn": self.arn, "queue_arn": subscriber.arn}
        self._queues.change_policy(subscriber, lambda policy: rights.allow_source(policy, **source))
        known = self._find(subscriber)
        if known is None:
            arn, endpoint = self.arn, subscriber.arn
            with self._translated("subscribing to"):
                resources.make_subscription(self._connection.sns, arn, endpoint, filter=values or None)
        elif not keep_filter and self._filter(known) != (values or None):
            policy = json.dumps(values) if values else _NO_FILTER
            with self._translated("subscribing to"):
                self._connection.sns.set_subscription_attributes(
                    SubscriptionArn=known, AttributeName="FilterPolicy", AttributeValue=policy
                )

    def unsubscribe(self, queue: Queue) -> bool:
        """Unsubscribe the queue, and take back the right to send to it."""
        subscriber = self._queues.queue(port.check_queue(queue))
        known = self._find(subscriber)
        if known is None:
            return False
        with self._translated("unsubscribing from"):
            self._connection.sns.unsubscribe(SubscriptionArn=known)
        self._queues.change_policy(subscriber, lambda policy: rights.disallow_source(policy, source_arn=self.arn))
        return True

    def subscriptions(self) -> list[Subscription]:
        found = ((endpoint.rpartition(":")[2], arn) for endpoint, arn in self._subscribed())
        return [Subscription(queue=queue, filter=self._filter(arn)) for queue, arn in sorted(found)]

    def _translated(self, doing: str) -> Any:
        return translated(f"{doing} SNS topic {self.name!r}", _known(self.name))

    def _entry(self, message: OutgoingMessage, body: bytes) -> Entry[dict[str, Any]]:
        content: dict[str, Any] = {"Message": body.decode()}
        if attributes := kept_verbatim(content["Message"], message.attributes):
            content["MessageAttributes"] = message_attributes(attributes)
        if message.group is not None:
            content["MessageGroupId"] = message.group
        if self._fifo:
            content["MessageDeduplicationId"] = message.dedup_id
        key = message.group if self._fifo and self._attempts > 1 else None
        return Entry(content, size=size_of(body, message.attributes), key=key)

    def _publish(self, contents: list[dict[str, Any]]) -> list[Mapping[str, Any] | Again | PostroadError]:
        entries: list[Any] = [{"Id": str(number), **content} for number, content in enumerate(contents)]
        arn = self.arn
        client = self._connection.once("sns") if self._attempts == 1 else self._connection.sns
        with self._translated("publishing to"):
            answer: Any = client.publish_batch(TopicArn=arn, PublishBatchRequestEntries=entries)
        return outcomes_of(answer, len(contents), self._failed, call=f"publishing to SNS topic {self.name!r}")

    def _failed(self, entry: Mapping[str, Any]) -> Again | PostroadError:
        code = short_code(str(entry.get("Code", "")))
        text = f"publishing to SNS topic {self.name!r}: {code}: {entry.get('Message', '')}"
        if code in THROTTLED:
            return Again(Throttled(text))
        return refused(code, text) if entry.get("SenderFault") else Again(Unavailable(text))

    def _filter(self, subscription: str) -> Values | None:
        with self._translated("subscriptions of"):
            answer = self._connection.sns.get_subscription_attributes(SubscriptionArn=subscription)
        policy = json.loads(answer["Attributes"].get("FilterPolicy") or _NO_FILTER)
        return {name: tuple(values) for name, values in policy.items()} or None

    def _find(self, queue: SQSQueue) -> str | None:
        return next((arn for endpoint, arn in self._subscribed() if endpoint == queue.arn), None)

    def _subscribed(self) -> Iterator[tuple[str, str]]:
        """Yield the ARNs of the subscribed queues and of their subscriptions."""
        arn = self.arn
        with self._translated("subscriptions of"):
            pages: Any = self._connection.sns.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=arn)
            for page in pages:
                for found in page["Subscriptions"]:
                    if found["Protocol"] == "sqs":
                        yield found["Endpoint"], found["SubscriptionArn"]


def _known(name: str) -> dict[str, Make]:
    missing = TopicNotFound(f"there is no SNS topic {name!r}")

    def invalid(words: str) -> PostroadError:
        # The ARN is at fault, not the message: nothing could be published here.
        return missing if "TopicArn" in words else InvalidInput(f"SNS topic {name!r}: {words}")

    known: dict[str, Make] = dict.fromkeys(("NotFound", "NotFoundException"), lambda _: missing)
    return known | dict.fromkeys(("InvalidParameter", "InvalidParameterException"), invalid)
