"""The embedded engine: one SQLite file, written by whichever thread finds it free, for all that wait.

A thread that wants to write puts its work on the list. If nobody leads, it leads: it takes everything on the list,
runs it in one transaction and commits once (group commit). Meanwhile others add to the list; the first of them leads
next. There is no writer thread to hand over to. Work that must survive a power cut waits for the disk after its commit,
while the next leader writes already. Nothing but leases and acks waits for no disk: losing it means a redelivery."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from postroad.clock import SYSTEM_CLOCK, Clock, microseconds
from postroad.engine.disk import Disk, Reserve
from postroad.engine.failures import SIGNS_OF_DAMAGE, explain, translate
from postroad.engine.file import close_pair, make_file, open_pair, resolved
from postroad.engine.forks import guard, mark_inherited
from postroad.engine.listeners import Listener, Listeners, Watch
from postroad.engine.read_only import ReadOnlyFile, may_write
from postroad.engine.schema import Schema, migrate, part_of, read_salt
from postroad.engine.transaction import Book, Books, Transaction
from postroad.engine.turns import Request, Turns
from postroad.engine.upkeep import Checkpoints
from postroad.errors import ConfigurationError, PostroadError, StorageDamaged, StorageFull
from postroad.telemetry import get_logger

T = TypeVar("T")


class Engine:
    """One embedded file, shared by the threads of this process and by other processes."""

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
        self._unusable: str | None = None
        self._looked_at: ReadOnlyFile | None = None
        self._reading = threading.Lock()
        self._forking: Request | None = None
        self._prepared: set[str] = set()
        self._books = Books()
        make_file(path)
        self._open()
        self.monotonic_us, self.now_us = microseconds(clock)
        self._listeners = Listeners(path, self._data_version, shared=durable)
        guard(self)
        try:
            self.salt: int = self.read(read_salt)
        except BaseException:
            self.close()
            raise

    def prepare(self, schema: Schema, *, after_reboot: Callable[[Transaction], None] | None = None) -> None:
        """Make or migrate the tables of one part; when the machine was booted since, let it mend its times."""
        if schema.part in self._prepared:
            return
        version, boot = self.read(lambda connection: part_of(connection, schema, self.path))
        if version == len(schema.steps) and (self.read_only or boot == self.clock.boot_id()):
            self._prepared.add(schema.part)
            return

        def work(tx: Transaction) -> None:
            rebooted = migrate(tx.connection, schema, self.clock.boot_id(), self.path)
            if rebooted and after_reboot is not None:
                after_reboot(tx)

        self.write(work, relieves=True)
        self._prepared.add(schema.part)

    def keep(self, book: Book) -> None:
        """Let the book write its numbers into every transaction before the commit."""
        self._books.keep(book)

    def write(
        self,
        work: Callable[[Transaction], T],
        *,
        durable: bool = True,
        relieves: bool | None = None,
        removes: bool = False,
    ) -> T:
        """Run the work in a transaction, shared with whatever else waits, and return once it is committed.

        The work may run more than once, so it touches nothing but its transaction. Work that relieves the file, as
        leases do, may use some of the room that is kept for a full disk; what removes something may use all of it.
        """
        self._check_writable()
        if self._joined is not None and self._joined_by == threading.get_ident():
            return self._join(self._joined, work)
        if relieves is None:
            relieves = not durable
        leaves = 0 if removes else 4 if not relieves else 2 if durable else 1
        request = Request(work, durable=durable, leaves=leaves)
        interruption: BaseException | None = None
        try:
            if self._turns.join(request):
                self._run(request.group)
                self._bring_to_disk(request)
        finally:
            # Ctrl-C may arrive at any call: the turn is ended whatever interrupts, and not through a call of its own.
            ended = request.finished and not request.group
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
            # Nobody waited for it: the leader was interrupted, or had begun without need of the disk.
            with self._own_turn():
                self._disk.sync()
        return request.result  # type: ignore[no-any-return]  # it is what `work` returned

    def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run a short read of what is committed, beside the writer."""
        self._check_usable()
        if self._joined is not None and self.in_transaction:
            self._books.store(self._joined)
            return self._look(work, self._joined.connection)
        with self._reading:
            # Whoever closed it had to wait for the lock too.
            self._check_usable()
            if self._looked_at is not None:
                return self._looked_at.read(work)
            return self._look(work, self._reader)

    def _look(self, work: Callable[[apsw.Connection], T], connection: apsw.Connection) -> T:
        try:
            return work(connection)
        except (apsw.Error, *SIGNS_OF_DAMAGE) as error:
            raise explain(error, connection, self.path) from error

    @property
    def read_only(self) -> bool:
        """Whether this process may look at the file and not write to it."""
        return self._looked_at is not None

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside a `transaction` block."""
        return self._joined_by == threading.get_ident()

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Let all writes of this thread inside the block commit together, or not at all.

        Without `durable` nobody waits for the disk: what is lost to a power cut must be done again by itself.
        """
        self._check_writable()
        if self.in_transaction:
            yield
            return
        with self._own_turn() as turn:
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
                raise undone from error
            finally:
                self._joined = self._joined_by = None
            self._resolve()
            self._wake(tx)
            self._turns.pass_on(turn)
            if durable or tx.durable:
                self._disk.sync()
            self._listeners.wake_others()

    def alone(self, work: Callable[[apsw.Connection], None]) -> None:
        """Run the work outside of any transaction while nobody else of this process writes, then cut the log."""
        with self._own_turn():
            try:
                work(self._writer)
            except apsw.Error as error:
                raise translate(error, self.path, system_errno=self._writer.system_errno) from error
            self._checkpoints.cut()

    @property
    def news(self) -> int:
        """Grows whenever another process may have committed."""
        return self._listeners.news

    def listen(self, *channels: str) -> contextlib.AbstractContextManager[Listener]:
        """Hear when somebody, in any process, touches one of the channels."""
        self._check_usable()
        return self._listeners.listen(*channels)

    def watch(self, call: Callable[[bool], None], *channels: str) -> contextlib.AbstractContextManager[Watch]:
        """Have `call` called, on any thread, when somebody touches one of the channels (True) or may have (False)."""
        self._check_usable()
        return self._listeners.watch(call, *channels)

    def check(self) -> None:
        """Raise why nothing could be written that must survive, if that is so."""
        self._check_usable()
        self._disk.expect_in_place()
        self._disk.expect_to_keep()
        self.write(lambda tx: None, durable=False, relieves=False)

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
        self._forking = Request(None, durable=True)
        self._turns.join(self._forking)
        self._reading.acquire()
        self._close_file()

    def after_fork_in_parent(self) -> None:
        """Open the file again and go on."""
        if self._forking is None:
            return
        try:
            self._disk.expect_same_file()
            self._open()
        except StorageDamaged as error:
            # The disk remembers, and refuses whoever comes.
            get_logger("engine").error("engine_file_displaced", error=str(error))
        except PostroadError as error:
            self._unusable = f"{self.path}: it could not be opened again after a fork: {error}"
        forking, self._forking = self._forking, None
        self._reading.release()
        self._turns.finish(forking)

    def after_fork_in_child(self) -> Sequence[object]:
        """Refuse use: a child opens its own, unless the parent forked in the middle of a transaction."""
        still_open = self._unusable is None and self._forking is None
        self._unusable = f"{self.path}: this backend was opened before fork(); a child opens its own with connect()"
        self._listeners.abandon()
        if still_open:
            mark_inherited(self.path)
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
            self._reserve.give_all()
            self._open_for_writing()

    def _open_for_writing(self) -> None:
        self._writer, self._reader = open_pair(self.path, self._disk)
        self._checkpoints.follow(self._writer)
        self._books.drop()
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
        if self._disk.displaced:
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
        if self._turns.leads(request):
            self._resolve()
        self._turns.finish(request)

    def _join(self, tx: Transaction, work: Callable[[Transaction], T]) -> T:
        """Run the work inside this thread's transaction; if it fails, only its own changes are taken back."""
        if not self._writer.in_transaction:
            # SQLite ends a transaction by itself when the disk is full.
            raise StorageFull(f"{self.path}: the disk was full and this transaction was rolled back")
        self._books.store(tx)
        mark = tx.mark()
        self._writer.execute("SAVEPOINT joined")
        try:
            result = work(tx)
        except BaseException as error:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK TO joined")
            self._books.drop()
            tx.back_to(mark)
            if isinstance(error, (apsw.Error, *SIGNS_OF_DAMAGE)):
                raise explain(error, self._writer, self.path) from error
            raise
        finally:
            if self._writer.in_transaction:
                self._writer.execute("RELEASE joined")
        return result

    def _bring_to_disk(self, leader: Request) -> None:
        """Let the next one lead, and wait for the disk for all of the group that have to."""
        if leader.durable:
            self._turns.pass_on(leader)
            if any(request.durable and request.error is None for request in leader.group):
                self._sync_for(leader)
        # Many may wake: whoever writes does not wait for the disk behind them.
        self._listeners.wake_others()

    def _sync_for(self, leader: Request) -> None:
        try:
            self._disk.sync()
        except PostroadError:
            # The others find out when they sync for themselves; a leader that failed has an error of its own.
            if leader.error is None:
                raise
            return
        for request in leader.group:
            request.on_disk = True

    def _run(self, group: list[Request]) -> None:
        """Run the group in one transaction; if one of them fails, each in a transaction of its own."""
        try:
            self._run_together(group)
        except Exception as error:
            if len(group) == 1:
                self._run_again(group, error)
                return
            for request in tuple(group):
                self._run([request])

    def _run_again(self, group: list[Request], error: Exception) -> None:
        """Make room for the one request and run it again if the disk was full; else let it fail with the error."""
        (request,) = group
        if isinstance(error, StorageFull):
            self._checkpoints.make_room(adds=request.leaves == 4)
            try:
                self._run_together(group)
            except Exception as again:
                error = again
            else:
                return
        request.error, request.finished = error, True

    def _run_together(self, group: list[Request]) -> None:
        """Run the requests in one transaction, or raise with none of them done."""
        tx = Transaction(self._writer, requests=group, leaves=max([request.leaves for request in group]))
        try:
            self._begin(tx)
            for request in group:
                self._run_one(tx, request)
            self._commit(tx)
        except Exception as error:
            undone = self._undone(tx, error)
            if isinstance(undone, SIGNS_OF_DAMAGE):
                undone = explain(undone, self._writer, self.path)
            raise undone from error
        self._resolve()
        self._wake(tx)

    def _run_one(self, tx: Transaction, request: Request) -> None:
        if request.work is None:
            return
        if request.durable:
            self._disk.expect_to_keep()
        tx.durable = request.durable
        request.result = request.work(tx)
        if tx.durable and not request.durable:
            self._disk.expect_to_keep()
            request.durable = True

    def _begin_alone(self) -> Transaction:
        """Begin a transaction that adds something, or raise with none begun."""
        tx = Transaction(self._writer, leaves=4)
        try:
            self._begin(tx)
        except Exception as error:
            undone = self._undone(tx, error)
            if not isinstance(undone, StorageFull):
                raise undone from error
            self._checkpoints.make_room(adds=True)
            try:
                self._begin(tx)
            except Exception as again:
                raise self._undone(tx, again) from again
        return tx

    def _begin(self, tx: Transaction) -> None:
        self._current, self._writing_by = tx, threading.get_ident()
        tx.news = self._listeners.news
        self._writer.execute("BEGIN IMMEDIATE")
        if tx.leaves == 4:
            self._reserve.require(self._writer)

    def _commit(self, tx: Transaction) -> None:
        tx.finish()
        self._books.store(tx)
        if tx.leaves:
            look = self._checkpoints.is_look_due()
            if look or tx.leaves == 4:
                self._reserve.require_growth(self._writer, quarters=tx.leaves, look=look)
        tx.committing = True
        self._writer.execute("COMMIT")

    def _undone(self, tx: Transaction, error: Exception) -> Exception:
        """Roll back, and name the error in Postroad's words."""
        tx.committing = False
        self._resolve()
        if isinstance(error, apsw.Error | OSError):
            return translate(error, self.path, system_errno=self._writer.system_errno)
        return error

    def _resolve(self) -> None:
        """Settle the current transaction: committed or rolled back. Interrupted, it is called again and goes on."""
        tx = self._current
        if tx is None:
            return
        if tx.committing and not self._writer.in_transaction:
            for request in tx.requests:
                request.finished = True
            self._books.committed(tx)
            tx.committed()
        else:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self._books.drop()
            tx.rolled_back()
        self._current = self._writing_by = None

    def _wake(self, tx: Transaction) -> None:
        """Wake others, and copy the log when it is long. Nothing that fails here makes the commit undone."""
        try:
            if tx.channels:
                self._listeners.wake(tx.channels)
            self._checkpoints.run_if_due()
        except Exception as error:
            get_logger("engine").warning("engine_after_commit_failed", error=str(error))

    def _data_version(self) -> int:
        try:
            # Whoever only waits would wait for ever beside a file that was replaced.
            self._disk.expect_in_place()
            return self.read(lambda connection: int(connection.pragma("data_version")))
        except PostroadError:
            return -1
