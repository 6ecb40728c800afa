"""The publisher, whatever it is: its calls answer with one verdict for each message, and never raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from postroad import failpoints
from postroad.errors import ConfigurationError
from postroad.outbox.dispatching.verdicts import SENT, UNTRIED, Rejected, Sent, Tried, Verdict, judge
from postroad.queues import OutgoingMessage


@runtime_checkable
class Publisher(Protocol):
    """A topic, or anything else that takes messages and answers for each with `ok` and `error`."""

    def publish(self, messages: Sequence[OutgoingMessage]) -> Sequence[Any]:
        """Publish the messages; one result for each."""
        ...


@runtime_checkable
class Sender(Protocol):
    """A queue."""

    def send(self, messages: Sequence[OutgoingMessage]) -> Sequence[Any]:
        """Send the messages; one result for each."""
        ...


class Outlet:
    """Where messages go. `atomic` says that a call publishes all of its messages or none."""

    def __init__(self, publisher: object) -> None:
        if isinstance(publisher, Publisher):
            self._publish = publisher.publish
        elif isinstance(publisher, Sender):
            self._publish = publisher.send
        else:
            raise ConfigurationError(
                f"publisher: {type(publisher).__name__} has neither publish nor send", field="publisher",
                remedy="Give a topic, a queue, or an object with publish(messages).",
            )  # fmt: skip
        traits = getattr(publisher, "traits", None)
        self._fifo = bool(getattr(traits, "fifo", True))
        self.atomic = bool(getattr(traits, "atomic_batch", False))

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[Verdict]:
        """Publish in one call; a refusal of all for the sake of one is repeated one by one, to find out which."""
        prepared = messages if self._fifo else [_plain(message) for message in messages]
        verdicts = self._call(prepared)
        if len(messages) > 1 and isinstance(verdicts, Rejected):
            return self._one_by_one(prepared)
        return [verdicts] * len(messages) if not isinstance(verdicts, list) else verdicts

    def _call(self, messages: Sequence[OutgoingMessage]) -> list[Verdict] | Verdict:
        """A verdict for each message, or one for all when the call raised."""
        try:
            results = list(self._publish(messages))
            failpoints.hit("outbox.after_publish")
        except BaseException as error:
            return judge(error)
        silent = Tried("OutcomeUnknown: the publisher gave no result for this message")
        verdicts = [_verdict(result) for result in results[: len(messages)]]
        return verdicts + [silent] * (len(messages) - len(verdicts))

    def _one_by_one(self, messages: Sequence[OutgoingMessage]) -> list[Verdict]:
        """Verdicts of calls of one message each; what comes behind a failed one of its group is not tried."""
        verdicts: list[Verdict] = []
        stopped: set[str | None] = set()
        for message in messages:
            verdict = UNTRIED if message.group in stopped else self._alone(message)
            verdicts.append(verdict)
            if not isinstance(verdict, Sent) and message.group is not None:
                stopped.add(message.group)
        return verdicts

    def _alone(self, message: OutgoingMessage) -> Verdict:
        verdict = self._call([message])
        return verdict[0] if isinstance(verdict, list) else verdict


def _verdict(result: Any) -> Verdict:
    if result.ok:
        return SENT
    if result.error is None:
        return Tried("PublishError: the publisher gave no reason")
    return judge(result.error)


def _plain(message: OutgoingMessage) -> OutgoingMessage:
    """Without what only FIFO takes."""
    return msgspec.structs.replace(message, group=None, dedup_id=None)
