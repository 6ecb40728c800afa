"""The Backend: one store's queues, topics, streams, items, journal and blobs, opened and closed together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

from postroad.blobs import Blobs
from postroad.errors import ConfigurationError, QueueNotFound
from postroad.items import Items
from postroad.journal import Journal
from postroad.queues import OverflowingQueue, Pruning, Queue, QueueOverview, QueueSpec
from postroad.streams import Stream
from postroad.topics import OverflowingTopic, Topic

if TYPE_CHECKING:
    # A program that only uses queues does not pay for the import of the bus.
    from postroad.agents import Agents, AgentSettings, AgentStore, Mover
    from postroad.bus import Archive, Bus, BusConfig
    from postroad.engine import Compaction
    from postroad.inbox import Inbox, Transaction, Windows
    from postroad.operations import AuditLog
    from postroad.ports import Ports, QueueTags, TopicStore
    from postroad.topology import Site

Overflow = Literal["blobs", "fail"]


class Installation(Protocol):
    """One SQLite file or one account of AWS: what its ports do together."""

    url: str
    kind: str
    stage: str
    stage_prefix: str

    @property
    def bus_topics(self) -> TopicStore | None:
        """The topics for a bus, which retries by itself, so that their publish makes each call once; None: the same."""
        ...

    def queue_tags(self) -> QueueTags | None: ...
    def site(self) -> Site: ...
    def agent_store(self, settings: AgentSettings, rejected: Callable[[], Queue]) -> tuple[AgentStore, Stream]: ...
    def check_agents(self, mover: Mover) -> bool: ...
    def transaction(self) -> AbstractContextManager[None]: ...
    def check(self) -> None: ...
    def compact(self, *, rebuild: bool, progress: Callable[[Compaction], None] | None) -> Compaction: ...
    def close(self) -> None: ...


class Backend:
    """One store, opened by `connect(url)`. Two threads may share it; a forked child opens its own."""

    def __init__(
        self, ports: Ports, installation: Installation, *, joins_writes: bool, replaced: Iterable[object] = ()
    ) -> None:
        self.ports = ports
        self.clock = ports.clock
        self.registry = ports.registry
        self.joins_writes = joins_writes
        self._installation = installation
        self._replaced = tuple(replaced)
        self._pruning = None if ports.blobs is None else Pruning(ports.blobs, ports.clock)
        self._buses: weakref.WeakSet[Bus] = weakref.WeakSet()
        self._archives: weakref.WeakSet[Archive] = weakref.WeakSet()

    @property
    def url(self) -> str:
        """The address it was opened with, without secrets."""
        return self._installation.url

    @property
    def kind(self) -> str:
        """'memory', 'sqlite' or 'aws', to show to people; code asks the traits."""
        return self._installation.kind

    @property
    def stage(self) -> str:
        """The stage it belongs to: that of its address, else `$POSTROAD_STAGE`."""
        return self._installation.stage

    @property
    def stage_prefix(self) -> str:
        """What the names of a stage's shared resources begin with: `dev-` on AWS, nothing elsewhere."""
        return self._installation.stage_prefix

    def create_queue(self, spec: QueueSpec, *, overflow: Overflow | None = None) -> Queue:
        """Make the queue, or return it when it exists with the same settings; `QueueExists` names differences."""
        blobs = self._blobs_for(overflow)
        return self._overflowing(self.ports.queues.create_queue(spec), blobs)

    def update_queue(self, spec: QueueSpec) -> Queue:
        """Give an existing queue these settings; its kind (FIFO or standard) cannot change."""
        return self._overflowing(self.ports.queues.update_queue(spec), self.blobs())

    def delete_queue(self, name: str) -> None:
        """Remove the queue with what it holds."""
        self.ports.queues.delete_queue(name)

    def queue(self, name: str, *, overflow: Overflow | None = None) -> Queue:
        """The queue of this name, or `QueueNotFound`. Large bodies travel as blobs unless `overflow='fail'`."""
        blobs = self._blobs_for(overflow)
        return self._overflowing(self.ports.queues.queue(name), blobs)

    def queue_spec(self, name: str) -> QueueSpec:
        """The settings of the queue."""
        return self.ports.queues.queue_spec(name)

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        return self.ports.queues.queues()

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Settings and contents of these queues, by default of all; one that is gone is left out."""
        return self.ports.queues.overviews(names)

    def sources(self, dead_letters: str) -> list[str]:
        """The names of the queues that have this one as their dead-letter queue, sorted."""
        return self.ports.queues.sources(dead_letters)

    def topic(self, name: str, fifo: bool = False, *, overflow: Overflow | None = None, create: bool = True) -> Topic:
        """The topic of this name, made when missing unless `create` is False. An ARN is taken as it is, without a call.

        Raises:
            TopicNotFound: with `create=False` and no such topic. Where the role may not list the topics of AWS, the
                topic is returned unseen, and publishing to it fails when it does not exist.
        """
        blobs = self._blobs_for(overflow)
        store = self.ports.topics
        topic = store.topic(name, fifo=fifo) if create else store.existing(name, fifo=fifo)
        return topic if blobs is None else OverflowingTopic(topic, blobs, clock=self.clock, pruning=self._pruning)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self.ports.topics.topics()

    def topics_without_subscriptions(self) -> list[str]:
        """The names of the topics whose messages reach nobody, sorted."""
        return self.ports.topics.topics_without_subscriptions()

    def stream(self, name: str, shards: int = 4, retention: float = 86_400) -> Stream:
        """The stream of this name, made when missing."""
        return self.ports.streams.stream(name, shards=shards, retention=retention)

    def bus(
        self,
        topic: str,
        group: str | None = None,
        *,
        fifo: bool = False,
        event_types: Collection[type] | None = None,
        attributes: Mapping[str, Collection[str]] | None = None,
        local: bool | None = None,
        orphan_after: float = 60.0,
        config: BusConfig | None = None,
        inbox: Inbox | None = None,
        transaction: Transaction | None = None,
        windows: Windows | None = None,
    ) -> Bus:
        """Return the bus of the topic, ready to publish and to receive; `Bus` tells what each argument means.

        Raises:
            ConfigurationError: Arguments that do not go together.
        """
        from postroad.bus.topic import Bus
        from postroad.inbox import Windows

        return Bus(
            topic,
            group,
            fifo=fifo,
            event_types=event_types,
            attributes=attributes,
            local=local,
            orphan_after=orphan_after,
            config=config,
            inbox=inbox,
            transaction=transaction,
            windows=Windows() if windows is None else windows,
        ).bind(self)

    def bind(self, bus: Bus) -> None:
        """Connect a bus that was declared without a backend, and close it together with this one."""
        topics = self._installation.bus_topics or self.ports.topics
        bus.connect(self, tags=self._installation.queue_tags(), open_topic=topics.topic)
        self._buses.add(bus)

    def archive(self, topic: str, *, fifo: bool = False, retention: float = 2_592_000) -> Archive:
        """The archive of the topic: what is published from now on is kept there for `retention` seconds."""
        from postroad.bus.archive import Archive

        archive = Archive(self, topic, fifo=fifo, retention=retention)
        self._archives.add(archive)
        return archive

    def agents(
        self,
        *,
        dispatch_delay: float | None = None,
        retention: float = 604_800,
        max_receives: int = 5,
        visibility: float = 30,
        validate: bool = True,
        stream: str = "agent-events",
    ) -> Agents:
        """The agents of this store: who listens to whom, and what waits for each."""
        from postroad.agents import Agents
        from postroad.agents.model import checked
        from postroad.agents.tables import REJECTED_QUEUE, rejects

        settings = checked(
            dispatch_delay=dispatch_delay,
            retention=retention,
            max_receives=max_receives,
            visibility=visibility,
            validate=validate,
            stream=stream,
        )

        def rejected() -> Queue:
            # A function may send to the queue, but neither make it nor look at its settings.
            try:
                return self.queue(REJECTED_QUEUE)
            except QueueNotFound:
                return self.create_queue(rejects())

        store, opened = self._installation.agent_store(settings, rejected)
        return Agents(store, opened, settings, self.clock)

    def check_agents(self, mover: Mover = "any") -> bool:
        """Whether agents are set up here; `ConfigurationError` names what of it is missing.

        Args:
            mover: Who is to move events from the stream into the lanes. `"functions"` asks whether functions of AWS do,
                `"any"` whether those or a runner do; `"runner"` asks for neither, since the caller is about to run one.
        """
        return self._installation.check_agents(mover)

    def queue_tags(self) -> QueueTags | None:
        """Signs of life on queues, for a store that removes no abandoned ones by itself; None elsewhere."""
        return self._installation.queue_tags()

    def items(self) -> Items:
        """Small values under conditional writes."""
        return self.ports.items

    def journal(self) -> Journal:
        """What happened to tasks and jobs, appended once and read in eight orders."""
        return self.ports.journal

    def blobs(self) -> Blobs | None:
        """The place for large bodies; None where none is configured."""
        return self.ports.blobs

    def site(self) -> Site:
        """This store as a place for a topology to stand on, seen once."""
        return self._installation.site()

    def audit_log(self) -> AuditLog | None:
        """The record of who changed what here; None in memory, which nothing outlives, unless a file is named."""
        from postroad.operations.audit import AuditLog
        from postroad.settings import audit_is_named, audit_path

        is_kept = self.kind != "memory" or audit_is_named()
        return AuditLog(audit_path(self.url), clock=self.clock) if is_kept else None

    def transaction(self) -> AbstractContextManager[None]:
        """Let all writes of this thread inside the block commit together, or `NotSupported` (see the traits)."""
        return self._installation.transaction()

    def check(self) -> None:
        """Answer quietly when the store can be reached and written, else raise why not."""
        self._installation.check()

    def compact(self, *, rebuild: bool = False, progress: Callable[[Compaction], None] | None = None) -> Compaction:
        """Give the disk what the embedded file no longer needs, in short steps while others use it.

        Args:
            rebuild: Write a file of an earlier version anew even if it holds more than 128 MiB of data; everybody who
                writes waits meanwhile, for a second per 100 MB or so.
            progress: Called after each step.

        Raises:
            NotSupported: The backend has no file, or the file needs `rebuild`.
            StorageFull: The disk has no room even for a short step.
        """
        return self._installation.compact(rebuild=rebuild, progress=progress)

    def close(self) -> None:
        """Give everything back, the buses first; closing twice changes nothing."""
        for bus in list(self._buses):
            bus.close()
        for archive in list(self._archives):
            archive.stop()
        for port in self._replaced:
            if (close := getattr(port, "close", None)) is not None:
                close()
        self._installation.close()

    def _overflowing(self, queue: Queue, blobs: Blobs | None) -> Queue:
        return queue if blobs is None else OverflowingQueue(queue, blobs, clock=self.clock, pruning=self._pruning)

    def _blobs_for(self, overflow: Overflow | None) -> Blobs | None:
        """Where large bodies go: to the blobs unless told otherwise."""
        if overflow not in (None, "blobs", "fail"):
            raise ConfigurationError(f"overflow: {overflow!r} is neither 'blobs' nor 'fail'", field="overflow")
        blobs = None if overflow == "fail" else self.blobs()
        if blobs is None and overflow == "blobs":
            raise ConfigurationError(
                "overflow: this backend has no blobs",
                field="overflow",
                remedy="Name a bucket in the url: aws://region?bucket=NAME.",
            )
        return blobs

    async def aclose(self) -> None:
        """Close without blocking the loop."""
        from postroad.receiving.asynchrony import in_thread

        await in_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
