"""The publisher: rows of subscribers go to their lanes, and no subscriber delays another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from postroad.agents.delivery import Delivering
from postroad.agents.outgoing import LaneSender, Marker, ReleaseResult, ReleaseStore, Row
from postroad.clock import Clock

_CONCURRENT: Final = 16


def release(
    rows: Sequence[Row | Marker],
    store: ReleaseStore,
    lanes: LaneSender,
    clock: Clock,
    *,
    dispatch_delay: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
) -> ReleaseResult:
    """Send the rows of all subscribers and what was held for them before; no subscriber delays another.

    With a hold-back window it waits for the youngest row first, so that rows of several producers are merged.
    """
    _wait_for_window(rows, dispatch_delay, clock, sleep)
    by_subscriber: dict[str, list[Row | Marker]] = {}
    for row in rows:
        by_subscriber.setdefault(row.subscriber_id, []).append(row)
    recipients = store.recipients(list(by_subscriber))
    result = ReleaseResult()

    def work(subscriber_id: str) -> ReleaseResult:
        own = by_subscriber[subscriber_id]
        if subscriber_id not in recipients:
            return ReleaseResult(dropped=len(own))
        return Delivering(recipients[subscriber_id], store, lanes, sleep, dispatch_delay > 0).deliver(own)

    with ThreadPoolExecutor(min(_CONCURRENT, max(1, len(by_subscriber)))) as pool:
        for part in pool.map(work, by_subscriber):
            result.add(part)
    return result


def _wait_for_window(
    rows: Sequence[Row | Marker], dispatch_delay: float, clock: Clock, sleep: Callable[[float], None]
) -> None:
    arrived = [row.arrived_ms for row in rows if isinstance(row, Row)]
    if dispatch_delay and arrived:
        left = max(arrived) / 1_000 + dispatch_delay - clock.now().timestamp()
        if left > 0:
            sleep(left)
