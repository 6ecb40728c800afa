"""Queues as they stand in a store: their settings, what they hold, and what is doubtful about both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from postroad.agents.tables import DEAD_QUEUE, REJECTED_QUEUE
from postroad.errors import QueueNotFound
from postroad.ports import Store
from postroad.queues import Queue, QueueOverview, QueueSpec
from postroad.settings import nearest
from postroad.topology.findings import Finding
from postroad.topology.queue_linting import lint_queues, unencrypted

Specs = Mapping[str, QueueSpec]
EXPIRING_SECONDS: Final = 172_800
_ENDS: Final = (DEAD_QUEUE, REJECTED_QUEUE)


def setting_findings(overviews: Sequence[QueueOverview], handler_p99: Mapping[str, float]) -> Iterator[Finding]:
    """What lint says of declared queues, said of live ones."""
    specs = {overview.spec.name: overview.spec for overview in overviews}
    yield from lint_queues(specs, handler_p99=handler_p99, ends=_ENDS)
    for spec in specs.values():
        if spec.dead_letter is not None and spec.dead_letter not in specs:
            yield _no_dead_letters(spec.name, spec.dead_letter, specs)
    yield from (unencrypted(overview.spec.name) for overview in overviews if overview.in_clear)


def dead_letter_findings(store: Store, overviews: Sequence[QueueOverview]) -> Iterator[Finding]:
    """Dead letters that wait for somebody, and those that are about to expire."""
    targets = {overview.spec.dead_letter for overview in overviews} | set(_ENDS)
    for overview in overviews:
        if overview.spec.name in targets:
            with suppress(QueueNotFound):
                yield from _waiting(store, overview)


def _waiting(store: Store, overview: QueueOverview) -> Iterator[Finding]:
    spec, stats = overview.spec, overview.stats
    held = stats.visible + stats.in_flight + stats.delayed
    if not held:
        return
    message = f"{spec.name}: {held:,} dead letter{'s wait' if held > 1 else ' waits'} for somebody to look"
    yield Finding(
        "dlq-not-empty", "warning", spec.name, message,
        f"See why with `postroad queue groups {spec.name}`, then redrive or purge.",
    )  # fmt: skip
    age = stats.oldest_age_seconds
    if age is None and spec.dead_letter is None:
        age = _sampled_age(store.queue(spec.name), store.clock.now())
    left = None if age is None else spec.retention - age
    if left is not None and left < EXPIRING_SECONDS:
        message = f"{spec.name}: the oldest dead letter is lost in {max(0.0, left) / 3600:.1f} hours"
        remedy = f"Redrive with `postroad queue redrive {spec.name}`, or raise its retention (1209600 s at the most)."
        yield Finding("dlq-expiring", "error", spec.name, message, remedy)


def _sampled_age(queue: Queue, now: datetime) -> float | None:
    """The age of the oldest of a few messages, for stores that do not tell it."""
    return max(((now - message.sent_at).total_seconds() for message in queue.peek()), default=None)


def _no_dead_letters(name: str, dead_letter: str, specs: Specs) -> Finding:
    message = f"{name}: its dead-letter queue {dead_letter!r} does not exist"
    meant = nearest(dead_letter, specs)
    remedy = f"Did you mean {meant!r}?" if meant else f"Make it with `postroad queue create {dead_letter}`."
    return Finding("unknown-reference", "error", name, message, remedy)
