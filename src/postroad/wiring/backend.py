"""The Backend: the queues, topics, streams, items, journal and blobs of one store, opened and closed together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self, TypeVar

from postroad.blobs import Blobs
from postroad.errors import ConfigurationError, QueueNotFound
from postroad.items import Items
from postroad.journal import Journal
from postroad.ports import ListedStreams, Overflow, Ports, QueueTags
from postroad.queues import CountingStore, MessageHistory, OverflowingQueue, Pruning, Queue, QueueOverview, QueueSpec
from postroad.streams import Stream
from postroad.topics import OverflowingTopic, Topic

if TYPE_CHECKING:
    # A program that only uses queues does not pay for the import of the bus.
    from postroad.agents import Agents, Mover
    from postroad.bus import Archive, Bus, BusConfig
    from postroad.engine import Compaction
    from postroad.inbox import Inbox, Transaction, Windows
    from postroad.operations import AuditLog
    from postroad.queues import QueueCounters
    from postroad.topology import Site
    from postroad.wiring.aws import AwsInstallation
    from postroad.wiring.sqlite import SQLiteInstallation

T = TypeVar("T")


class Backend:
    """One store, opened by `connect(url)`. Threads may share it; a forked child opens its own.

    Args:
        ports: The adapters that hold the data.
        installation: The SQLite file or the account of AWS behind them.
        joins_writes: Whether writes to all ports inside `transaction()` commit together.
        replaced: The ports of a third party's adapter, which are closed together with this backend.

    Example:
        with postroad.connect("sqlite:///shop.db") as backend:
            backend.create_queue(QueueSpec("orders")).send([OutgoingMessage("1")])
    """

    def __init__(
        self,
        ports: Ports,
        installation: SQLiteInstallation | AwsInstallation,
        *,
        joins_writes: bool,
        replaced: Iterable[object] = (),
    ) -> None:
        self.ports = ports
        self.clock = ports.clock
        self.registry = ports.registry
        self.joins_writes = joins_writes
        self.url = installation.url
        """The address that it was opened with, without secrets."""
        self.kind = installation.kind
        """'memory', 'sqlite' or 'aws', to show to people; code looks at the traits instead."""
        self.stage = installation.stage
        """The stage that it belongs to: that of its address, or `$POSTROAD_STAGE`."""
        self.stage_prefix = installation.stage_prefix
        """The prefix of the names of a stage's shared resources: `dev-` on AWS, nothing elsewhere."""
        self._installation = installation
        self._replaced = tuple(replaced)
        self._pruning = None if ports.blobs is None else Pruning(ports.blobs, ports.clock)
        self._buses: weakref.WeakSet[Bus] = weakref.WeakSet()
        self._archives: weakref.WeakSet[Archive] = weakref.WeakSet()

    def create_queue(self, spec: QueueSpec, *, overflow: Overflow | None = None) -> Queue:
        """Make the queue, or return it if it exists with the same settings.

        Args:
            spec: The name and settings of the queue.
            overflow: 'blobs' to send large bodies through blobs, the default where there are any, or 'fail'.

        Raises:
            QueueExists: It exists with other settings; `differences` names them.
        """
        blobs = self._blobs_for(overflow)
        return self._overflowing(self.ports.queues.create_queue(spec), blobs)

    def update_queue(self, spec: QueueSpec) -> Queue:
        """Change the settings of the queue that `spec` names; its type (FIFO or standard) cannot change."""
        return self._overflowing(self.ports.queues.update_queue(spec), self.blobs())

    def delete_queue(self, name: str) -> None:
        """Remove the queue `name` and its messages."""
        self.ports.queues.delete_queue(name)

    def queue(self, name: str, *, overflow: Overflow | None = None) -> Queue:
        """Return the queue `name`, or raise `QueueNotFound`; `overflow` is as in `create_queue`."""
        blobs = self._blobs_for(overflow)
        return self._overflowing(self.ports.queues.queue(name), blobs)

    def queue_spec(self, name: str) -> QueueSpec:
        """Return the settings of the queue `name`."""
        return self.ports.queues.queue_spec(name)

    def queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return self.ports.queues.queues()

    def queue_names(self, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        """Return up to `limit` names of queues that begin with `prefix` and come behind `after`, sorted."""
        queues = self.ports.queues
        if isinstance(queues, CountingStore):
            return queues.names(prefix=prefix, after=after, limit=limit)
        return [name for name in queues.queues() if name > after and name.startswith(prefix)][:limit]

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Return settings and contents of the queues `names`, by default of all; queues that are gone are left out."""
        return self.ports.queues.overviews(names)

    def census(self) -> tuple[list[QueueOverview], QueueCounters | None]:
        """Return all queues, by one read where the store can, and the counters of queues that were deleted since.

        The counters are None where the store does not count.
        """
        queues = self.ports.queues
        return queues.census() if isinstance(queues, CountingStore) else (queues.overviews(), None)

    def sources(self, dead_letters: str) -> list[str]:
        """Return the names of the queues that have `dead_letters` as their dead-letter queue, sorted."""
        return self.ports.queues.sources(dead_letters)

    def topic(self, name: str, fifo: bool = False, *, overflow: Overflow | None = None, create: bool = True) -> Topic:
        """Return the topic of this name, made if it is missing. An ARN is taken as it is, without a call.

        Args:
            name: The name, or on AWS the ARN of a topic or event bus.
            fifo: Whether the topic keeps the order of each group.
            overflow: 'blobs' to send large bodies through blobs, the default where there are any, or 'fail'.
            create: False to raise if the topic does not exist.

        Raises:
            TopicNotFound: There is no such topic and `create` is False. If the role may not list the topics of AWS,
                the topic is returned unchecked, and publishing to it fails if it does not exist.
        """
        blobs = self._blobs_for(overflow)
        store = self.ports.topics
        topic = store.topic(name, fifo=fifo) if create else store.existing(name, fifo=fifo)
        return topic if blobs is None else OverflowingTopic(topic, blobs, clock=self.clock, pruning=self._pruning)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self.ports.topics.topics()

    def topics_without_subscriptions(self) -> list[str]:
        """Return the names of the topics without subscriptions, sorted."""
        return self.ports.topics.topics_without_subscriptions()

    def stream(self, name: str, shards: int = 4, retention: float = 86_400) -> Stream:
        """Return the stream `name`, made with so many `shards` if it is missing; `retention` is in seconds."""
        return self.ports.streams.stream(name, shards=shards, retention=retention)

    def streams(self) -> list[str]:
        """Return the names of all streams, sorted; none where the store cannot list them."""
        streams = self.ports.streams
        return streams.streams() if isinstance(streams, ListedStreams) else []

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
        """Return the bus of the topic, ready to publish and to receive; `Bus` explains each argument.

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
        """Connect `bus`, which was declared without a backend, and close it together with this backend."""
        topics = self._installation.bus_topics or self.ports.topics
        bus.connect(self, topics.topic)
        self._buses.add(bus)

    def archive(self, topic: str, *, fifo: bool = False, retention: float = 2_592_000) -> Archive:
        """Return the archive of `topic`, FIFO if `fifo`, which keeps events from now on for `retention` seconds."""
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
        """Return the agents of this store.

        Args:
            dispatch_delay: Seconds that an event is held back, so that events of several producers can be merged by
                time; by default `$DISPATCH_DELAY_SECONDS`, else 0.
            retention: Seconds that events are kept for listeners and replays; a week by default.
            max_receives: After how many receives without an ack an event becomes a dead letter.
            visibility: Seconds that a received event stays leased, unless the receiver asks for another time.
            validate: Whether `subscribe` refuses producers that are not registered.
            stream: The stream that events are published to.
        """
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
        """Return whether agents are set up here.

        Args:
            mover: What moves events from the stream to the agents' queues: `"functions"` requires functions on AWS,
                `"any"` those or a runner, and `"runner"` neither, because the caller is about to start one.

        Raises:
            ConfigurationError: A part of the setup is missing; the message names it.
        """
        return self._installation.check_agents(mover)

    def message_history(self) -> MessageHistory | None:
        """Return what the store knows of where its messages are and were; None if it knows nothing, as SQS does."""
        queues = self.ports.queues
        return queues if isinstance(queues, MessageHistory) else None

    def queue_tags(self) -> QueueTags | None:
        """Return the marks that processes leave on their queues; None if the store itself removes abandoned queues."""
        return self._installation.queue_tags()

    def items(self) -> Items:
        """Return the small values that are written under conditions."""
        return self.ports.items

    def journal(self) -> Journal:
        """Return the journal of what happened to tasks and jobs."""
        return self.ports.journal

    def blobs(self) -> Blobs | None:
        """Return the store of large bodies, or None if none is configured."""
        return self.ports.blobs

    def site(self) -> Site:
        """Return this store as a place that a topology is applied to; take a new one for each plan."""
        return self._installation.site()

    def audit_log(self) -> AuditLog | None:
        """Return the audit file of this store; None in memory, unless `$POSTROAD_AUDIT_LOG` names a file."""
        from postroad.operations.audit import AuditLog
        from postroad.settings import audit_is_named, audit_path

        is_kept = self.kind != "memory" or audit_is_named()
        return AuditLog(audit_path(self.url), clock=self.clock) if is_kept else None

    def transaction(self) -> AbstractContextManager[None]:
        """Commit all writes of this thread inside the block together, or raise `NotSupported` (see the traits)."""
        return self._installation.transaction()

    def together(self, unit: Callable[[], T], *, removes: bool = False) -> T:
        """Run a unit whose writes commit together, and share the commit with what other threads write.

        Args:
            unit: A function that changes nothing but this store: it may run more than once, and on any thread. An error
                of a write in it undoes all of it, even if the unit catches the error.
            removes: Whether it only removes something, or writes nothing at all: then it also runs on a full disk.

        Raises:
            NotSupported: The store cannot commit several writes together (see the traits).
        """
        return self._installation.together(unit, removes=removes)

    def check(self) -> None:
        """Raise an error if the store cannot be reached and written."""
        self._installation.check()

    def compact(self, *, rebuild: bool = False, progress: Callable[[Compaction], None] | None = None) -> Compaction:
        """Return unused space of the embedded file to the disk, in short steps while others use it.

        Args:
            rebuild: Rewrite a file of an earlier version even if it holds more than 128 MiB of data; all writers wait
                meanwhile, about a second for each 100 MB.
            progress: A function to call after each step.

        Raises:
            NotSupported: The backend has no file, or the file needs `rebuild`.
            StorageFull: The disk has no room even for a short step.
        """
        return self._installation.compact(rebuild=rebuild, progress=progress)

    def close(self) -> None:
        """Close the buses and then the store; closing twice changes nothing."""
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
        """Return where large bodies go; None if they are refused."""
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
        """Close without blocking the event loop."""
        from postroad.receiving import in_thread

        await in_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
