"""A backend in one SQLite file, with a directory of blobs beside it."""

from __future__ import annotations

import fcntl
import os
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from postroad.blobs import DirectoryBlobs
from postroad.clock import Clock
from postroad.engine import Compaction, Engine, compact
from postroad.errors import NotSupported
from postroad.items import SQLiteItems
from postroad.journal import Overflow, SQLiteRecords, StoredJournal
from postroad.queues import Queue, SQLiteQueues
from postroad.settings import default_stage, events_ttl_days
from postroad.streams import SQLiteStreams, Stream
from postroad.topics import SQLiteTopics

if TYPE_CHECKING:
    from postroad.agents import AgentSettings, AgentStore, Mover
    from postroad.ports import QueueTags
    from postroad.topology import Site


_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a file system in memory, not a temporary file
_PREFIX: Final = "postroad-memory"
_ESCAPES: Final = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})


class Scratch:
    """A directory that is removed on close, at the end of the process, or after a crash by the next process.

    A lock on a file beside it shows that its owner lives.
    """

    def __init__(self) -> None:
        place = _MEMORY if os.access(_MEMORY, os.W_OK) else _temporary()
        mine = f"{_PREFIX}-{os.getuid()}-"
        _remove_abandoned(place, mine)
        lock, path = _locked(place, mine)
        self.path = path.with_suffix("")
        self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove the directory; closing twice changes nothing."""
        self._remove()


def _temporary() -> Path:
    import tempfile

    return Path(tempfile.gettempdir())


def _locked(place: Path, prefix: str) -> tuple[int, Path]:
    """Make a lock file and lock it, unless another process has removed it as abandoned."""
    while True:
        path = place / f"{prefix}{uuid.uuid4().hex}.lock"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return file, path
        os.close(file)


def _remove_abandoned(place: Path, prefix: str) -> None:
    for path in place.glob(f"{prefix}*.lock"):
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clear(path.with_suffix(""))
            finally:
                os.close(file)


def _remove(directory: Path, lock: int, owner: int) -> None:
    # A forked child that ends, or drops its copy, must not take the directory from its parent.
    if os.getpid() == owner:
        _clear(directory)
        os.close(lock)


def _clear(directory: Path) -> None:
    import shutil  # only stores in memory need it, and it loads three compressors

    shutil.rmtree(directory, ignore_errors=True)
    directory.with_suffix(".lock").unlink(missing_ok=True)


class SQLiteInstallation:
    """Everything in one file; without a path, in a file of this process that is removed on close."""

    stage_prefix = ""
    bus_topics = None

    def __init__(self, path: Path | None, *, clock: Clock, trail_keep: int) -> None:
        self.stage = default_stage()
        # Read before the file is opened, so that a wrong value leaves nothing behind.
        ttl_days = events_ttl_days()
        self._scratch = Scratch() if path is None else None
        self.kind = "sqlite" if self._scratch is None else "memory"
        place = path if self._scratch is None else self._scratch.path / "memory.db"
        assert place is not None
        self._engine = engine = Engine(place, clock=clock, durable=self._scratch is None)
        engine.place = self._scratch
        self.transaction, self.together, self.check = engine.transaction, engine.together, engine.check
        path = self._engine.path
        self.url = "sqlite:///" + str(path).translate(_ESCAPES) if self._scratch is None else "memory://"
        try:
            self.queues = SQLiteQueues(self._engine, trail_keep=trail_keep)
            self.topics = SQLiteTopics(self._engine, self.queues)
            self.streams = SQLiteStreams(self._engine)
            self.items = SQLiteItems(self._engine)
            records = SQLiteRecords(self._engine)
            blobs = path.with_name(f"{path.name}.blobs")
            self.blobs = DirectoryBlobs(blobs, clock, read_only=self._engine.read_only)
        except BaseException:
            self._close_file()
            raise
        self.journal = StoredJournal(records, Overflow(self.blobs), clock=clock, ttl_days=ttl_days)

    def queue_tags(self) -> QueueTags | None:
        """Return None: the store itself removes abandoned queues."""
        return None

    def agent_store(self, settings: AgentSettings, rejected: Callable[[], Queue]) -> tuple[AgentStore, Stream]:
        from postroad.agents.sqlite.store import SQLiteAgentStore
        from postroad.agents.tables import STREAM_RETENTION_HOURS, STREAM_SHARDS

        stream = self.streams.stream(settings.stream, shards=STREAM_SHARDS, retention=STREAM_RETENTION_HOURS * 3600)
        return SQLiteAgentStore(self._engine, stream, rejected, settings, durable=self._engine.durable), stream

    def check_agents(self, mover: Mover) -> bool:
        """Return True: agents need nothing but the store, and `postroad up` moves their events."""
        return True

    def site(self) -> Site:
        from postroad.topology.sqlite import EmbeddedSite

        return EmbeddedSite(self.queues, self.topics, self.streams, self.items, self._engine.transaction)

    def compact(self, *, rebuild: bool, progress: Callable[[Compaction], None] | None) -> Compaction:
        if self._scratch is not None:
            raise NotSupported("memory has no file that outlives it; there is nothing to compact")
        return compact(self._engine, rebuild=rebuild, progress=progress)

    def close(self) -> None:
        self.blobs.close()
        self._close_file()

    def _close_file(self) -> None:
        self._engine.close()
        if self._scratch is not None:
            self._scratch.close()
