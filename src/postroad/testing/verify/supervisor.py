"""The supervisor: starts the processes of a scenario, breaks them as planned, and waits until all has drained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from postroad.testing.verify.nemeses import RunFailed
from postroad.testing.verify.plan import Action, Plan
from postroad.testing.verify.scenario import START_AGAIN, Board, ChildConfig, Role, Scenario, State
from postroad.testing.verify.stores import Opening

if TYPE_CHECKING:
    from postroad.testing.verify.run import Options

_TICK_SECONDS = 0.001
_START_SECONDS = 180.0
_END_SECONDS = 180.0
_PATIENCE_SECONDS = 0.5
"""How long a kill waits for the process that the plan picked, before it takes another one that fits."""
_GIVE_UP_SECONDS = 120.0
"""How long a fault waits for a process that fits at all."""
_TRICKLE_PER_SECOND = 10
_LOOK_SECONDS = 0.2
_LONGEST_DRAIN_SECONDS = 900.0
_RECOVERY_SECONDS, _RECOVERIES_PER_SECOND = 120.0, 20
"""How long a backlog may take to drain once faults and sends are over: this, and a second for each so many messages."""
_TAIL_CHARACTERS = 2_000


@dataclass(slots=True)
class Slot:
    """A place for one process, which is started again whenever it was killed."""

    row: int
    role_name: str
    role: Role
    index: int
    quota: int
    process: subprocess.Popen[bytes] = field(init=False)
    name: str = ""
    starts: int = 0
    resume_at: float | None = None
    ending_since: float | None = None


class Supervisor:
    """All processes of one scenario; setting `stop` ends the run."""

    def __init__(
        self, scenario: Scenario, plan: Plan, opening: Opening, options: Options, stop: threading.Event
    ) -> None:
        self._scenario, self._plan, self._options, self._stop = scenario, plan, options, stop
        self._place, self._history, self._nemeses = opening.place, opening.history, opening.nemeses
        self._slots = _slots(scenario, plan.messages)
        self._directory = Path(self._place.directory)
        (self._directory / "stderr").mkdir(mode=0o700, exist_ok=True)
        self._board = Board(self._directory / "board", len(self._slots))
        self._faults_done = 0
        self._began = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all processes during the block; at its end none is left, whatever happened."""
        try:
            for slot in self._slots:
                self._start(slot)
            self._wait_for_none(lambda slot: not self._state(slot), _START_SECONDS, "did not start")
            yield
        finally:
            self._kill_all()

    def break_things(self, progress: Callable[[str], None]) -> None:
        self._began = time.monotonic()
        self._nemeses.arm()
        for action in self._plan.actions:
            self._pass_time(until=action.at, progress=progress)
            if action.do in ("kill", "pause", "restart"):
                self._break(action)
            else:
                self._nemeses.begin(action, [slot.process.pid for slot in self._slots])
            self._faults_done += 1
        self._pass_time(until=self._plan.seconds, progress=progress)
        self._wait_for_none(lambda slot: slot.resume_at is not None, _GIVE_UP_SECONDS, "did not resume")
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        while not self._nemeses.look() and time.monotonic() < deadline:
            self._tick(_TICK_SECONDS)
        self._nemeses.cease()

    def drain(self, progress: Callable[[str], None]) -> bool:
        """Let the rest be sent and handled; return whether everything drained.

        It waits as long as there is progress: a machine may be slow. What does not change while all processes are at
        work is stuck, and is read back.

        Raises:
            RunFailed: There was progress to the end, but no end.
        """
        for slot in self._slots:
            self._board.allowed[slot.row] = slot.quota
        began = moved_at = sent_at = time.monotonic()
        backlog = 0
        least: tuple[int, int] | None = None
        while (left := (unsent := self._unsent()) + self._unsettled()) > 0:
            now = time.monotonic()
            if least is None or unsent:
                sent_at, backlog = now, left
            # A message of several subscriptions adds more to what is left than its sending takes away.
            if least is None or (unsent, left) < least or not all(self._state(slot) for slot in self._slots):
                least, moved_at = (unsent, left), now
            if now - moved_at > self._scenario.stuck_seconds:
                return False
            if now - began > _LONGEST_DRAIN_SECONDS:
                raise RunFailed(f"{left} messages had not drained after {now - began:.0f} s")
            progress(self._progress("draining"))
            self._tick(_LOOK_SECONDS)
        seconds = time.monotonic() - sent_at
        detail = f"{backlog} messages drained {seconds:.1f} s after the last fault and the last send"
        longest = _RECOVERY_SECONDS + backlog / _RECOVERIES_PER_SECOND
        self._history.check("I30", seconds <= longest, detail)
        return True

    def end(self) -> None:
        self._board.stop()
        deadline = time.monotonic() + _END_SECONDS
        for slot in self._slots:
            try:
                slot.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise self._failure(slot, "did not end") from None
            if slot.process.returncode not in (0, START_AGAIN):
                raise self._died(slot)

    def _unsent(self) -> int:
        return sum(max(0, slot.quota - self._board.done[slot.row]) for slot in self._slots)

    def _unsettled(self) -> int:
        with self._place.backend() as backend:
            return self._scenario.unsettled(self._place, backend)

    def _progress(self, phase: str) -> str:
        sent = sum(self._board.done[slot.row] for slot in self._slots)
        faults = f"fault {self._faults_done} of {len(self._plan.actions)}"
        return f"{self._plan.scenario}: {phase}, {sent:,} of {self._plan.messages:,} messages, {faults}"

    def _pass_time(self, *, until: float, progress: Callable[[str], None]) -> None:
        while (elapsed := time.monotonic() - self._began) < until:
            self._let_send(elapsed)
            progress(self._progress("running"))
            self._tick(_TICK_SECONDS * 5)

    def _let_send(self, elapsed: float, *, extra: int = 0) -> None:
        """Let messages flow evenly over the faults that are planned, so that there is work until the last one."""
        in_time = min(1.0, elapsed / self._plan.seconds)
        in_faults = (self._faults_done + 1) / (len(self._plan.actions) + 1)
        for slot in self._slots:
            allowed = int(slot.quota * min(in_time, in_faults)) + 1 + extra
            self._board.allowed[slot.row] = max(self._board.allowed[slot.row], min(slot.quota, allowed))

    def _tick(self, seconds: float) -> None:
        """Resume, replace and watch processes for a moment."""
        if self._stop.is_set():
            raise RunFailed("interrupted")
        now = time.monotonic()
        self._nemeses.look()
        for slot in self._slots:
            if slot.resume_at is not None and now >= slot.resume_at:
                slot.resume_at = None
                slot.process.send_signal(signal.SIGCONT)
            if slot.process.poll() is not None:
                if slot.process.returncode != START_AGAIN and (slot.ending_since is None or slot.process.returncode):
                    raise self._died(slot)
                self._start(slot)
            elif slot.ending_since is not None and now - slot.ending_since > _END_SECONDS:
                raise self._failure(slot, "did not end")
        time.sleep(seconds)

    def _break(self, action: Action) -> None:
        """Find a process that fits and do to it what is planned; without one, give up, and the run counts it."""
        able = [slot for slot in self._slots if slot.role.holds or action.who == "any"]
        first = int(action.pick * len(able))
        waited_since = time.monotonic()
        while (waited := time.monotonic() - waited_since) < _GIVE_UP_SECONDS:
            for slot in (able[first:] + able[:first])[: 1 if waited < _PATIENCE_SECONDS else None]:
                if self._fits(slot, action) and self._hit(slot, action):
                    return
            self._let_send(time.monotonic() - self._began, extra=int(waited * _TRICKLE_PER_SECOND))
            self._tick(_TICK_SECONDS)

    def _fits(self, slot: Slot, action: Action) -> bool:
        wanted = State.HOLDING if action.who == "holder" else State.WORKING
        return slot.resume_at is None and slot.ending_since is None and self._state(slot) >= wanted

    def _hit(self, slot: Slot, action: Action) -> bool:
        """Stop the process, and if it still is what the plan wants, go on; a kill hits exactly what was announced."""
        if action.do == "restart":
            self._history.write("restart", target=slot.name, detail="SIGTERM")
            slot.ending_since = time.monotonic()
            slot.process.terminate()
            return True
        slot.process.send_signal(signal.SIGSTOP)
        if slot.process.returncode is not None:
            # It ended just before, and is started again.
            return False
        os.waitid(os.P_PID, slot.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if not self._fits(slot, action):
            slot.process.send_signal(signal.SIGCONT)
            return False
        detail = "held a delivery" if self._state(slot) is State.HOLDING else "at work"
        if action.do == "pause":
            self._history.write("pause", target=slot.name, detail=detail, seconds=action.seconds)
            slot.resume_at = time.monotonic() + action.seconds
            return True
        self._history.write("kill", target=slot.name, detail=detail)
        slot.process.kill()
        slot.process.wait()
        self._start(slot)
        return True

    def _state(self, slot: Slot) -> State:
        return State(self._board.states[slot.row])

    def _start(self, slot: Slot) -> None:
        slot.starts += 1
        slot.ending_since = None
        slot.name = f"{slot.role_name}-{slot.index}.{slot.starts}"
        self._board.states[slot.row] = State.STARTING
        config = ChildConfig(
            scenario=self._plan.scenario,
            role=slot.role_name,
            index=slot.index,
            process=slot.name,
            row=slot.row,
            rows=len(self._slots),
            quota=slot.quota,
            seed=f"{self._plan.seed} {slot.name}",
            place=self._place,
            mutant=self._options.mutant,
            load=self._options.load,
        )
        with (self._directory / "stderr" / slot.name).open("wb") as errors:
            slot.process = subprocess.Popen(
                [sys.executable, "-m", "postroad.testing.verify.child"],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
            )
        assert slot.process.stdin is not None
        slot.process.stdin.write(msgspec.json.encode(config) + b"\n")
        slot.process.stdin.flush()

    def _wait_for_none(self, is_late: Callable[[Slot], bool], seconds: float, what: str) -> None:
        """Wait until no process is late; `what` says in the report what it did not do in so many seconds."""
        deadline = time.monotonic() + seconds
        while late := list(filter(is_late, self._slots)):
            if time.monotonic() > deadline:
                raise self._failure(late[0], what)
            self._tick(_TICK_SECONDS * 5)

    def _died(self, slot: Slot) -> RunFailed:
        return self._failure(slot, f"ended with {slot.process.returncode}")

    def _failure(self, slot: Slot, what: str) -> RunFailed:
        tail = (self._directory / "stderr" / slot.name).read_text(errors="replace")[-_TAIL_CHARACTERS:]
        return RunFailed(f"{slot.name} {what}: {tail}")

    def _kill_all(self) -> None:
        started = [slot.process for slot in self._slots if hasattr(slot, "process")]
        for process in started:
            process.kill()
        for process in started:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _slots(scenario: Scenario, messages: int) -> list[Slot]:
    """Return a slot for each process; those that send share the messages."""
    every = [(name, role, index) for name, role in scenario.roles.items() for index in range(role.processes)]
    senders = [place for place in every if place[1].sends]
    slots = []
    for row, (name, role, index) in enumerate(every):
        quota = messages // len(senders) + (index < messages % len(senders)) if role.sends else 0
        slots.append(Slot(row=row, role_name=name, role=role, index=index, quota=quota))
    return slots
