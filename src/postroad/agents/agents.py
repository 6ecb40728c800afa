"""Agents: who they are, whom they listen to, what they publish and what waits for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from postroad.agents import rules, tokens
from postroad.agents.model import (
    Accept,
    Agent,
    AgentEvent,
    AgentPublishResult,
    Deleted,
    LaneStats,
    Order,
    Page,
    Registered,
    Subscription,
)
from postroad.agents.port import AgentRecord, AgentStore, NewAgent
from postroad.agents.publisher import Published, publish
from postroad.agents.runner import Runner
from postroad.agents.settings import AgentSettings
from postroad.arguments import check, seconds_between, whole_number
from postroad.clock import Clock
from postroad.errors import ConsentRequired, SubscriptionNotFound
from postroad.events import uuid7
from postroad.queues import PeekedMessage, Queue
from postroad.streams import TRIM_HORIZON, Stream

T = TypeVar("T")
_MOST = 100_000
# Inside the class `list` is a method.
ManyRegistered = list[Registered]
PublishResults = list[AgentPublishResult]
Outcomes = list[Published]
Peeked = list[PeekedMessage]


class Agents:
    """The agents of one backend. It is the operator's: it asks for no token and checks no grant."""

    def __init__(self, store: AgentStore, stream: Stream, settings: AgentSettings, clock: Clock) -> None:
        self._clock = clock
        self._store = store
        self._stream = stream
        self._settings = settings

    @property
    def store(self) -> AgentStore:
        """What agents are kept in, for the functions that work on it directly."""
        return self._store

    @property
    def runs_here(self) -> bool:
        """Whether a runner of ours fills the lanes; False where the store has functions of its own for that."""
        return self._store.runs_here

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same events; what is not durable is this process's own."""
        return self._stream.traits.durable

    def provision(self) -> None:
        """Make what is missing of tables, streams and queues; repeated it changes nothing."""
        self._store.provision()

    def register(
        self,
        agent_id: str | None = None,
        *,
        order: Order = "producer",
        accept: Accept = "listed",
        principal_arn: str | None = None,
    ) -> Registered:
        """Make an agent with its token and lane. Taken: `AgentExists`; once deleted: `AgentDeleted`."""
        chosen = uuid7().hex if agent_id is None else rules.check_agent_id(agent_id, field="agentId")
        return self._register([chosen], order, accept, principal_arn)[0]

    def register_many(
        self, count: int, *, order: Order = "producer", accept: Accept = "listed", principal_arn: str | None = None
    ) -> ManyRegistered:
        """Make so many agents at once."""
        check(count, whole_number(0, _MOST), "count")
        return self._register([uuid7().hex for _ in range(count)], order, accept, principal_arn)

    def get(self, agent_id: str) -> Agent:
        """The agent with the first hundred producers it listens to."""
        record = self._record(agent_id)
        subscriptions = self._store.subscriptions.page(listener_id=agent_id, limit=rules.MAX_LIST, after=None)
        return _agent(record, subscriptions)

    def list(self, *, limit: int = 20, cursor: str | None = None) -> Page[Agent]:
        """Agents without their subscriptions."""
        page = self._page(limit, cursor, lambda size, after: self._store.registry.page(size, after), _id_of)
        return Page([_agent(record, ()) for record in page.items], page.next_cursor)

    def delete(self, agent_id: str) -> Deleted:
        """Remove the agent: its token first, then its subscriptions, its lane with what waits in it, and itself."""
        return self._store.registry.delete(_known_id(agent_id))

    def rotate_token(self, agent_id: str, *, overlap: float = 600) -> str:
        """Give the agent a new token; the former one opens for `overlap` seconds more."""
        check(overlap, seconds_between(0, rules.MAX_OVERLAP), "overlap")
        token = tokens.new_token(_known_id(agent_id))
        former_until = self._clock.now().timestamp() + overlap
        if not self._store.registry.set_token(agent_id, tokens.digest(token), former_until=former_until):
            raise rules.not_found(agent_id)
        return token

    def renew_token(self, agent_id: str) -> str:
        """Give the agent another token in the place of its newest, which nobody may have read; that one is void."""
        token = tokens.new_token(_known_id(agent_id))
        if not self._store.registry.replace_token(agent_id, tokens.digest(token)):
            raise rules.not_found(agent_id)
        return token

    def authenticate(self, token: str) -> str | None:
        """The agent whose token this is; None for one that opens nothing."""
        agent_id = tokens.claimed_id(token)
        record = None if agent_id is None else self._store.registry.get(agent_id)
        if record is None:
            return None
        if tokens.matches(token, record.token_hash):
            return record.agent_id
        in_time = record.former_until > self._clock.now().timestamp()
        return record.agent_id if in_time and tokens.matches(token, record.former_hash) else None

    def subscribe(self, listener_id: str, producer_id: str) -> bool:
        """Let the listener hear the producer from now on; True when that is new."""
        return self.subscribe_many([(listener_id, producer_id)]) == 1

    def subscribe_many(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Subscribe each (listener, producer), all or none (on AWS a hundred at a time); how many are new."""
        for listener_id, producer_id in pairs:
            _known_id(listener_id)
            _known_id(producer_id)
        return self._store.subscriptions.add(tuple(pairs), validate=self._settings.validate) if pairs else 0

    def unsubscribe(self, listener_id: str, producer_id: str, *, discard: bool = False) -> bool:
        """Stop what arrives from now on; with `discard` what waits goes too. Unknown pair: False."""
        if not (rules.is_agent_id(listener_id) and rules.is_agent_id(producer_id)):
            return False
        return self._store.subscriptions.remove(listener_id, producer_id, discard=discard)

    def subscriptions(self, listener_id: str, *, limit: int = 20, cursor: str | None = None) -> Page[Subscription]:
        """Whom the agent listens to."""
        self._record(listener_id)
        find = self._store.subscriptions.page
        return self._page(
            limit,
            cursor,
            lambda size, after: find(listener_id=listener_id, limit=size, after=after),
            lambda found: found.producer_id,
        )

    def subscribers(self, producer_id: str, *, limit: int = 20, cursor: str | None = None) -> Page[Subscription]:
        """Who listens to the agent."""
        self._record(producer_id)
        find = self._store.subscriptions.page
        return self._page(
            limit,
            cursor,
            lambda size, after: find(producer_id=producer_id, limit=size, after=after),
            lambda found: found.subscriber_id,
        )

    def grant(self, producer_id: str, listener_id: str) -> None:
        """Let the listener subscribe to the producer by itself."""
        self._store.subscriptions.grant(_known_id(producer_id), _known_id(listener_id))

    def revoke(self, producer_id: str, listener_id: str) -> None:
        """Take the grant back, and end a running subscription."""
        self._store.subscriptions.revoke(_known_id(producer_id), _known_id(listener_id))
        self._store.subscriptions.remove(listener_id, producer_id, discard=False)

    def check_consent(self, listener_id: str, producer_id: str) -> None:
        """Refuse a listener that the producer has not chosen: `ConsentRequired`."""
        producer = self._record(producer_id)
        if listener_id == producer_id or producer.accept == "all":
            return
        if not self._store.subscriptions.is_granted(producer_id, listener_id):
            raise ConsentRequired(f'agent "{producer_id}" has not granted "{listener_id}" to listen')

    def pause(self, listener_id: str, producer_id: str) -> None:
        """Withhold the producer's events from the listener."""
        if not self._store.lanes.pause(listener_id, producer_id):
            raise _no_subscription(listener_id, producer_id)

    def resume(self, listener_id: str, producer_id: str) -> None:
        """Deliver what was withheld, in order, before anything newer."""
        if not self._store.lanes.resume(listener_id, producer_id):
            raise _no_subscription(listener_id, producer_id)

    def replay(self, listener_id: str, producer_id: str, *, since: str | datetime = TRIM_HORIZON) -> int:
        """Deliver the producer's events again from `since` on, within the retention; how many."""
        since_ms = 0 if since == TRIM_HORIZON else rules.milliseconds(rules.normal_time(since, "since"))
        replayed = self._store.lanes.replay(listener_id, producer_id, since_ms)
        if replayed is None:
            raise _no_subscription(listener_id, producer_id)
        return replayed

    def publish(self, events: Sequence[AgentEvent]) -> PublishResults:
        """Put the events on the stream; what is ok is durable."""
        return [published.result for published in self.publish_each(events)]

    def publish_each(self, events: Sequence[AgentEvent], *, traceparent: str | None = None) -> Outcomes:
        """Put the events on the stream, and keep the error of each that failed."""
        return publish(events, self._stream, self._store.registry.known, self._clock, traceparent=traceparent)

    def queue(self, agent_id: str) -> Queue:
        """The agent's lane as a queue; nobody sends to it."""
        return self._store.lanes.queue(_known_id(agent_id))

    def stats(self, agent_id: str) -> LaneStats:
        """How much waits for the agent."""
        return self._store.lanes.stats(_known_id(agent_id))

    def dead_letters(self, agent_id: str, *, limit: int = 10, after: str | None = None) -> Peeked:
        """What failed too often, oldest first, behind the sequence `after`."""
        check(limit, whole_number(1, 1_000), "limit")
        return self._store.lanes.dead_letters(_known_id(agent_id), limit, after)

    def redrive(self, agent_id: str, *, limit: int | None = None) -> int:
        """Put dead letters behind what waits; how many."""
        check(limit, whole_number(1, _MOST) | None, "limit")
        return self._store.lanes.redrive(_known_id(agent_id), limit)

    def runner(self, *, worker: str | None = None, batch: int = 500) -> Runner:
        """What moves events from the stream into the lanes; several share the work."""
        return Runner(self._store, self._stream, self._clock, worker=worker, batch=batch)

    def _register(
        self, agent_ids: Sequence[str], order: Order, accept: Accept, principal_arn: str | None
    ) -> ManyRegistered:
        check(order, rules.OrderChoice, "order")
        check(accept, rules.AcceptChoice, "accept")
        created_at = rules.now_text(self._clock.now())
        made = [tokens.new_token(agent_id) for agent_id in agent_ids]
        new = [
            NewAgent(agent_id, created_at, order, accept, tokens.digest(token), principal_arn)
            for agent_id, token in zip(agent_ids, made, strict=True)
        ]
        urls = self._store.registry.add(new) if new else []
        return [
            Registered(agent.agent_id, token, created_at, url)
            for agent, token, url in zip(new, made, urls, strict=True)
        ]

    def _record(self, agent_id: str) -> AgentRecord:
        record = self._store.registry.get(_known_id(agent_id))
        if record is None:
            raise rules.not_found(agent_id)
        return record

    def _page(
        self, limit: int, cursor: str | None, find: Callable[[int, str | None], Sequence[T]], key: Callable[[T], str]
    ) -> Page[T]:
        check(limit, whole_number(1, rules.MAX_LIST), "limit")
        found = find(limit + 1, cursor)
        more = len(found) > limit
        return Page(found[:limit], key(found[limit - 1]) if more else None)


def _known_id(agent_id: Any) -> str:
    """The id, when an agent may have it: another one surely does not exist."""
    if not rules.is_agent_id(agent_id):
        raise rules.not_found(agent_id)
    return str(agent_id)


def _no_subscription(listener_id: str, producer_id: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(f'agent "{listener_id}" does not listen to "{producer_id}"')


def _agent(record: AgentRecord, subscriptions: Sequence[Subscription]) -> Agent:
    return Agent(record.agent_id, record.created_at, record.order, record.accept, subscriptions, record.queue_url)


def _id_of(record: AgentRecord) -> str:
    return record.agent_id
