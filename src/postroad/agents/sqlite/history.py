"""How far an event is on its way to each subscriber, read from the embedded file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import apsw

from postroad.agents.model import DeliveryState, EventDelivery
from postroad.agents.sqlite.message_groups import is_paused
from postroad.agents.sqlite.tables import HELD, Reader, agent_and_place
from postroad.engine import Engine, every, one, text_of
from postroad.queues import moment

_MESSAGE_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
# The order of the tables is given, because each agent is looked up in an index, and events have no index of their own.
_PLACES: Final = """
SELECT event.place FROM agent CROSS JOIN agent_event AS event ON event.producer = agent.num AND event.event_id = ?
"""
_LANES: Final = """
SELECT held.lane FROM agent CROSS JOIN agent_row AS held ON held.lane = agent.num AND held.place = ?1
UNION SELECT lane FROM agent_held_row WHERE place = ?1
"""
_IS_ROW: Final = "SELECT 1 FROM agent_row WHERE lane = ?1 AND place = ?2"
_LEASE: Final = """
SELECT receives, visible_us, held, first_us, CAST(error AS BLOB) FROM agent_lease WHERE lane = ? AND place = ?
"""
_ASIDE: Final = "SELECT grp, turn FROM agent_aside WHERE lane = ? AND place = ?"
_BEFORE: Final = """
SELECT place FROM (
    SELECT place, turn FROM agent_lease WHERE lane = ?1 AND grp = ?2
    UNION ALL SELECT place, turn FROM agent_aside WHERE lane = ?1 AND grp = ?2
) WHERE turn < ?3 ORDER BY turn LIMIT 1
"""
_DEAD: Final = """
SELECT receives, at_us, CAST(error AS BLOB), CAST(reason AS BLOB) FROM agent_dead WHERE lane = ? AND place = ?
"""
_HEAD: Final = "SELECT head FROM agent_lane WHERE lane = ?"


class AgentHistory:
    """Reads what became of events; it changes nothing."""

    def __init__(self, engine: Engine, reader: Reader) -> None:
        self._engine = engine
        self._reader = reader

    def deliveries(self, name: str) -> list[EventDelivery]:
        """Return how far the message with this id is, or the events with this id on their way to each subscriber."""
        message = agent_and_place(self._engine.salt, name) if _MESSAGE_ID.fullmatch(name) else None

        def look(connection: apsw.Connection) -> list[EventDelivery]:
            if message is not None and one(connection, _IS_ROW, message) is not None:
                return list(self._delivery(connection, *message))
            places = [place for (place,) in every(connection, _PLACES, (name,))]
            rows = [(lane, place) for place in places for (lane,) in every(connection, _LANES, (place,))]
            return [each for lane, place in rows for each in self._delivery(connection, lane, place)]

        return self._engine.read(look)

    def _delivery(self, connection: apsw.Connection, lane: int, place: int) -> Iterator[EventDelivery]:
        event = self._reader.event(connection, lane, place)
        if event is None or event.is_damaged:
            return
        dead, lease, aside = (one(connection, each, (lane, place)) for each in (_DEAD, _LEASE, _ASIDE))
        before = None if aside is None else one(connection, _BEFORE, (lane, *aside))
        receives, due_us, _, first_us, error = lease or (0, 0, 0, None, None)
        yield EventDelivery(
            event_id=event.event_id.decode(),
            event_type=event.type.decode(),
            producer_id=self._reader.agent_id(connection, event.producer),
            subscriber_id=self._reader.agent_id(connection, lane),
            message_id="" if place >= HELD else self._reader.message_id(lane, place),
            arrived_at=moment(event.arrived_us),
            state="dead" if dead is not None else self._state(connection, lane, place, event.producer, lease, aside),
            receives=receives if dead is None else dead[0],
            first_received_at=None if first_us is None else moment(first_us),
            due_seconds=max(0.0, (due_us - self._engine.monotonic_us()) / 1_000_000),
            error=text_of(error) if dead is None else text_of(dead[2]) or text_of(dead[3]),
            dead_at=None if dead is None else moment(dead[1]),
            head=None if before is None else self._reader.message_id(lane, before[0]),
        )

    def _state(
        self, connection: apsw.Connection, lane: int, place: int, producer: int, lease: Any, aside: Any
    ) -> DeliveryState:
        paused = is_paused(connection, lane, producer)
        if lease is not None:
            _, visible_us, held, *_ = lease
            is_held = held and visible_us > self._engine.monotonic_us()
            return "in_flight" if is_held else "paused" if paused else "returned"
        if place >= HELD:
            return "held"
        head = one(connection, _HEAD, (lane,))
        if aside is not None or place >= (0 if head is None else head[0]):
            return "paused" if paused else "waiting"
        return "settled"
