"""An agent's program that reaches its agent over HTTP, with nothing but an address and a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import msgspec

from postroad.agents.handlers import AgentProgram
from postroad.agents.http import HttpAgentQueue, Server
from postroad.agents.model import AgentEvent, AgentPublishResult, check_agent_id, checked_event_types, claimed_id
from postroad.agents.stream import encode_event
from postroad.arguments import check, seconds_between
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError
from postroad.events import uuid7
from postroad.receiving import Hooks, Receiver


class AgentClient(AgentProgram):
    """One agent over HTTP. It needs no database, only the address of a server and the agent's token.

    Handlers and their events are those of `AgentHandle`. While the server cannot be reached, `run` goes on trying, and
    an ack whose answer was lost is sent again; an event that comes twice because of that is handled once.

    Args:
        url: The address of a server (`postroad up`), such as `https://postroad.example.com`.
        token: The token of the agent, which names it.
        timeout: Seconds for which `publish` and the other calls are repeated while the server cannot be reached.

    Raises:
        ConfigurationError: The address is not one of HTTP, the token is not an agent's, or httpx is not installed.

    Example:
        agent = postroad.AgentClient("http://127.0.0.1:8787", os.environ["BOB_TOKEN"])

        @agent.on(producer="ann", event_type="order.*")
        async def ship(event: ReceivedEvent) -> None:
            await agent.apublish("parcel.sent", {"order": event.data["id"]})

        agent.run()
    """

    def __init__(self, url: str, token: str, *, timeout: float = 30.0) -> None:
        check(timeout, seconds_between(0, 3_600), "timeout", ConfigurationError)
        agent_id = claimed_id(token)
        if agent_id is None:
            remedy = "Give the token that `postroad agent create` or `postroad agent token` printed."
            raise ConfigurationError("token: is not the token of an agent", field="token", remedy=remedy)
        super().__init__(agent_id)
        self._timeout = timeout
        self._server = Server(url, token)

    def _publish(self, event: AgentEvent) -> AgentPublishResult:
        # The id is made here, so that a repeat has the same.
        named = event if event.event_id is not None else replace(event, event_id=str(uuid7()))
        _, encoded = encode_event(named, now=SYSTEM_CLOCK.now())
        answer, _ = self._server.call("POST", "/events", msgspec.Raw(encoded), repeat_for=self._timeout)
        document = msgspec.json.decode(answer)
        return AgentPublishResult(True, document["eventId"], document["shardId"], document["sequenceNumber"])

    def subscribe(self, producer_id: str, *, event_types: Sequence[str] | None = None) -> None:
        """Subscribe this agent to `producer_id`, which granted it: to `event_types` or to all.

        Raises:
            AgentNotFound: There is no such producer.
            ConsentRequired: The producer has not granted it.
            InvalidInput: `event_types` are not 1 to 20 types.
        """
        wanted = checked_event_types(event_types)
        body = {} if wanted is None else {"eventTypes": wanted}
        self._change("PUT", f"subscriptions/{check_agent_id(producer_id, field='producer_id')}", body)

    def unsubscribe(self, producer_id: str, *, discard: bool = False) -> None:
        """End the subscription to `producer_id`; `discard` also removes its waiting events."""
        query = "?discard=true" if discard else ""
        self._change("DELETE", f"subscriptions/{check_agent_id(producer_id, field='producer_id')}{query}")

    def grant(self, listener_id: str) -> None:
        """Allow `listener_id` to subscribe to this agent."""
        self._change("PUT", f"grants/{check_agent_id(listener_id, field='listener_id')}")

    def close(self) -> None:
        """Close the connections; events that are still leased by them come again."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, concurrency: int) -> Receiver:
        queue = HttpAgentQueue(self._server, self.agent_id, self._refuse)
        return self._receiver(queue, concurrency, Hooks(joins=False))

    def _change(self, method: str, what: str, body: object = None) -> None:
        self._server.call(method, f"/agents/{self.agent_id}/{what}", body, repeat_for=self._timeout)
