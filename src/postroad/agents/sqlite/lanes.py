"""The lanes of the embedded file: all share the same few tables."""

from __future__ import annotations

import apsw

from postroad.agents.model import LaneStats
from postroad.agents.sqlite import groups, moves, names, queries
from postroad.agents.sqlite.claims import Claimer
from postroad.agents.sqlite.names import Ids
from postroad.agents.sqlite.queue import Lane, traits_of
from postroad.agents.sqlite.receipts import MessageIds
from postroad.agents.sqlite.rows import Reader
from postroad.agents.sqlite.settlement import ExpiryRules, Settler
from postroad.engine import Engine, Transaction
from postroad.queues import PeekedMessage

_ALL = 1 << 31


class SQLiteLanes:
    """What waits for each agent."""

    def __init__(self, engine: Engine, *, visibility: float, max_receives: int, durable: bool) -> None:
        self.engine = engine
        self.visibility = visibility
        self.traits = traits_of(durable=durable, visibility=visibility, max_receives=max_receives)
        self.reader = Reader(Ids(), MessageIds(engine.salt))
        expiry = ExpiryRules(max_receives)
        self.claimer = Claimer(engine, self.reader, expiry)
        self.settler = Settler(engine, expiry)

    def queue(self, agent_id: str) -> Lane:
        """The agent's lane as a queue."""
        return Lane(self, agent_id, self._lane(agent_id))

    def stats(self, agent_id: str) -> LaneStats:
        """Count the lane."""

        def look(connection: apsw.Connection) -> LaneStats:
            lane = names.active(connection, agent_id)
            return queries.count(connection, lane, monotonic_us=self.engine.monotonic_us(), now_us=self.engine.now_us())

        return self.engine.read(look)

    def dead_letters(self, agent_id: str, limit: int, after: str | None = None) -> list[PeekedMessage]:
        """Look at what failed too often, oldest first."""

        def look(connection: apsw.Connection) -> list[PeekedMessage]:
            lane = names.active(connection, agent_id)
            return queries.dead_letters(connection, self.reader, lane, limit=limit, after=int(after or 0))

        return self.engine.read(look)

    def redrive(self, agent_id: str, limit: int | None) -> int:
        """Put dead letters behind what waits; how many."""

        def work(tx: Transaction) -> int:
            lane = names.active(tx.connection, agent_id)
            return moves.redrive(tx, lane, _ALL if limit is None else limit, self.engine.monotonic_us())

        return self.engine.write(work)

    def pause(self, listener_id: str, producer_id: str) -> bool:
        """Withhold this producer's events; False without such a subscription."""

        def work(tx: Transaction) -> bool:
            pair = self._pair(tx.connection, listener_id, producer_id)
            return pair is not None and groups.pause(tx, *pair, self.engine.monotonic_us())

        return self.engine.write(work)

    def resume(self, listener_id: str, producer_id: str) -> bool:
        """Deliver what was withheld, before anything newer."""

        def work(tx: Transaction) -> bool:
            pair = self._pair(tx.connection, listener_id, producer_id)
            return pair is not None and groups.resume(tx, *pair, self.engine.monotonic_us())

        return self.engine.write(work)

    def replay(self, listener_id: str, producer_id: str, since_ms: int) -> int | None:
        """Deliver this producer's rows again from then on; how many, None without such a subscription."""

        def work(tx: Transaction) -> int | None:
            pair = self._pair(tx.connection, listener_id, producer_id)
            if pair is None or not groups.is_pair(tx.connection, *pair):
                return None
            return moves.replay(
                tx, *pair, since_ms=since_ms, now_us=self.engine.now_us(), monotonic_us=self.engine.monotonic_us()
            )

        return self.engine.write(work)

    def _lane(self, agent_id: str) -> int:
        return self.engine.read(lambda connection: names.active(connection, agent_id))

    def _pair(self, connection: apsw.Connection, listener_id: str, producer_id: str) -> tuple[int, int] | None:
        listener, producer = names.number(connection, listener_id), names.number(connection, producer_id)
        return None if listener is None or producer is None else (listener, producer)
