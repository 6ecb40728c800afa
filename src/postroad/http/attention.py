"""What a person should look at: dead letters, what is held back or old, parts that are down, failed tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from postroad.dashboard import seconds
from postroad.outbox import OutboxStatus
from postroad.queues import QueueOverview
from postroad.telemetry import counted, legible
from postroad.views import Attention, Part

if TYPE_CHECKING:
    from postroad.operations import Finding

OLD_SECONDS: Final = 300.0
"""Messages that wait for longer need attention."""
EXPIRING_SECONDS: Final = 172_800.0
MOST_COUNTED: Final = 100
HEALTH: Final = "/ui/health"
_MOST: Final = 10


def of_queues(found: Sequence[QueueOverview], dead_letter_queues: Collection[str]) -> list[Attention]:
    """Return the queues with dead letters, most first, and those whose messages wait for long, oldest first."""
    dead = [each for each in found if each.spec.name in dead_letter_queues and size(each)]
    dead.sort(key=lambda each: (-size(each), each.spec.name))
    letters = [item for each in dead for item in _dead_letters(each)]
    others = [each for each in found if each.spec.name not in dead_letter_queues and each.stats.visible]
    old = [each for each in others if age(each) > OLD_SECONDS]
    return [
        *_few("dead-letters", "/ui/dead-letters", "queues with dead letters", letters),
        *_few("old-backlog", "/ui/queues", "queues with old messages", _old(old)),
    ]


def _dead_letters(found: QueueOverview) -> Iterator[Attention]:
    name, oldest = found.spec.name, found.stats.oldest_age_seconds
    href = f"/ui/dead-letters?queue={quote(name)}"
    since = "" if oldest is None else f", the oldest sent {seconds(oldest)} ago"
    yield Attention("dead-letters", "error", f"{counted(size(found), 'dead letter')} in {name}{since}", href)
    if oldest is not None and found.spec.retention - oldest < EXPIRING_SECONDS:
        left = seconds(max(0.0, found.spec.retention - oldest))
        yield Attention("dead-letters-expiring", "error", f"The oldest dead letter in {name} is lost in {left}", href)


def _old(found: list[QueueOverview]) -> list[Attention]:
    return [
        Attention(
            "old-backlog",
            "warning",
            f"{counted(each.stats.visible, 'message')} in {each.spec.name}, the oldest sent {seconds(age(each))} ago",
            f"/ui/queues/{quote(each.spec.name)}",
        )
        for each in sorted(found, key=lambda each: (-age(each), each.spec.name))
    ]


def _few(kind: str, href: str, what: str, items: list[Attention]) -> list[Attention]:
    """Return the first items, and one that counts the rest."""
    if len(items) <= _MOST:
        return items
    rest = items[_MOST:]
    return [*items[:_MOST], Attention(kind, rest[0].severity, f"{len(rest)} more {what}", href)]


def size(found: QueueOverview) -> int:
    """Return how many messages the queue holds."""
    return found.stats.visible + found.stats.in_flight + found.stats.delayed


def age(found: QueueOverview) -> float:
    """Return the age of the oldest message; 0 if there is none."""
    return found.stats.oldest_age_seconds or 0.0


def of_outbox(found: OutboxStatus | str | None) -> Iterator[Attention]:
    """Yield what is wrong with the outbox; a text says why it cannot be read."""
    if found is None:
        return
    if isinstance(found, str):
        yield Attention("outbox-unavailable", "error", f"The outbox cannot be read: {found}", "/ui/outbox")
        return
    if found.target_error is not None:
        text = f"The topic of the outbox is not available: {legible(found.target_error)}"
        yield Attention("outbox-target", "error", text, "/ui/outbox")
    if found.failed:
        yield Attention(
            "outbox-failed", "error", f"{counted(found.failed, 'event')} of the outbox failed", "/ui/outbox"
        )
    if found.blocked_keys:
        keys = counted(found.blocked_keys, "key")
        text = f"{keys} of the outbox {'is' if found.blocked_keys == 1 else 'are'} held back"
        yield Attention("outbox-blocked", "error" if found.failed else "warning", text, "/ui/outbox")


def of_parts(parts: Iterable[Part]) -> Iterator[Attention]:
    """Yield the parts that do not run."""
    for part in parts:
        if part.state == "failed":
            text = f"{part.name} died too often and is not started again"
            yield Attention("part-down", "error", text, HEALTH)
        elif part.state != "running":
            why = f": {legible(part.missing)}" if isinstance(part.missing, str) else ""
            yield Attention("part-down", "warning", f"{part.name} is {part.state}{why}", HEALTH)


def of_tasks(failed: int) -> Iterator[Attention]:
    """Yield that tasks have failed within the last hour."""
    if failed:
        count = f"{MOST_COUNTED} tasks or more" if failed >= MOST_COUNTED else counted(failed, "task")
        yield Attention("failed-tasks", "error", f"{count} failed within the last hour", "/ui/tasks?state=failed")


def of_findings(findings: Iterable[Finding]) -> Iterator[Attention]:
    """Yield what `postroad doctor` found."""
    for each in findings:
        yield Attention(each.code, "error" if each.severity == "error" else "warning", legible(each.message), HEALTH)
