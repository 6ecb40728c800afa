"""Publishing: local handlers first, then the transport; both outcomes are in the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroad.bus.config import SQSEventBusConfig
from postroad.bus.deduplication import Memory
from postroad.bus.local import EventBus, HandlerFailure, InProcessEventBus, PublishResult
from postroad.bus.messages import Packer
from postroad.bus.sending import Sender, Sent
from postroad.bus.telemetry import BusTelemetry
from postroad.errors import PostroadError
from postroad.events import Envelope
from postroad.queues import OutgoingMessage
from postroad.receiving import HandlingContext, handling, in_thread
from postroad.telemetry import tracing

_CHUNK = 10
_NO_RECEIVERS = "Nobody subscribes to this topic; create a group first: postroad bus group create TOPIC GROUP"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An event ready to go: its message, or what became of it already."""

    event: object
    envelope: Envelope | None
    message: OutgoingMessage | None
    sent: Sent | None = None


@dataclass(slots=True, kw_only=True)
class Publisher:
    """Publishes for one bus."""

    name: str
    config: SQSEventBusConfig
    local: EventBus
    memory: Memory
    teller: BusTelemetry
    packer: Packer
    sender: Sender

    def publish(self, event: object, key: str | None = None) -> PublishResult:
        """Run the local handlers, then send; both outcomes are in the result."""
        with tracing.publishing(self.name):
            prepared = self._prepare(event, key)
            local = self._dispatch(prepared)
            return self._result(prepared, local, self._send([prepared], set())[0])

    def publish_many(self, events: Iterable[object]) -> list[PublishResult]:
        """Publish in order, ten to a request; one result for each, and no failure stops the rest."""
        results: list[PublishResult] = []
        blocked: set[str | None] = set()
        rest = iter(events)
        while chunk := [event for _, event in zip(range(_CHUNK), rest, strict=False)]:
            with tracing.publishing(self.name):
                prepared = [self._prepare(event, None) for event in chunk]
                local = [self._dispatch(each) for each in prepared]
                sent = self._send(prepared, blocked)
            results += map(self._result, prepared, local, sent)
        return results

    async def apublish(self, event: object, key: str | None = None) -> PublishResult:
        """Publish without blocking the loop: async handlers are awaited on it, all else runs in threads."""
        with tracing.publishing(self.name):
            prepared = self._prepare(event, key)
            local = await self._adispatch(prepared)
            sent = await in_thread(self._send, [prepared], set[str | None]())
            return self._result(prepared, local, sent[0])

    def _prepare(self, event: object, key: str | None) -> _Prepared:
        """Wrap the event once, before a handler can change it: all retries send the same bytes."""
        envelope = None
        filtered = None if self.config.allows(type(event)) else Sent("filtered")
        try:
            envelope = self.packer.wrap(event, key)
            message = None if filtered else self.packer.message(envelope, event)
        except PostroadError as error:
            return _Prepared(event, envelope, None, filtered or Sent("failed", error))
        return _Prepared(event, envelope, message, filtered)

    def _dispatch(self, prepared: _Prepared) -> PublishResult | None:
        if not self.config.local_dispatch:
            return None
        with handling(_context(prepared)):
            result = self.local.publish(prepared.event)
        self._remember(prepared, result)
        return result

    async def _adispatch(self, prepared: _Prepared) -> PublishResult | None:
        if not self.config.local_dispatch:
            return None
        with handling(_context(prepared)):
            if isinstance(self.local, InProcessEventBus):
                result = await self.local.apublish(prepared.event)
            else:
                result = await in_thread(self.local.publish, prepared.event)
        self._remember(prepared, result)
        return result

    def _remember(self, prepared: _Prepared, result: PublishResult) -> None:
        """What was handled here must not be handled again when it comes back."""
        if prepared.envelope is None or not result.handlers_invoked:
            return
        if result.ok:
            self.memory.published.mark_seen(prepared.envelope.event_id)
            return
        succeeded = list(result.handlers_invoked)
        for failure in result.errors:
            if failure.handler in succeeded:
                succeeded.remove(failure.handler)
        self.memory.note_succeeded(prepared.envelope.event_id, succeeded)

    def _send(self, prepared: Sequence[_Prepared], blocked: set[str | None]) -> list[Sent]:
        messages = [each.message for each in prepared if each.message is not None]
        outcomes = iter(self.sender.send(messages, blocked) if messages else ())
        sent = [each.sent or next(outcomes) for each in prepared]
        for each, outcome in zip(prepared, sent, strict=True):
            if outcome.error is not None:
                self.teller.tell("bus_publish_failed", each.envelope, error=str(outcome.error))
            elif outcome.remote == "sent":
                self.teller.tell("bus_published", each.envelope)
                if outcome.receivers == 0:
                    self.teller.tell_at_times("bus_no_receivers", remedy=_NO_RECEIVERS)
        return sent

    def _result(self, prepared: _Prepared, local: PublishResult | None, sent: Sent) -> PublishResult:
        errors = () if local is None else local.errors
        if sent.error is not None:
            errors = (*errors, HandlerFailure(self.send_alone, sent.error))
        invoked = () if local is None else local.handlers_invoked
        event_id = None if prepared.envelope is None else prepared.envelope.event_id
        return PublishResult(
            prepared.event, invoked, errors, event_id=event_id, remote=sent.remote, receivers=sent.receivers
        )

    def send_alone(self, event: object) -> None:
        """Send the event to other processes alone; in a result it stands for the transport."""
        (sent,) = self._send([self._prepare(event, None)], set())
        if sent.error is not None:
            raise sent.error


def _context(prepared: _Prepared) -> HandlingContext | None:
    return None if prepared.envelope is None else HandlingContext(envelope=prepared.envelope, event=prepared.event)
