"""The embedded engine: one SQLite file, written by whichever thread finds it free, on behalf of all that wait.

A thread that wants to write adds its work to a list. If nobody leads, it leads: it takes everything on the list,
runs it in one transaction and commits once (group commit). Meanwhile others add to the list; the first of them leads
next. There is no writer thread to hand work to. Work that must survive a power cut waits for the disk after its commit,
while the next leader already writes. Only leases and acks do not wait for the disk: losing one means a redelivery."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from postroad.clock import SYSTEM_CLOCK, Clock, microseconds
from postroad.engine.disk import Checkpoints, Disk, Reserve
from postroad.engine.failures import SIGNS_OF_DAMAGE, explain, explained, raise_from, translate
from postroad.engine.file import Schema, close_at_forks, close_pair, make_file, open_pair, read_salt, resolved
from postroad.engine.read_only import ReadOnlyFile, may_write
from postroad.engine.transaction import AllCounters, Counters, Request, Transaction, Turns
from postroad.engine.wakeup import Listener, Listeners, Watch
from postroad.errors import ConfigurationError, PostroadError, StorageDamaged, StorageFull
from postroad.telemetry import get_logger

T = TypeVar("T")


class Engine:
    """One embedded file, shared by the threads of this process and by other processes.

    A file that is not `durable` ends with the process: it needs no syncs, no reserve and no wake-ups from others.
    """

    def __init__(self, path: Path, *, clock: Clock = SYSTEM_CLOCK, durable: bool = True) -> None:
        self.path = path = resolved(path)
        self.clock, self.durable = clock, durable
        self.place: object = None  # What must live as long as the file.
        self._turns = Turns()
        self._disk, self._reserve = Disk(path, syncs=durable), Reserve(path, keeps_room=durable)
        self._checkpoints = Checkpoints(self._reserve, self._disk.expect_in_place)
        self._current: Transaction | None = None
        self._writing_by: int | None = None
        self._joined: Transaction | None = None
        self._joined_by: int | None = None
        self._in_unit = False
        self._unit_error: Exception | None = None
        self._unusable: str | None = None
        self._looked_at: ReadOnlyFile | None = None
        self._reading = threading.RLock()  # Only its owner can release it.
        self._forking: Request | None = None
        self._prepared: set[str] = set()
        self._counters = AllCounters()
        make_file(path)
        self._open()
        self.monotonic_us, self.now_us = microseconds(clock)
        self._listeners = Listeners(path, self._data_version, shared=durable)
        close_at_forks(self)
        try:
            self.salt: int = self.read(read_salt)
        except BaseException:
            self.close()
            raise

    def prepare(self, schema: Schema, *, after_reboot: Callable[[Transaction], None] | None = None) -> None:
        """Make or migrate the tables of one part; if the machine was booted since, let the part correct its times."""
        if schema.part in self._prepared:
            return
        version, boot = self.read(lambda connection: schema.stored(connection, self.path))
        if version != len(schema.steps) or not (self.read_only or boot == self.clock.boot_id()):
            self.write(lambda tx: schema.migrate(tx, self.clock.boot_id(), self.path, after_reboot), relieves=True)
        self._prepared.add(schema.part)

    def keep(self, counters: Counters) -> None:
        """Store these counters in every transaction before its commit."""
        self._counters.append(counters)

    def write(
        self,
        work: Callable[[Transaction], T],
        *,
        durable: bool = True,
        relieves: bool | None = None,
        removes: bool = False,
    ) -> T:
        """Run the work in a transaction, shared with other work that waits, and return once it is committed.

        The work may run more than once, so it must change nothing but its transaction. If it `relieves` the file, as
        leases do, it may use some of the disk reserve; if it only `removes` something, all of it.
        """
        self._check_writable()
        if self._joined is not None and self._joined_by == threading.get_ident():
            return self._join(self._joined, work)
        relieves = not durable if relieves is None else relieves
        kept_quarters = 0 if removes else 4 if not relieves else 2 if durable else 1
        request = Request(work, durable=durable, kept_quarters=kept_quarters)
        interruption: BaseException | None = None
        try:
            if self._turns.join(request):
                self._check_writable()  # It may have been closed while this thread waited.
                self._run(request.group)
                self._bring_to_disk(request)
        finally:
            # Ctrl-C may arrive at any call: the turn is ended in any case, and not through a call of its own.
            ended = request.finished and not (request.waits or request.group)
            while not ended:
                try:
                    self._end_turn(request)
                    ended = True
                except BaseException as error:
                    interruption = error
        if interruption is not None:
            raise interruption
        if request.error is not None:
            raise request.error
        if request.durable and not request.on_disk:
            # Its leader was interrupted before the sync, or did not need the disk itself.
            with self._own_turn():
                self._disk.sync()
        return request.result  # type: ignore[no-any-return]  # it is what `work` returned

    def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run a short read of what is committed, beside the writer."""
        self._check_usable()
        if self._joined is not None and self.in_transaction:
            if not self._in_unit:
                self._counters.store(self._joined)
            return explained(work, self._joined.connection, self.path)
        with self._reading:
            # It may have been closed while this thread waited for the lock.
            self._check_usable()
            if self._looked_at is not None:
                return self._looked_at.read(work)
            return explained(work, self._reader, self.path)

    @property
    def read_only(self) -> bool:
        """Whether this process may read the file but not write to it."""
        return self._looked_at is not None

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside a `transaction` block."""
        return self._joined_by == threading.get_ident()

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Let all writes of this thread inside the block commit together, or not at all.

        Without `durable` it does not wait for the disk: a caller must repeat what a power cut undoes.
        """
        self._check_writable()
        if self.in_transaction:
            yield
            return
        with self._own_turn() as turn:
            self._check_writable()
            if durable:
                self._disk.expect_to_keep()
            tx = self._begin_alone()
            try:
                self._joined, self._joined_by = tx, threading.get_ident()
                yield
                if durable or tx.durable:
                    self._disk.expect_to_keep()
                self._commit(tx)
            except Exception as error:
                undone = self._undone(tx, error)
                if isinstance(undone, StorageFull):
                    # The block cannot run again, but the next one may find room.
                    self._checkpoints.make_room(adds=True)
                raise_from(error, undone)
            finally:
                self._joined = self._joined_by = None
            self._resolve()
            self._wake(tx)
            self._turns.pass_on(turn)
            if durable or tx.durable:
                self._disk.sync()
            self._listeners.wake_others()

    def together(self, unit: Callable[[], T], *, removes: bool = False) -> T:
        """Run a unit whose writes commit together or not at all, and share the commit with other work that waits.

        The unit may run more than once, on any thread, so it must change nothing but the file. An error of a write in
        it undoes all of it, even if the unit catches the error. If it only `removes`, it may use all of the reserve.
        """
        if self.in_transaction:
            return unit()

        def work(tx: Transaction) -> T:
            try:
                self._joined, self._joined_by, self._in_unit, self._unit_error = tx, threading.get_ident(), True, None
                result = unit()
            finally:
                self._joined, self._joined_by, self._in_unit = None, None, False
            if self._unit_error is not None:
                raise self._unit_error
            return result

        return self.write(work, removes=removes)

    def alone(self, work: Callable[[apsw.Connection], None]) -> None:
        """Run the work outside of any transaction while no other thread of this process writes, then cut the log."""
        with self._own_turn():
            explained(work, self._writer, self.path)
            self._checkpoints.cut()

    @property
    def news(self) -> int:
        """A number that grows whenever another process may have committed."""
        return self._listeners.news

    def listen(self, *channels: str) -> contextlib.AbstractContextManager[Listener]:
        """Return a listener that is woken when one of the channels is touched, in any process."""
        self._check_usable()
        return self._listeners.listen(*channels)

    def watch(self, call: Callable[[bool], None], *channels: str) -> contextlib.AbstractContextManager[Watch]:
        """Call `call`, on any thread, when one of the channels was touched (True) or may have been (False)."""
        self._check_usable()
        return self._listeners.watch(call, *channels)

    def check(self) -> None:
        """Raise an error if nothing could be written that must survive."""
        self._check_usable()
        self._disk.expect_in_place()
        self._disk.expect_to_keep()
        self.write(lambda tx: self._reserve.expect_room(tx.connection), durable=False, relieves=False)

    def close(self) -> None:
        """Close the file; closing twice changes nothing."""
        if self._unusable is not None:
            return
        if self.in_transaction:
            raise ConfigurationError(f"{self.path}: a backend cannot be closed inside its own transaction")
        self._unusable = f"{self.path}: this backend is closed; open a new one with connect()"
        self._listeners.close()
        with self._own_turn(), self._reading:
            self._close_file()

    def before_fork(self) -> None:
        """Wait for the running turn and close the file, unless the turn is the forking thread's own."""
        if self._unusable is not None or self._writing_by == threading.get_ident():
            return
        forking = Request(None, durable=True)
        try:
            self._turns.join(forking)
            self._reading.acquire()
            self._forking = forking
        except BaseException:
            # Python drops it and forks all the same: the file stays open, as it does in a transaction of this thread.
            with contextlib.suppress(RuntimeError):
                self._reading.release()
            self._turns.finish(forking)
            raise
        self._close_file()
        forking.finished = True

    def after_fork_in_parent(self) -> None:
        """Open the file again and go on."""
        if self._forking is None:
            return
        try:
            self._disk.expect_same_file()
            self._open()
        except StorageDamaged as error:
            # The disk remembers it and refuses every later use.
            get_logger("engine").error("engine_file_displaced", error=str(error))
        except BaseException as error:
            # Python drops what a hook of fork() raises, Ctrl-C included; the other threads must not wait for ever.
            self._unusable = f"{self.path}: it could not be opened again after a fork: {error}"
        forking, self._forking = self._forking, None
        self._reading.release()
        self._turns.finish(forking)

    def after_fork_in_child(self) -> Sequence[object]:
        """Refuse all use, and return the connections that are still open, which this process must never close."""
        still_open = not (self._unusable or self._looked_at or (self._forking and self._forking.finished))
        self._unusable = f"{self.path}: this backend was opened before fork(); a child opens its own with connect()"
        self._listeners.abandon()
        return (self._writer, self._reader) if still_open else ()

    def _open(self) -> None:
        self._looked_at = None if may_write(self.path) else ReadOnlyFile(self.path)
        if self._looked_at is not None:
            return
        try:
            self._open_for_writing()
        except StorageFull:
            # The log and its index need room too, and a clean end had removed both.
            self._reserve.open()
            self._reserve.shrink_to(0)
            self._open_for_writing()

    def _open_for_writing(self) -> None:
        self._writer, busy, self._reader = open_pair(self.path, self._disk)
        self._checkpoints.follow(self._writer, busy)
        self._counters.drop()
        self._reserve.open(self._writer)

    def _close_file(self) -> None:
        if self._looked_at is not None:
            self._looked_at.close()
            return
        self._reserve.close()
        close_pair(self._writer, self._reader, self._disk)

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise ConfigurationError(self._unusable)
        if self._disk.displaced is not None:
            self._disk.expect_in_place()

    def _check_writable(self) -> None:
        self._check_usable()
        if self._looked_at is not None:
            raise self._looked_at.refusal()

    @contextlib.contextmanager
    def _own_turn(self) -> Iterator[Request]:
        request = Request(None, durable=True)
        interruption: BaseException | None = None
        try:
            self._turns.join(request)
            yield request
        finally:
            while True:
                try:
                    self._end_turn(request)
                    break
                except BaseException as error:
                    interruption = error
        if interruption is not None:
            raise interruption

    def _end_turn(self, request: Request) -> None:
        if self._turns.writer is request:
            self._resolve()
        self._turns.finish(request)

    def _join(self, tx: Transaction, work: Callable[[Transaction], T]) -> T:
        """Run the work inside this thread's transaction; if it fails, only its own changes are undone."""
        if not self._writer.in_transaction:
            # SQLite ends a transaction by itself when the disk is full.
            raise StorageFull(f"{self.path}: the disk was full and this transaction was rolled back")
        if self._in_unit:
            try:
                return work(tx)
            except Exception as error:
                self._unit_error = error
                raise
        self._counters.store(tx)
        mark = tx.mark()
        self._writer.execute("SAVEPOINT joined")
        try:
            return work(tx)
        except BaseException as error:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK TO joined")
            self._counters.drop()
            tx.undo(mark)
            if isinstance(error, (apsw.Error, *SIGNS_OF_DAMAGE)):
                raise_from(error, explain(error, self._writer, self.path))
            raise
        finally:
            if self._writer.in_transaction:
                self._writer.execute("RELEASE joined")

    def _bring_to_disk(self, leader: Request) -> None:
        """Let the next one lead, and wait for the disk on behalf of all of the group that need it."""
        if leader.durable:
            self._turns.pass_on(leader)
            if leader.error is None or any(each.durable and each.error is None for each in leader.group):
                try:
                    self._disk.sync()
                except PostroadError:
                    # The others find out when they sync for themselves; a leader that failed has an error of its own.
                    if leader.error is None:
                        raise
                else:
                    for request in leader.group:
                        request.on_disk = True
        # Many may wake: the next writer does not wait for the disk behind them.
        self._listeners.wake_others()

    def _run(self, group: list[Request]) -> None:
        """Run the group in one transaction; if one of them fails, run each in a transaction of its own."""
        try:
            self._run_together(group)
        except Exception as error:
            if len(group) > 1:
                for request in tuple(group):
                    self._run([request])
                return None
            failure = error
            if isinstance(error, StorageFull):
                self._checkpoints.make_room(adds=group[0].kept_quarters == 4)
                try:
                    return self._run_together(group)
                except Exception as again:
                    failure = again
            group[0].error, group[0].finished = failure, True

    def _run_together(self, group: list[Request]) -> None:
        """Run the requests in one transaction, or raise with none of them done."""
        kept_quarters = max([request.kept_quarters for request in group])
        tx = Transaction(self._writer, requests=group, kept_quarters=kept_quarters)
        try:
            self._begin(tx)
            for request in group:
                assert request.work is not None
                if request.durable:
                    self._disk.expect_to_keep()
                tx.durable = request.durable
                request.result = request.work(tx)
                if tx.durable and not request.durable:
                    self._disk.expect_to_keep()
                    request.durable = True
            self._commit(tx)
        except Exception as error:
            undone = self._undone(tx, error)
            raise_from(
                error, explain(undone, self._writer, self.path) if isinstance(undone, SIGNS_OF_DAMAGE) else undone
            )
        self._resolve()
        self._wake(tx)

    def _begin_alone(self) -> Transaction:
        """Begin a transaction that adds something, or raise with none begun."""
        tx = Transaction(self._writer, kept_quarters=4)
        for retries in (1, 0):
            try:
                self._begin(tx)
                break
            except Exception as error:
                undone = self._undone(tx, error)
                if not retries or not isinstance(undone, StorageFull):
                    raise_from(error, undone)
            self._checkpoints.make_room(adds=True)
        return tx

    def _begin(self, tx: Transaction) -> None:
        self._current, self._writing_by = tx, threading.get_ident()
        tx.news, tx.cursor = self._listeners.news, self._writer.cursor()
        tx.cursor.execute("BEGIN IMMEDIATE")
        if tx.kept_quarters == 4:
            self._reserve.require(self._writer)

    def _commit(self, tx: Transaction) -> None:
        tx.finish()
        self._counters.store(tx)
        if tx.kept_quarters and ((look := self._checkpoints.is_look_due()) or tx.kept_quarters == 4):
            self._reserve.require_growth(self._writer, quarters=tx.kept_quarters, look=look)
        tx.committing = True
        tx.cursor.execute("COMMIT")

    def _undone(self, tx: Transaction, error: Exception) -> Exception:
        """Roll back, and return the error as one of Postroad's."""
        tx.committing = False
        self._resolve()
        if isinstance(error, apsw.Error | OSError):
            return translate(error, self.path, system_errno=self._writer.system_errno)
        return error

    def _resolve(self) -> None:
        """Finish the current transaction, committed or rolled back. Interrupted, it is called again and goes on."""
        tx = self._current
        if tx is None:
            return
        if tx.committing and not self._writer.in_transaction:
            for request in tx.requests:
                request.finished = True
            self._counters.committed(tx)
            tx.committed()
        else:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self._counters.drop()
            tx.undo()
        self._current = self._writing_by = None

    def _wake(self, tx: Transaction) -> None:
        """Wake others, and copy the log when it is long. A failure here does not undo the commit."""
        try:
            if tx.channels:
                self._listeners.wake(tx.channels)
            self._checkpoints.run_if_due()
        except Exception as error:
            get_logger("engine").warning("engine_after_commit_failed", error=str(error))

    def _data_version(self) -> int:
        try:
            # A receiver would otherwise wait for ever beside a file that was replaced.
            self._disk.expect_in_place()
            return self.read(lambda connection: int(connection.pragma("data_version")))
        except PostroadError:
            return -1
