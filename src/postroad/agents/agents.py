"""The public face of agents: register, subscribe, publish, receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from postroad.agents import model
from postroad.agents.model import Accept, Agent, AgentEvent, AgentPublishResult, Order, Page, Registered, Subscription
from postroad.agents.port import AgentRecord, AgentStore, NewAgent
from postroad.agents.runner import Runner
from postroad.agents.stream import Published, publish
from postroad.arguments import check, seconds_between, text, whole_number
from postroad.clock import Clock
from postroad.errors import ConsentRequired, SubscriptionNotFound
from postroad.events import uuid7
from postroad.queues import PeekedMessage, Queue
from postroad.streams import TRIM_HORIZON, Stream

if TYPE_CHECKING:
    from postroad.agents.handlers import AgentHandle

T = TypeVar("T")
_MOST = 100_000
_SEQUENCE = text(
    "[0-9]{1,18}", "the sequence of a dead letter", remedy="Give the sequence of the last one that was returned."
)
# Inside the class `list` is a method.
ManyRegistered = list[Registered]
PublishResults = list[AgentPublishResult]
Outcomes = list[Published]
Peeked = list[PeekedMessage]


class Agents:
    """The agents of one backend, for its operator: no method asks for a token or checks a grant.

    `backend.agents()` makes it.

    Args:
        store: Where agents, subscriptions and events are stored.
        stream: The stream that events are published to.
        settings: The settings of these agents.
        clock: The time, for tokens and timestamps.

    Example:
        agents = backend.agents()
        agents.register("ann")
        agents.register("bob")
        agents.subscribe("bob", "ann")
        agents.publish([AgentEvent("ann", "order.placed", {"id": 7})])
    """

    def __init__(self, store: AgentStore, stream: Stream, settings: model.AgentSettings, clock: Clock) -> None:
        self._clock = clock
        self._store = store
        self._stream = stream
        self._settings = settings

    @property
    def store(self) -> AgentStore:
        """The store, for the functions that work on it directly."""
        return self._store

    @property
    def runs_here(self) -> bool:
        """Whether a runner of this package fills the queues; False where functions of AWS do."""
        return self._store.runs_here

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same events."""
        return self._stream.traits.durable

    def provision(self) -> None:
        """Create the tables, streams and queues that are missing; a repeat changes nothing."""
        self._store.provision()

    def register(
        self,
        agent_id: str | None = None,
        *,
        order: Order = "producer",
        accept: Accept = "listed",
        principal_arn: str | None = None,
    ) -> Registered:
        """Register an agent and return its token, which is shown only once.

        Args:
            agent_id: 1 to 64 letters, digits, '_' or '-'; by default a new UUID.
            order: `"producer"` keeps each producer's order; `"total"` adds one order over all producers.
            accept: `"listed"` lets only agents with a grant subscribe by themselves, `"all"` anybody.
            principal_arn: On AWS, the role or user that may receive from the agent's queue.

        Raises:
            InvalidName: The id is not valid.
            AgentExists: The id is taken.
            AgentDeleted: The id belonged to an agent that was deleted.
        """
        chosen = uuid7().hex if agent_id is None else model.check_agent_id(agent_id, field="agentId")
        return self._register([chosen], order, accept, principal_arn)[0]

    def register_many(
        self, count: int, *, order: Order = "producer", accept: Accept = "listed", principal_arn: str | None = None
    ) -> ManyRegistered:
        """Register `count` agents (at most 100,000) at once; the other arguments are those of `register`."""
        check(count, whole_number(0, _MOST), "count")
        return self._register([uuid7().hex for _ in range(count)], order, accept, principal_arn)

    def get(self, agent_id: str, *, limit: int = model.MAX_LIST) -> Agent:
        """Return `agent_id` with the first `limit` producers it listens to, or raise `AgentNotFound`."""
        check(limit, whole_number(1, model.MAX_LIST), "limit")
        record = self._record(agent_id)
        subscriptions = self._store.subscriptions.page(limit, None, listener_id=agent_id)
        return _agent(record, subscriptions)

    def list(self, *, limit: int = 20, cursor: str | None = None) -> Page[Agent]:
        """Return up to `limit` agents behind `cursor`, without their subscriptions."""
        page = _page(limit, cursor, self._store.registry.page, lambda record: record.agent_id)
        return Page([_agent(record, ()) for record in page.items], page.next_cursor)

    def delete(self, agent_id: str) -> model.Deleted:
        """Remove `agent_id`: its token first, then its subscriptions, its queue with what waits in it, and itself."""
        return self._store.registry.delete(_known_id(agent_id))

    def rotate_token(self, agent_id: str, *, overlap: float = 600) -> str:
        """Return a new token of `agent_id`; the former one is valid for `overlap` more seconds, up to 604,800."""
        check(overlap, seconds_between(0, model.MAX_OVERLAP), "overlap")
        token = model.new_token(_known_id(agent_id))
        former_until = self._clock.now().timestamp() + overlap
        if not self._store.registry.set_token(agent_id, model.digest(token), former_until=former_until):
            raise model.not_found(agent_id)
        return token

    def renew_token(self, agent_id: str) -> str:
        """Return a new token of `agent_id` for one that was lost: the newest one is void at once."""
        token = model.new_token(_known_id(agent_id))
        if not self._store.registry.set_token(agent_id, model.digest(token), former_until=None):
            raise model.not_found(agent_id)
        return token

    def authenticate(self, token: str) -> str | None:
        """Return the agent that `token` belongs to; None if the token is not valid."""
        agent_id = model.claimed_id(token)
        record = None if agent_id is None else self._store.registry.get(agent_id)
        if record is None:
            return None
        if model.matches(token, record.token_hash):
            return record.agent_id
        in_time = record.former_until > self._clock.now().timestamp()
        return record.agent_id if in_time and model.matches(token, record.former_hash) else None

    def subscribe(self, listener_id: str, producer_id: str, *, event_types: Sequence[str] | None = None) -> bool:
        """Let the listener receive the producer's events from now on; return whether that is new.

        Args:
            listener_id: The agent that receives.
            producer_id: The agent that publishes.
            event_types: The 1 to 20 types to receive, each exact or `prefix.*`; no row is written for other events. By
                default all. A subscription that exists gets these types instead of those it had, for the events that
                are not in the listener's queue yet.

        Raises:
            AgentNotFound: One of them is not registered.
            InvalidInput: `event_types` are not types.
        """
        return self.subscribe_many([(listener_id, producer_id)], event_types=event_types) == 1

    def subscribe_many(self, pairs: Sequence[tuple[str, str]], *, event_types: Sequence[str] | None = None) -> int:
        """Subscribe each of `pairs` (listener, producer), to `event_types` or to all; return how many are new.

        All are stored or none; on AWS this holds for each hundred.
        """
        wanted = model.checked_event_types(event_types)
        for listener_id, producer_id in pairs:
            _known_id(listener_id)
            _known_id(producer_id)
        if not pairs:
            return 0
        return self._store.subscriptions.add(tuple(pairs), validate=self._settings.validate, event_types=wanted)

    def unsubscribe(self, listener_id: str, producer_id: str, *, discard: bool = False) -> bool:
        """End `listener_id`'s subscription to `producer_id`; `discard` removes its waiting events. False if none."""
        if not (model.is_agent_id(listener_id) and model.is_agent_id(producer_id)):
            return False
        return self._store.subscriptions.remove(listener_id, producer_id, discard=discard)

    def subscriptions(self, listener_id: str, *, limit: int = 20, cursor: str | None = None) -> Page[Subscription]:
        """Return up to `limit` producers behind `cursor` that `listener_id` listens to."""
        self._record(listener_id)
        find = partial(self._store.subscriptions.page, listener_id=listener_id)
        return _page(limit, cursor, find, lambda found: found.producer_id)

    def subscribers(self, producer_id: str, *, limit: int = 20, cursor: str | None = None) -> Page[Subscription]:
        """Return up to `limit` agents behind `cursor` that listen to `producer_id`."""
        self._record(producer_id)
        find = partial(self._store.subscriptions.page, producer_id=producer_id)
        return _page(limit, cursor, find, lambda found: found.subscriber_id)

    def grant(self, producer_id: str, listener_id: str) -> None:
        """Allow `listener_id` to subscribe to `producer_id` with its own token."""
        self._store.subscriptions.grant(_known_id(producer_id), _known_id(listener_id))

    def revoke(self, producer_id: str, listener_id: str) -> None:
        """Take back the grant of `producer_id` for `listener_id` and end the subscription, if there is one."""
        self._store.subscriptions.revoke(_known_id(producer_id), _known_id(listener_id))
        self._store.subscriptions.remove(listener_id, producer_id, discard=False)

    def check_consent(self, listener_id: str, producer_id: str) -> None:
        """Raise `ConsentRequired` if `producer_id` has not granted `listener_id`."""
        producer = self._record(producer_id)
        if listener_id == producer_id or producer.accept == "all":
            return
        if not self._store.subscriptions.is_granted(producer_id, listener_id):
            raise ConsentRequired(f'agent "{producer_id}" has not granted "{listener_id}" to listen')

    def pause(self, listener_id: str, producer_id: str) -> None:
        """Withhold the events of `producer_id` from `listener_id`, or raise `SubscriptionNotFound`."""
        if not self._store.subscriptions.pause(listener_id, producer_id):
            raise _no_subscription(listener_id, producer_id)

    def resume(self, listener_id: str, producer_id: str) -> None:
        """Deliver to `listener_id` what was withheld of `producer_id`, in order, before anything newer."""
        if not self._store.subscriptions.resume(listener_id, producer_id):
            raise _no_subscription(listener_id, producer_id)

    def replay(self, listener_id: str, producer_id: str, *, since: str | datetime = TRIM_HORIZON) -> int:
        """Deliver the retained events of `producer_id` from `since` on to `listener_id` again; return how many."""
        since_ms = 0 if since == TRIM_HORIZON else model.milliseconds(model.normal_time(since, "since"))
        replayed = self._store.subscriptions.replay(listener_id, producer_id, since_ms)
        if replayed is None:
            raise _no_subscription(listener_id, producer_id)
        return replayed

    def publish(self, events: Sequence[AgentEvent]) -> PublishResults:
        """Put `events` on the stream and return one result for each; an event that is `ok` is durable."""
        return [published.result for published in self.publish_each(events)]

    def publish_each(self, events: Sequence[AgentEvent], *, traceparent: str | None = None) -> Outcomes:
        """Publish `events` like `publish`, under `traceparent`, but return the exception of each that failed."""
        return publish(events, self._stream, self._store.registry.known, self._clock, traceparent=traceparent)

    def queue(self, agent_id: str) -> Queue:
        """Return the queue of `agent_id`; nobody can send to it."""
        return self._store.queue(_known_id(agent_id))

    def agent(self, agent_id: str) -> AgentHandle:
        """Return `agent_id` as its own program uses it: to handle what it receives, and to publish under its id.

        Raises:
            AgentNotFound: The agent is not registered.
        """
        from postroad.agents.handlers import AgentHandle  # it brings asyncio, 4 MB that a runner can do without

        self._record(agent_id)
        return AgentHandle(self, agent_id)

    def stats(self, agent_id: str) -> model.LaneStats:
        """Return the counters of the queue of `agent_id`."""
        return self._store.stats(_known_id(agent_id))

    def dead_letters(self, agent_id: str, *, limit: int = 10, after: int | str | None = None) -> Peeked:
        """Return up to `limit` (1 to 1,000) dead letters of `agent_id`, oldest first, behind the sequence `after`."""
        check(limit, whole_number(1, 1_000), "limit")
        if after is not None:
            after = str(after)
            check(after, _SEQUENCE, "after")
        return self._store.dead_letters(_known_id(agent_id), limit, after)

    def redrive(self, agent_id: str, *, limit: int | None = None) -> int:
        """Put up to `limit` dead letters of `agent_id` behind what waits; return how many."""
        check(limit, whole_number(1, _MOST) | None, "limit")
        return self._store.redrive(_known_id(agent_id), limit)

    def runner(self, *, worker: str | None = None, batch: int = 500) -> Runner:
        """Return a runner, named `worker`, that moves up to `batch` events at a time to the queues."""
        return Runner(self._store, self._stream, self._clock, worker=worker, batch=batch)

    def _register(
        self, agent_ids: Sequence[str], order: Order, accept: Accept, principal_arn: str | None
    ) -> ManyRegistered:
        check(order, model.OrderChoice, "order")
        check(accept, model.AcceptChoice, "accept")
        created_at = model.now_text(self._clock.now())
        made = [model.new_token(agent_id) for agent_id in agent_ids]
        new = [
            NewAgent(agent_id, created_at, order, accept, model.digest(token), principal_arn)
            for agent_id, token in zip(agent_ids, made, strict=True)
        ]
        urls = self._store.registry.add(new) if new else []
        return [Registered(*each[:2], created_at, each[2]) for each in zip(agent_ids, made, urls, strict=True)]

    def _record(self, agent_id: str) -> AgentRecord:
        record = self._store.registry.get(_known_id(agent_id))
        if record is None:
            raise model.not_found(agent_id)
        return record


def _page(
    limit: int, cursor: str | None, find: Callable[[int, str | None], Sequence[T]], key: Callable[[T], str]
) -> Page[T]:
    check(limit, whole_number(1, model.MAX_LIST), "limit")
    found = find(limit + 1, cursor)
    return Page(found[:limit], key(found[limit - 1]) if len(found) > limit else None)


def _known_id(agent_id: Any) -> str:
    """Return the id if it is valid; an agent with another one cannot exist."""
    if not model.is_agent_id(agent_id):
        raise model.not_found(agent_id)
    return str(agent_id)


def _no_subscription(listener_id: str, producer_id: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(f'agent "{listener_id}" does not listen to "{producer_id}"')


def _agent(record: AgentRecord, subscriptions: Sequence[Subscription]) -> Agent:
    return Agent(record.agent_id, record.created_at, record.order, record.accept, subscriptions, record.queue_url)
