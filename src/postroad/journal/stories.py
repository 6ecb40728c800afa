"""Stories: what happened to one thing, how it stands, and what would move it on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from postroad.journal.event import JournalEvent

Kind = Literal["event", "message", "task", "job"]
Verdict = Literal[
    "handled", "waiting", "delayed", "in_flight", "retrying", "blocked", "dead", "expired", "completed", "failed"
]
Relation = Literal["caused_by", "causes", "correlates"]
NOTHING: Final = "nothing: done"
_BAD: Final = frozenset({"Task Processing Failed", "Task Failed", "Task Timeout", "Job Failure Detected"})


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened; never a payload."""

    at: str
    what: str
    where: str | None = None
    by: str | None = None
    ok: bool = True
    detail: str | None = None
    traceback: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Where a failed attempt raised its error."""
    last_lines: list[str] | msgspec.UnsetType = msgspec.field(name="lastLines", default=msgspec.UNSET)
    """What a failed attempt printed last."""

    @property
    def lines(self) -> list[str]:
        """The traceback and the last lines, in this order."""
        return [line for lines in (self.traceback, self.last_lines) if lines is not msgspec.UNSET for line in lines]


class Related(msgspec.Struct, frozen=True):
    """Something else that this hangs together with."""

    id: str
    relation: Relation
    type: str


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to an event, a message, a task or a job."""

    id: str
    kind: Kind
    verdict: Verdict
    summary: str
    steps: list[Step] = []
    related: list[Related] = []
    next: str = NOTHING

    def to_dict(self) -> dict[str, Any]:
        """The JSON of the story."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return told


def steps_of(events: Iterable[JournalEvent], *, where: str | None) -> list[Step]:
    """The steps that events tell, in their order."""
    return [
        Step(
            at=iso(event.timestamp),
            what=event.event_type,
            where=where,
            by=event.properties.get("workerId") or event.context.get("workerId") or event.context.get("origin"),
            ok=event.event_type not in _BAD,
            detail=_detail(event),
            traceback=_lines(event, "traceback"),
            last_lines=_lines(event, "lastLines"),
        )
        for event in events
    ]


def iso(milliseconds: int) -> str:
    """A moment as people and programs read it."""
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lines(event: JournalEvent, name: str) -> list[str] | msgspec.UnsetType:
    """The lines that a failed attempt left; events of other types may hold anything under the name."""
    return event.properties.get(name, msgspec.UNSET) if event.event_type in _BAD else msgspec.UNSET


def _detail(event: JournalEvent) -> str | None:
    """The category and first line of an error, the reason of an end, or which attempt it was."""
    told = event.properties
    if "error" in told:
        first = (str(told["error"]).splitlines() or [""])[0]
        return f"{told.get('errorCategory', 'unknown')}: {first}"
    if event.event_type == "Task Timeout":
        return f"{told.get('signal')} after {told.get('elapsedMs')} ms"
    if "reason" in told:
        return str(told["reason"])
    if "failedTaskId" in told:
        return f"task {told['failedTaskId']} failed"
    return None if "attemptNumber" not in told else f"attempt {told['attemptNumber']}"
