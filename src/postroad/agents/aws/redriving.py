"""Bringing one agent's dead letters back out of the queue that all agents share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from postroad.queues import Delivery, OutgoingMessage, Queue

_VISIBILITY: Final = 60.0


def redrive(dead: Queue, target: Queue, is_own: Callable[[Delivery], bool], limit: int | None) -> int:
    """Move what is the agent's own behind what waits for it, at most `limit`; how many."""
    moved, held, seen_before = 0, list[Delivery](), set[str]()
    while limit is None or moved < limit:
        batch = dead.receive(max_messages=10, visibility=_VISIBILITY)
        if not batch:
            foreign = [each for each in held if each.message_id not in seen_before]
            if not foreign or not dead.stats().visible:
                break
            # Their groups are locked and hide what stands behind them: they go to the end.
            seen_before |= _put_behind(dead, foreign)
            held = [each for each in held if each not in foreign]
            continue
        own = [each for each in batch if is_own(each)][: None if limit is None else limit - moved]
        sent = _send(target, own, "redriven")
        dead.ack([each for each, _ in sent])
        moved += len(sent)
        taken = {each.message_id for each, _ in sent}
        held += [each for each in batch if each.message_id not in taken]
    dead.release(held)
    return moved


def _put_behind(dead: Queue, foreign: Sequence[Delivery]) -> set[str]:
    """Send dead letters to the end of their queue; the ids under which they stand there."""
    sent = _send(dead, foreign, "behind")
    dead.ack([each for each, _ in sent])
    dead.release([each for each in foreign if each not in [before for before, _ in sent]])
    return {message_id for _, message_id in sent}


def _send(queue: Queue, deliveries: Sequence[Delivery], why: str) -> list[tuple[Delivery, str]]:
    """Send them in order; those that were taken, and their new ids."""
    if not deliveries:
        return []
    results = queue.send([_again(each, why) for each in deliveries])
    return [
        (each, result.message_id) for each, result in zip(deliveries, results, strict=True)
        if result.ok and result.message_id is not None
    ]  # fmt: skip


def _again(dead: Delivery, why: str) -> OutgoingMessage:
    # The same after a crash between sending and removing: SQS recognises it.
    told = hashlib.sha256(f"{dead.message_id}|{why}".encode()).hexdigest()
    return OutgoingMessage(body=dead.body, group=dead.group, dedup_id=told)
