"""What the routes of agents share: the agents, their limits, and the streams that are open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from postroad.agents import Agents
from postroad.clock import Clock
from postroad.errors import TooManyPolls
from postroad.http.rates import RateLimits
from postroad.settings.agents import agent_polls, agent_rate

_BURST = 2


class AgentDesk:
    """One server's agents. What it counts, it counts for each agent alone."""

    def __init__(self, agents: Agents, clock: Clock) -> None:
        self.agents = agents
        self._rates = RateLimits(agent_rate(), clock, burst=_BURST, what="events")
        self._most_polls = agent_polls()
        self._polls: Counter[str] = Counter()
        self._streams: set[asyncio.Event] = set()
        self.stopping = False

    def take(self, agent_ids: Iterable[str]) -> None:
        """Count the events of each agent, or raise `RateLimited` before any is accepted."""
        for agent_id, count in Counter(agent_ids).items():
            self._rates.take(agent_id, count)

    @contextmanager
    def waiting(self, agent_id: str) -> Iterator[None]:
        """Count a poll or stream of the agent for as long as it waits."""
        if self._polls[agent_id] >= self._most_polls:
            raise TooManyPolls(f"{self._most_polls} polls and streams wait for this agent, which is the limit")
        self._polls[agent_id] += 1
        try:
            yield
        finally:
            self._polls[agent_id] -= 1
            if not self._polls[agent_id]:
                del self._polls[agent_id]

    @contextmanager
    def streaming(self) -> Iterator[asyncio.Event]:
        """An event that is set when streams have to look again: something was settled, or the server stops."""
        bell = asyncio.Event()
        self._streams.add(bell)
        try:
            yield bell
        finally:
            self._streams.discard(bell)

    def settled(self) -> None:
        """Let streams see that there may be room for more."""
        for bell in self._streams:
            bell.set()

    def stop(self) -> None:
        """End all streams at once."""
        self.stopping = True
        self.settled()
