"""Which messages go into the next call: of each key one at a time, in order, and nothing behind a failure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from postroad.outbox.dispatching.messages import ClaimedRow, Key, Unbuildable
from postroad.outbox.dispatching.publisher import Sent, Verdict, judge
from postroad.queues import OutgoingMessage

Build = Callable[[ClaimedRow], OutgoingMessage]


@dataclass(slots=True, eq=False)
class Run:
    """The claimed rows of one key, in order, and until when they are ours by our own clock."""

    key: Key
    rows: deque[ClaimedRow]
    until: float


@dataclass(frozen=True, slots=True)
class Call:
    """Messages that travel together, each with its row and the run it came from."""

    entries: list[tuple[Run, ClaimedRow, OutgoingMessage]] = field(default_factory=list)

    @property
    def messages(self) -> list[OutgoingMessage]:
        return [message for _, _, message in self.entries]


@dataclass(slots=True)
class Outcome:
    """What is known about rows: verdicts, and rows that go back as they were."""

    judged: list[tuple[ClaimedRow, Verdict]] = field(default_factory=list)
    untouched: list[ClaimedRow] = field(default_factory=list)


class Plan:
    """All claimed rows that are not settled. A key is either ready for a call or in one."""

    def __init__(self, build: Build, *, publish_batch: int, atomic: bool) -> None:
        self._build = build
        self._most = publish_batch
        self._atomic = atomic
        self._ready: deque[Run] = deque()
        self._flying: set[Run] = set()

    @property
    def ready(self) -> int:
        """Keys that wait for a call."""
        return len(self._ready)

    @property
    def empty(self) -> bool:
        """Whether nothing is claimed."""
        return not self._ready and not self._flying

    def waiting(self) -> Iterable[Run]:
        """The runs that wait for a call."""
        return self._ready

    def runs(self) -> Iterable[Run]:
        """All runs, whether in a call or not."""
        yield from self._ready
        yield from self._flying

    def add(self, rows: Sequence[ClaimedRow], *, until: float) -> None:
        """Take in what a claim gave: the rows of a key in order."""
        runs: dict[Key, Run] = {}
        for row in rows:
            if row.key not in runs:
                runs[row.key] = Run(row.key, deque(), until)
            runs[row.key].rows.append(row)
        self._ready.extend(runs.values())

    def next_call(self) -> tuple[Call, Outcome]:
        """The next call, empty when no key is ready; and the outcome of rows of which no message can be made."""
        call, outcome = Call(), Outcome()
        while self._ready and len(call.entries) < self._most:
            self._take(self._ready.popleft(), call, outcome)
        return call, outcome

    def finish(self, call: Call, verdicts: Sequence[Verdict]) -> Outcome:
        """Take in what became of a call; keys whose message was sent are ready again."""
        outcome = Outcome()
        stopped: set[Run] = set()
        for (run, row, _), verdict in zip(call.entries, verdicts, strict=True):
            outcome.judged.append((row, verdict))
            if not isinstance(verdict, Sent):
                stopped.add(run)
        for run in dict.fromkeys(run for run, _, _ in call.entries):
            self._land(run, outcome, stopped=run in stopped)
        return outcome

    def drop(self, runs: Iterable[Run]) -> list[ClaimedRow]:
        """Forget runs that wait for a call; their rows."""
        gone = set(runs)
        rows = [row for run in self._ready if run in gone for row in run.rows]
        self._ready = deque(run for run in self._ready if run not in gone)
        return rows

    def stop(self, keys: Collection[Key]) -> list[ClaimedRow]:
        """Publish nothing more of these keys; their rows that are not in a call."""
        if not keys:
            return []
        rows = self.drop([run for run in self._ready if run.key in keys])
        for run in self._flying:
            if run.key in keys:
                rows.extend(run.rows)
                run.rows.clear()
        return rows

    def give_back(self) -> Outcome:
        """Let go of all rows that are not in a call."""
        return Outcome(untouched=self.stop({run.key for run in self.runs()}))

    def _take(self, run: Run, call: Call, outcome: Outcome) -> None:
        """Move the run's next message into the call; several, in order, where a call is one step."""
        room = self._most - len(call.entries)
        # A row that failed before travels without those behind it, so that they are not tried in vain with it.
        many = room if self._atomic and run.rows[0].attempts <= 0 else 1
        taken = 0
        while run.rows and taken < many:
            row = run.rows[0]
            try:
                message = self._build(row)
            except Unbuildable as error:
                verdict: Verdict = error.verdict
            except Exception as error:
                verdict = judge(error)
            else:
                call.entries.append((run, run.rows.popleft(), message))
                taken += 1
                continue
            if not taken:
                outcome.judged.append((run.rows.popleft(), verdict))
                outcome.untouched.extend(run.rows)
                return
            break
        self._flying.add(run)

    def _land(self, run: Run, outcome: Outcome, *, stopped: bool) -> None:
        self._flying.discard(run)
        if stopped:
            outcome.untouched.extend(run.rows)
        elif run.rows:
            self._ready.append(run)


def contiguous(rows: Iterable[tuple[int, ClaimedRow]]) -> tuple[list[ClaimedRow], list[ClaimedRow]]:
    """Rows with their places in their keys, sorted by key and place; then those behind a place that is missing."""
    ordered = sorted(rows, key=lambda placed: (placed[1].key, placed[0]))
    kept: list[ClaimedRow] = []
    cut_off: list[ClaimedRow] = []
    for _, group in groupby(ordered, key=lambda placed: placed[1].key):
        for expected, (place, row) in enumerate(group, 1):
            (kept if place == expected else cut_off).append(row)
    return kept, cut_off
