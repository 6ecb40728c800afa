"""Publishing: events are checked, put on the stream in each agent's order, and told apart when one fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from postroad.agents.model import AgentEvent, AgentPublishResult
from postroad.agents.rules import encode_event, is_agent_id, not_found
from postroad.clock import Clock
from postroad.errors import AgentNotFound, HeldBack, PostroadError
from postroad.streams import PutResult, Record, Stream

Known = Callable[[Collection[str]], set[str]]
_CODES: dict[type[Exception], str] = {AgentNotFound: "agent_not_found", HeldBack: "held_back"}


class Published(NamedTuple):
    """What became of one event."""

    event_id: str | None
    shard: str | None = None
    sequence: str | None = None
    error: Exception | None = None

    @property
    def result(self) -> AgentPublishResult:
        """The outcome as it is told."""
        return AgentPublishResult(
            ok=self.error is None, event_id=self.event_id, shard=self.shard, sequence=self.sequence, error=self._code
        )

    @property
    def _code(self) -> str | None:
        if self.error is None:
            return None
        return _CODES.get(type(self.error)) or str(self.error)


def publish(
    events: Sequence[AgentEvent], stream: Stream, known: Known, clock: Clock, *, traceparent: str | None = None
) -> list[Published]:
    """Put the events on the stream; when one of an agent fails, its later ones of this call are not sent."""
    registered = known({event.agent_id for event in events if is_agent_id(event.agent_id)})
    outcomes: list[Published | None] = [None] * len(events)
    stopped: set[str] = set()
    records: list[tuple[int, str, Record]] = []
    for index, event in enumerate(events):
        try:
            event_id, data = _checked(event, registered, stopped, clock, traceparent)
        except PostroadError as error:
            stopped.add(str(event.agent_id))
            outcomes[index] = Published(event.event_id, error=error)
        else:
            records.append((index, event_id, Record(key=event.agent_id, data=data)))
    for (index, event_id, _), put in zip(records, stream.put([record for *_, record in records]), strict=True):
        outcomes[index] = _published(event_id, put)
    return [outcome for outcome in outcomes if outcome is not None]


def _checked(
    event: AgentEvent, registered: set[str], stopped: set[str], clock: Clock, traceparent: str | None
) -> tuple[str, bytes]:
    if str(event.agent_id) in stopped:
        raise HeldBack(f'an earlier event of agent "{event.agent_id}" failed')
    encoded = encode_event(event, now=clock.now(), traceparent=traceparent)
    if event.agent_id not in registered:
        raise not_found(event.agent_id)
    return encoded


def _published(event_id: str, put: PutResult) -> Published:
    return Published(event_id, put.shard, put.sequence, put.error)
