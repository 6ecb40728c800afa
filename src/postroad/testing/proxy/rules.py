"""AWS's own rules before an emulator that lacks them: deduplication, sequence numbers, leases and refusals."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from postroad.testing.proxy import limits
from postroad.testing.proxy.fifo import Bounded, Fifo, dedup_key
from postroad.testing.proxy.limits import Problem
from postroad.testing.proxy.wire import Answer, Batch, Forward, Request, batch_of, published_entries, refusal

_PURGE_SECONDS: Final = 60.0
_EXPIRED: Final = "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
_PAIR: Final = re.compile(r"<key>(\w+)</key>\s*<value>([^<]*)</value>")
_ATTRIBUTE: Final = re.compile(r"MessageAttributes\.entry\.(\d+)\.(?:Value\.)?(\w+)")


class AwsRules:
    """The rules of AWS, and what they remember of queues and topics."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._fifo = Fifo(monotonic)
        self._settings: dict[str, Mapping[str, str]] = {}
        self._leases: dict[str, float] = Bounded()
        self._purged: dict[str, float] = {}
        self._by_action: dict[str, Callable[[Request, Forward], Answer]] = {
            "SendMessage": self._send,
            "SendMessageBatch": self._send_batch,
            "ReceiveMessage": self._receive,
            "ChangeMessageVisibility": self._settle,
            "DeleteMessage": self._settle,
            "ChangeMessageVisibilityBatch": self._settle_batch,
            "DeleteMessageBatch": self._settle_batch,
            "CreateQueue": self._define,
            "SetQueueAttributes": self._define,
            "DeleteQueue": self._delete_queue,
            "PurgeQueue": self._purge,
            "PutEvents": self._put_events,
            "PutItem": self._write,
            "BatchWriteItem": self._write,
        }

    def answer(self, request: Request, forward: Forward) -> Answer:
        """Answer a request as AWS would, with the emulator's help."""
        if request.is_json:
            rule = self._by_action.get(request.action)
            return forward(request) if rule is None else rule(request, forward)
        if request.action == "Publish" and "TopicArn" in request.form:
            return self._publish(request, forward)
        return self._publish_batch(request, forward) if request.action == "PublishBatch" else forward(request)

    def _send(self, request: Request, forward: Forward) -> Answer:
        queue, entry = _queue(request), request.document
        settings = self._queue_settings(request, forward)
        if problem := limits.of_message(entry, fifo=_is_fifo(queue), most=_most(settings)):
            return refusal(request, 400, *problem)
        if not _is_fifo(queue):
            return forward(request)
        return self._fifo.send(queue, dedup_key(entry, entry["MessageBody"], settings), entry, request, forward)

    def _send_batch(self, request: Request, forward: Forward) -> Answer:
        queue, entries, batch = _queue(request), request.document.get("Entries", []), _batch(request)
        size = sum(map(limits.message_size, entries))
        if problem := limits.of_batch(batch.ids, size, limits.MESSAGE_BYTES):
            return refusal(request, 400, *problem)
        settings = self._queue_settings(request, forward)

        def send(good: Request) -> Answer:
            kept = good.document["Entries"]
            keys = [dedup_key(entry, entry["MessageBody"], settings) for entry in kept]
            return self._fifo.send_batch(queue, keys, kept, _batch(good), forward)

        fifo, most = _is_fifo(queue), _most(settings)
        return batch.split(
            _failed(entries, lambda entry: limits.of_message(entry, fifo=fifo, most=most)), send if fifo else forward
        )

    def _receive(self, request: Request, forward: Forward) -> Answer:
        if problem := limits.of_numbers(request.document):
            return refusal(request, 400, *problem)
        queue, settings = _queue(request), self._queue_settings(request, forward)
        answer = forward(request)
        messages = answer.document.get("Messages") or ()
        seconds = request.document.get("VisibilityTimeout", settings.get("VisibilityTimeout", 30))
        asked = {*request.document.get("MessageSystemAttributeNames", ()), *request.document.get("AttributeNames", ())}
        for message in messages:
            self._leases[message["ReceiptHandle"]] = self._monotonic() + float(seconds)
            if _is_fifo(queue) and asked & {"All", "SequenceNumber"}:
                sequence = self._fifo.sequence(queue, message["MessageId"])
                message.setdefault("Attributes", {})["SequenceNumber"] = sequence
        return answer.with_document(answer.document) if messages else answer

    def _settle(self, request: Request, forward: Forward) -> Answer:
        if problem := limits.of_numbers(request.document) or self._of_lease(request, request.document):
            return refusal(request, 400, *problem)
        answer = forward(request)
        if answer.status == 200:
            self._extend(request.document)
        return answer

    def _settle_batch(self, request: Request, forward: Forward) -> Answer:
        entries, batch = request.document.get("Entries", []), _batch(request)
        if problem := limits.of_batch(batch.ids, 0, limits.MESSAGE_BYTES):
            return refusal(request, 400, *problem)
        failed = _failed(entries, lambda entry: limits.of_numbers(entry) or self._of_lease(request, entry))
        answer = batch.split(failed, forward)
        done = {each["Id"] for each in answer.document.get("Successful") or ()}
        for entry in entries:
            if entry["Id"] in done:
                self._extend(entry)
        return answer

    def _of_lease(self, request: Request, entry: Mapping[str, Any]) -> Problem | None:
        """Return what is wrong with the receipt of a message whose lease has ended."""
        until = self._leases.get(entry.get("ReceiptHandle", ""))
        deletes = request.action.startswith("Delete")
        if until is None or self._monotonic() < until or (deletes and not _is_fifo(_queue(request))):
            return None
        if deletes:
            return "InvalidParameterValue", _EXPIRED
        return "MessageNotInflight", "The message is not in flight."

    def _extend(self, entry: Mapping[str, Any]) -> None:
        if "VisibilityTimeout" in entry:
            self._leases[entry["ReceiptHandle"]] = self._monotonic() + float(entry["VisibilityTimeout"])

    def _define(self, request: Request, forward: Forward) -> Answer:
        document = request.document
        name = document.get("QueueName") or _queue(request)
        problem = limits.of_queue(name, document.get("Attributes") or {})
        answer = forward(request) if problem is None else refusal(request, 400, *problem)
        self._settings.pop(name, None)
        return answer

    def _delete_queue(self, request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        self._settings.pop(_queue(request), None)
        self._purged.pop(_queue(request), None)
        self._fifo.forget(_queue(request))
        return answer

    def _purge(self, request: Request, forward: Forward) -> Answer:
        queue, now = _queue(request), self._monotonic()
        if now - self._purged.get(queue, now - _PURGE_SECONDS) < _PURGE_SECONDS:
            return refusal(request, 403, "PurgeQueueInProgress", "Only one PurgeQueue operation every 60 seconds.")
        self._purged[queue] = now
        return forward(request)

    def _put_events(self, request: Request, forward: Forward) -> Answer:
        entries = request.document.get("Entries", [])
        if problem := limits.of_events(entries):
            return refusal(request, 400, *problem)
        return _batch(request).split(_failed(entries, limits.of_event), forward)

    def _write(self, request: Request, forward: Forward) -> Answer:
        if problem := limits.of_writes(request.document):
            return refusal(request, 400, *problem)
        document = json.loads(request.body)
        limits.normalise(document)
        return forward(request if document == request.document else request.with_document(document))

    def _publish(self, request: Request, forward: Forward) -> Answer:
        topic, entry = request.form["TopicArn"], _notification(request.form)
        if problem := limits.of_notification(entry):
            return refusal(request, 400, *problem)
        if not _is_fifo(topic):
            return forward(request)
        key = dedup_key(entry, entry["Message"], self._topic_settings(topic, request, forward))
        return self._fifo.send(topic, key, entry, request, forward)

    def _publish_batch(self, request: Request, forward: Forward) -> Answer:
        topic, batch = request.form.get("TopicArn", ""), _batch(request)
        entries = list(map(_notification, published_entries(request)))
        size = sum(limits.message_size(entry, "Message") for entry in entries)
        if problem := limits.of_batch(batch.ids, size, limits.NOTIFICATION_BYTES):
            return refusal(request, 400, *problem)

        def publish(good: Request) -> Answer:
            kept = list(map(_notification, published_entries(good)))
            settings = self._topic_settings(topic, request, forward)
            keys = [dedup_key(entry, entry["Message"], settings) for entry in kept]
            return self._fifo.send_batch(topic, keys, kept, _batch(good), forward)

        return batch.split(_failed(entries, limits.of_notification), publish if _is_fifo(topic) else forward)

    def _queue_settings(self, request: Request, forward: Forward) -> Mapping[str, str]:
        """Return the attributes of a queue; empty if it does not exist."""
        queue = _queue(request)
        if queue not in self._settings:
            headers = {**request.headers, "X-Amz-Target": "AmazonSQS.GetQueueAttributes"}
            asked = {"QueueUrl": request.document.get("QueueUrl"), "AttributeNames": ["All"]}
            answer = forward(Request("POST", request.path, headers, b"").with_document(asked))
            if answer.status != 200:
                return {}
            self._settings[queue] = answer.document.get("Attributes") or {}
        return self._settings[queue]

    def _topic_settings(self, topic: str, request: Request, forward: Forward) -> Mapping[str, str]:
        if topic not in self._settings:
            asked = {"Action": "GetTopicAttributes", "Version": "2010-03-31", "TopicArn": topic}
            answer = forward(request.with_form(asked))
            if answer.status != 200:
                return {}
            self._settings[topic] = dict(_PAIR.findall(answer.body.decode()))
        return self._settings[topic]


def _batch(request: Request) -> Batch:
    batch = batch_of(request)
    assert batch is not None, f"{request.action} is no batch"
    return batch


def _failed(entries: list[Any], problem: Callable[[Any], Problem | None]) -> dict[int, Problem]:
    return {number: found for number, entry in enumerate(entries) if (found := problem(entry)) is not None}


def _queue(request: Request) -> str:
    return str(request.document.get("QueueUrl", "")).rpartition("/")[2]


def _is_fifo(name: str) -> bool:
    return name.endswith(".fifo")


def _most(settings: Mapping[str, str]) -> int:
    return int(settings.get("MaximumMessageSize", limits.MESSAGE_BYTES))


def _notification(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return what is published, with its attributes as SQS has them."""
    attributes: dict[str, dict[str, str]] = defaultdict(dict)
    for name, value in fields.items():
        if found := _ATTRIBUTE.fullmatch(name):
            attributes[found[1]][found[2]] = value
    named = {each.get("Name", ""): each for each in attributes.values()}
    return {**fields, "MessageAttributes": named, "Message": fields.get("Message", "")}
