"""What a dispatcher decides: which messages go into a call, what it writes about each row, and when it pauses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from postroad.outbox.dispatching import publisher
from postroad.outbox.dispatching.config import DispatcherConfig
from postroad.outbox.dispatching.store import ClaimedRow, DispatchStore, Key, Settlement
from postroad.outbox.rows import FAILED, PENDING, SENT
from postroad.queues import OutgoingMessage

Build = Callable[[ClaimedRow], OutgoingMessage]


@dataclass(slots=True, eq=False)
class Run:
    """The claimed rows of one key, in order, and the monotonic time at which their leases end."""

    key: Key
    rows: deque[ClaimedRow]
    until: float


@dataclass(frozen=True, slots=True)
class Call:
    """Messages that are published together, each with its row and the run it came from."""

    entries: list[tuple[Run, ClaimedRow, OutgoingMessage]] = field(default_factory=list)

    @property
    def messages(self) -> list[OutgoingMessage]:
        return [message for _, _, message in self.entries]


@dataclass(slots=True)
class Outcome:
    """The verdicts on rows, and rows that are released unchanged."""

    verdicts: list[tuple[ClaimedRow, publisher.Verdict]] = field(default_factory=list)
    untouched: list[ClaimedRow] = field(default_factory=list)


class Plan:
    """The claimed rows that are not settled. A key is either ready for a call or in one.

    A call holds one message of each key, or several in order where a call is atomic, and none behind a failed row.
    """

    def __init__(self, build: Build, *, publish_batch: int, atomic: bool) -> None:
        self._build = build
        self._most = publish_batch
        self._atomic = atomic
        self.ready: deque[Run] = deque()
        """Runs that wait for a call."""
        self._flying: set[Run] = set()

    @property
    def empty(self) -> bool:
        """Whether no row is claimed."""
        return not self.ready and not self._flying

    def runs(self) -> Iterable[Run]:
        """Return all runs, whether in a call or not."""
        yield from self.ready
        yield from self._flying

    def add(self, rows: Sequence[ClaimedRow], *, until: float) -> None:
        """Add the rows of a claim, which come in the order of their keys."""
        runs: dict[Key, Run] = {}
        for row in rows:
            if row.key not in runs:
                runs[row.key] = Run(row.key, deque(), until)
            runs[row.key].rows.append(row)
        self.ready.extend(runs.values())

    def next_call(self) -> tuple[Call, Outcome]:
        """Return the next call, empty if no key is ready, and the outcome of rows of which no message can be made."""
        call, outcome = Call(), Outcome()
        while self.ready and len(call.entries) < self._most:
            self._take(self.ready.popleft(), call, outcome)
        return call, outcome

    def finish(self, call: Call, verdicts: Sequence[publisher.Verdict]) -> Outcome:
        """Return the outcome of a call; keys whose message was sent are ready again."""
        outcome = Outcome()
        stopped: set[Run] = set()
        for (run, row, _), verdict in zip(call.entries, verdicts, strict=True):
            outcome.verdicts.append((row, verdict))
            if not isinstance(verdict, publisher.Sent):
                stopped.add(run)
        for run in dict.fromkeys(run for run, _, _ in call.entries):
            self._flying.discard(run)
            if run in stopped:
                outcome.untouched.extend(run.rows)
            elif run.rows:
                self.ready.append(run)
        return outcome

    def drop(self, runs: Iterable[Run]) -> list[ClaimedRow]:
        """Remove runs that wait for a call, and return their rows."""
        gone = set(runs)
        rows = [row for run in self.ready if run in gone for row in run.rows]
        self.ready = deque(run for run in self.ready if run not in gone)
        return rows

    def stop(self, keys: Collection[Key]) -> list[ClaimedRow]:
        """Publish nothing more of these keys, and return their rows that are not in a call."""
        if not keys:
            return []
        rows = self.drop([run for run in self.ready if run.key in keys])
        for run in self._flying:
            if run.key in keys:
                rows.extend(run.rows)
                run.rows.clear()
        return rows

    def _take(self, run: Run, call: Call, outcome: Outcome) -> None:
        """Move the run's next message into the call; several, in order, where calls are atomic."""
        room = self._most - len(call.entries)
        # A row that failed before is published without those behind it, since it will probably fail again.
        many = room if self._atomic and run.rows[0].attempts <= 0 else 1
        taken = 0
        while run.rows and taken < many:
            row = run.rows[0]
            try:
                message = self._build(row)
            except publisher.Unbuildable as error:
                verdict: publisher.Verdict = error.verdict
            except (Exception, SystemExit) as error:
                verdict = publisher.verdict_of(error)
            else:
                call.entries.append((run, run.rows.popleft(), message))
                taken += 1
                continue
            if not taken:
                outcome.verdicts.append((run.rows.popleft(), verdict))
                outcome.untouched.extend(run.rows)
                return
            break
        self._flying.add(run)


def settlement(row: ClaimedRow, verdict: publisher.Verdict, config: DispatcherConfig, chance: float) -> Settlement:
    """Decide by the verdict, the row's attempts and the settings; `chance` is the jitter, from 0 to 1."""
    match verdict:
        case publisher.Sent():
            return Settlement(row, "sent", SENT)
        case publisher.Rejected(error):
            return Settlement(row, "failed", FAILED, error)
        case publisher.Tried(error):
            attempts = max(row.attempts, 0) + 1
            if attempts >= config.retry_max:
                return Settlement(row, "failed", FAILED, error)
            return Settlement(row, "retried", PENDING, error, config.pause(attempts, chance=chance))
        case publisher.TargetDown(error):
            return Settlement(row, "held", PENDING, error)
        case publisher.Untried():
            return released(row)


def released(row: ClaimedRow) -> Settlement:
    """Return the settlement that releases the row unchanged."""
    return Settlement(row, "held", PENDING)


_LONGEST_PAUSE = 60.0


class Target:
    """Follows the verdicts of calls, pauses while the target refuses everything, and stores why.

    The first pause takes `first_pause` seconds, each further one twice as long, up to a minute.
    """

    def __init__(self, store: DispatchStore, log: Callable[..., None], *, first_pause: float) -> None:
        self._store = store
        self._log = log
        self._first_pause = self._next_pause = first_pause
        self._unsaved: tuple[str | None, float] | None = None
        self._answered = False
        self._probes_at: float | None = None
        self.error: str | None = None

    @property
    def paused(self) -> bool:
        """Whether it refused everything, and no message was sent since."""
        return self._probes_at is not None

    @property
    def probes_at(self) -> float:
        """The monotonic time at which one message may probe; 0 while the target is available."""
        return self._probes_at or 0.0

    def allows(self, now: float, rows: int) -> int:
        """Return how many rows may be claimed: none during the pause, one to probe after it, else all."""
        if not self.paused:
            return rows
        return 1 if now >= self.probes_at else 0

    def observe(self, verdicts: Sequence[publisher.Verdict], now: float) -> bool:
        """Follow the verdicts of a call, and return whether everything has to stop."""
        down = next((verdict for verdict in verdicts if isinstance(verdict, publisher.TargetDown)), None)
        if down is not None:
            seconds = self._pause(now, down.retry_after)
            self.error = down.error
            self._unsaved = down.error, seconds
            self._log("outbox_target_unavailable", error=down.error, pause=round(seconds, 3))
        elif now >= self.probes_at and any(isinstance(verdict, publisher.Sent) for verdict in verdicts):
            if self.paused:
                self._log("outbox_target_back")
            self._resume()
            # The first success of all clears the error that an earlier dispatcher may have left.
            if not self._answered or self.error is not None:
                self._unsaved = None, 0.0
            self._answered, self.error = True, None
        elif now >= self.probes_at:
            # The probe failed in another way, which does not mean that the target is down: the next one may try.
            self._resume()
        return down is not None

    def save(self) -> None:
        if self._unsaved is not None:
            error, pause = self._unsaved
            self._store.set_target_error(error, pause=pause)
            self._unsaved = None

    def _pause(self, now: float, retry_after: float | None) -> float:
        """Pause and return the seconds: those that the target asks for, else ours, doubled each time.

        Calls that were under way when the pause began do not make it longer.
        """
        if now < self.probes_at:
            return self.probes_at - now
        ours, self._next_pause = self._next_pause, max(self._first_pause, min(self._next_pause * 2, _LONGEST_PAUSE))
        seconds = retry_after or ours
        self._probes_at = now + seconds
        return seconds

    def _resume(self) -> None:
        self._probes_at, self._next_pause = None, self._first_pause
