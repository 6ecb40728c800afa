"""What a message and the report of a child mean for a task, decided by pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from postroad.errors import InvalidMessage
from postroad.events import checked_bytes
from postroad.queues import TRACEBACK_LINES, legible
from postroad.tasks.error_categories import ErrorClass, classify_error
from postroad.tasks.leases import Lease
from postroad.tasks.processes import FAILURE, RESULT, Report
from postroad.telemetry import redact

CRASH = "crash"
_TEMPORARY_FAILURE = 75
_MAX_BYTES = 104_857_600


class Take(msgspec.Struct, frozen=True):
    """Run it."""


class Drop(msgspec.Struct, frozen=True):
    """Ack it: the run ended, or a later run took its place."""

    why: Literal["known", "older"]


class HandBack(msgspec.Struct, frozen=True):
    """Another worker runs it; receive it again when its lease ends."""

    seconds: float


class Quarantine(msgspec.Struct, frozen=True):
    """It has no attempts left. `lost`: the worker of the last attempt never reported."""

    lost: bool


Receipt = Take | Drop | HandBack | Quarantine


def decide(lease: Lease | None, *, run: int, now: float, max_attempts: int) -> Receipt:
    """Return what to do with a message of this run."""
    if lease is None or run > lease.run:
        return Take()
    if run < lease.run:
        return Drop("older")
    if lease.outcome is not None:
        return Drop("known")
    if lease.is_live(now):
        return HandBack(max(0.0, lease.effective_until - now))
    if lease.attempts >= max_attempts:
        return Quarantine(lost=lease.owner is not None)
    return Take()


def pause_before_retry(attempt: int, *, base: float, cap: float, chance: float) -> float:
    """Return the seconds until the next attempt: doubled each time, with jitter, never above the cap."""
    return float(min(base * 2.0 ** min(attempt - 1, 60) * (1 + chance), cap))


def pause_while_unknown(age: float, *, grace: float) -> float | None:
    """Return the seconds until a task with an unknown name is received again; None when the grace is over.

    The pause grows with the age of the run. Whoever is first receives the task, so a young one needs many chances to
    meet a worker that knows it; an old one must not use up the receives that its queue allows.
    """
    left = grace - age
    return None if left <= 0 else min(max(1.0, (age - 10) / 4), max(60.0, grace / 10), left)


class Completed(msgspec.Struct, frozen=True):
    """The task returned its result."""

    output: Any
    usage: Any
    """The usage that the task reported; the journal checks it."""
    exit_code: int = 0


class Failed(msgspec.Struct, frozen=True):
    """The attempt failed."""

    error: str
    category: str
    retryable: bool
    crash: dict[str, Any] | None = None
    located: str | None = None
    """The error with the place that raised it, for the log."""
    traceback: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    """The last lines that the attempt printed."""
    after: float | None = None
    """Seconds until the next attempt, if the task asked for them."""

    @property
    def properties(self) -> dict[str, Any]:
        """The failure as the journal and the lease hold it."""
        return {
            "error": self.error,
            "errorCategory": self.category,
            "crash": self.crash,
            "traceback": list(self.traceback[-TRACEBACK_LINES:]) or None,
            "lastLines": list(self.last_lines) or None,
        }


def lines_logged(traceback: Sequence[str] | None, last_lines: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the fields of a log line that show where an attempt failed and what it printed last, in 20 lines each."""
    found = {"traceback": list(traceback or ())[-TRACEBACK_LINES:], "last_lines": list(last_lines or ())}
    return {name: lines for name, lines in found.items() if lines}


class TimedOut(msgspec.Struct, frozen=True):
    """The attempt took too long and was ended with this signal."""

    signal: str
    last_lines: tuple[str, ...] = ()


class Halted(msgspec.Struct, frozen=True):
    """The worker ended the attempt because it stops."""


Verdict = Completed | Failed | TimedOut | Halted


class _Result(msgspec.Struct):
    output: Any
    usage: Any = None


class _Failure(msgspec.Struct):
    error: str
    category: str = CRASH
    retryable: bool = True
    cause: str | None = None
    located: str | None = None
    traceback: tuple[str, ...] = ()
    after: float | None = None


class _CommandError(msgspec.Struct):
    error: str
    code: str | None = None
    status: int | None = None


def verdict_of(report: Report, *, is_command: bool) -> Verdict:
    if report.last_lines:
        report = msgspec.structs.replace(report, last_lines=tuple(redact(line) for line in report.last_lines))
    if report.timed_out:
        return TimedOut(report.killed_with or "SIGTERM", report.last_lines)
    # A child that received a signal may have finished before.
    finished = report.exit_code == 0 and (report.reply[:1] == RESULT or b'"output"' in (report.out or b""))
    if report.killed_with is not None and not finished:
        return Halted()
    verdict = _outcome(report, is_command=is_command)
    return msgspec.structs.replace(verdict, last_lines=report.last_lines) if isinstance(verdict, Failed) else verdict


def _outcome(report: Report, *, is_command: bool) -> Completed | Failed:
    if report.signal is not None:
        cause = "oom" if report.oom else "segv" if report.signal == "SIGSEGV" else "signal"
        return crashed(f"the child was ended by {report.signal}", cause, report)
    try:
        if report.reply[:1] == FAILURE:
            return _failed(report)
        return _of_a_command(report) if is_command else _of_a_function(report)
    except msgspec.DecodeError:
        # The task wrote into a pipe that is not for tasks.
        return crashed("the child's last reply cannot be read", "no-result", report)


def _of_a_function(report: Report) -> Completed | Failed:
    if report.reply[:1] != RESULT:
        return crashed(f"the child ended with exit code {report.exit_code} and no result", "no-result", report)
    if report.exit_code != 0:
        return Failed(f"exit code {report.exit_code} after the result", "unknown", False)
    result = msgspec.json.decode(report.reply[1:], type=_Result)
    return Completed(result.output, result.usage or None)


def _of_a_command(report: Report) -> Completed | Failed:
    if report.exit_code != 0:
        return _failed_command(report)
    if report.too_long:
        return Failed("the result is above the limit of max_output_bytes", "validation", False)
    try:
        result = msgspec.json.decode(checked_bytes(report.out or b"", _MAX_BYTES), type=_Result)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidMessage):
        return Completed(None, None)
    return Completed(result.output, result.usage or None)


def _failed_command(report: Report) -> Failed:
    """Return the failure that a command wrote to the last line of its stderr."""
    text = (report.err or b"").decode(errors="replace")
    try:
        failure = msgspec.json.decode(text, type=_CommandError)
    except (msgspec.DecodeError, ValueError, RecursionError):
        failure = _CommandError(text)
    found = classify_error(failure.error, status=failure.status, code=failure.code)
    if report.exit_code == _TEMPORARY_FAILURE:
        found = ErrorClass("server-error", True)
    return Failed(legible(failure.error) or f"exit code {report.exit_code}", found.category, found.retryable)


def _failed(report: Report) -> Failed:
    failure = msgspec.json.decode(report.reply[1:], type=_Failure)
    if failure.cause is not None:
        return crashed(failure.error, failure.cause, report)
    return Failed(
        legible(failure.error),
        failure.category,
        failure.retryable,
        located=None if failure.located is None else legible(failure.located),
        traceback=tuple(redact("\n".join(failure.traceback)).splitlines()),
        after=failure.after,
    )


def crashed(error: str, cause: str, report: Report | None = None) -> Failed:
    """Return the verdict on a crash; the fields of its forensics are None where they are not known."""
    seen = report or Report(pid=0, elapsed_ms=0)
    forensics = {
        "cause": cause,
        "signal": seen.signal,
        "exitCode": seen.exit_code,
        "peakRssBytes": None if report is None else seen.peak_rss_bytes,
        "lastLines": list(seen.last_lines),
        "lastActivity": msgspec.to_builtins(seen.reported.activity),
    }
    return Failed(error, CRASH, True, forensics)
