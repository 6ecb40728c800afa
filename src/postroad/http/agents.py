"""What the routes of agents share: the agents and their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from postroad.agents import Agents
from postroad.clock import Clock
from postroad.errors import TooManyPolls
from postroad.http.rates import RateLimits
from postroad.settings.environment import agent_polls, agent_rate

_BURST = 2


class AgentDesk:
    """One server's agents. What it counts, it counts for each agent alone."""

    def __init__(self, agents: Agents, clock: Clock) -> None:
        self.agents = agents
        self._rates = RateLimits(agent_rate(), clock, burst=_BURST, what="events")
        self._most_polls = agent_polls()
        self._polls: Counter[str] = Counter()

    def take(self, agent_ids: Iterable[str]) -> None:
        """Count the events of each agent, or raise `RateLimited` before any is accepted."""
        for agent_id, count in Counter(agent_ids).items():
            self._rates.take(agent_id, count)

    def begin_waiting(self, agent_id: str) -> None:
        """Count a poll or stream of the agent until `end_waiting`; `TooManyPolls` when it has too many."""
        if self._polls[agent_id] >= self._most_polls:
            raise TooManyPolls(f"{self._most_polls} polls and streams wait for this agent, which is the limit")
        self._polls[agent_id] += 1

    def end_waiting(self, agent_id: str) -> None:
        """Count it no longer."""
        self._polls[agent_id] -= 1
        if not self._polls[agent_id]:
            del self._polls[agent_id]
