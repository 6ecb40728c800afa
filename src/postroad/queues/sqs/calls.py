"""The calls to SQS: one entry or a batch, with the driver's errors translated."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, cast

from postroad import connections, errors
from postroad.connections import Again, AwsConnection, api_name, translated
from postroad.errors import InvalidMessage, PostroadError, Unavailable
from postroad.queues.rules import queue_missing
from postroad.queues.sqs.wire import Outcome, is_intact, outcomes_of


class SQSCalls:
    """Calls on a connection's client, which is created when first used, or on a client that was given."""

    def __init__(self, source: Any) -> None:
        self._source = source
        if not isinstance(source, AwsConnection) and hasattr(source, "meta"):
            connections.watch(source)

    @property
    def client(self) -> Any:
        return self._source.sqs if isinstance(self._source, AwsConnection) else self._source

    def has(self, operation: str) -> bool:
        return hasattr(self.client, operation)

    def call(self, operation: str, queue: str, **parameters: Any) -> dict[str, Any]:
        """Make one call about `queue`, and raise Postroad's errors."""
        client = self._having(operation)
        with translated(f"SQS {api_name(operation)} on {queue!r}", _known(queue)):
            return cast("dict[str, Any]", getattr(client, operation)(**parameters))

    def pages(self, operation: str, queue: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Repeat a call that lists something until its last page, and yield the answers."""
        while True:
            answer = self.call(operation, queue, MaxResults=1_000, **parameters)
            yield answer
            if not answer.get("NextToken"):
                return
            parameters["NextToken"] = answer["NextToken"]

    def make(self, queue: str, attributes: Mapping[str, str], *, fifo: bool) -> None:
        client = self._having("create_queue")
        with translated(f"SQS CreateQueue on {queue!r}", _known(queue)):
            connections.make_queue(client, queue, attributes, fifo=fifo)

    def batch(self, operation: str, url: str, entries: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Return the outcome of each entry, by one batch call if the client has it."""
        if not self.has(f"{operation}_batch"):
            return [self._single(operation, url, entry) for entry in entries]
        numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
        answer = self.call(f"{operation}_batch", name_in(url), QueueUrl=url, Entries=numbered)
        outcomes = outcomes_of(answer, len(entries), partial(_failed, operation), call=f"SQS {api_name(operation)}")
        return [*map(_checked, entries, outcomes)] if operation == "send_message" else outcomes

    def _having(self, operation: str) -> Any:
        client = self.client
        if not hasattr(client, operation):
            raise errors.NotSupported(
                f"the SQS client has no {operation}", remedy="Give a boto3 client, or one that has this method too."
            )
        return client

    def _single(self, operation: str, url: str, entry: Mapping[str, Any]) -> Outcome:
        try:
            return _checked(entry, self.call(operation, name_in(url), QueueUrl=url, **entry))
        except Unavailable as error:
            return Again(error)
        except PostroadError as error:
            return error

    @cached_property
    def tells_system_attributes(self) -> bool:
        """Return whether the client can be asked for receive counts, groups and times."""
        parameters = inspect.signature(self.client.receive_message).parameters
        return "MessageSystemAttributeNames" in parameters or any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
        )


def name_in(url: str) -> str:
    """Return the queue's name, which ends its URL."""
    return url.rpartition("/")[2]


def _known(queue: str) -> dict[str, Any]:
    def stale(words: str) -> PostroadError:
        return errors.StaleReceipt(f"queue {queue!r}: {words}")

    return {
        "NonExistentQueue": lambda _: queue_missing(queue),
        "QueueDoesNotExist": lambda _: queue_missing(queue),
        "QueueDeletedRecently": lambda _: Unavailable(
            f"queue {queue!r} was deleted less than 60 seconds ago", remedy="Wait a minute and create it again."
        ),
        "PurgeQueueInProgress": lambda _: errors.PurgeRunning(f"queue {queue!r} was purged less than 60 seconds ago"),
        "MessageNotInflight": stale,
        "ReceiptHandleIsInvalid": stale,
    }


def _checked(entry: Mapping[str, Any], outcome: Outcome) -> Outcome:
    """Return the outcome of an entry, or an error if SQS has another body than was sent."""
    if isinstance(outcome, Mapping) and not is_intact(entry.get("MessageBody", ""), outcome.get("MD5OfMessageBody")):
        return errors.OutcomeUnknown("SQS SendMessage: the answer has the checksum of another body")
    return outcome


def _failed(operation: str, entry: Mapping[str, Any]) -> Again | PostroadError:
    code, words = connections.short_code(str(entry.get("Code", ""))), str(entry.get("Message", ""))
    text = f"SQS {api_name(operation)}: {entry.get('Code')}: {words}"
    if not entry.get("SenderFault") or code in connections.THROTTLED:
        return Again(Unavailable(text))
    # SQS reports an expired lease as an invalid parameter, and only the message says so.
    is_over = "expired" in words or "does not exist or is not available" in words
    if is_over or code in ("ReceiptHandleIsInvalid", "MessageNotInflight"):
        return errors.StaleReceipt(text)
    error = connections.refused(code, text)
    return InvalidMessage(text) if operation == "send_message" and not isinstance(error, Unavailable) else error
