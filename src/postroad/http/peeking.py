"""Walking through a queue page by page while messages come and go."""

from __future__ import annotations

from postroad.errors import InvalidCursor, InvalidInput
from postroad.queues import PeekedMessage, Queue

_STRIDE = 500


def position(last: PeekedMessage) -> str:
    """Where a page ended: the last message, and its sequence in case it is gone when the next page is asked for."""
    return f"{last.message_id} {'' if last.sequence is None else last.sequence}"


def peek_after(queue: Queue, after: str | None, *, limit: int) -> list[PeekedMessage]:
    """The messages behind a position; None is the beginning."""
    if after is None:
        return queue.peek(limit=limit)
    message_id, _, sequence = after.partition(" ")
    try:
        return queue.peek(limit=limit, after=message_id)
    except InvalidInput as error:
        if not sequence:
            raise InvalidCursor("cursor: the message it stood on is gone", field="cursor") from error
        return _skip(queue, int(sequence), limit)


def _skip(queue: Queue, sequence: int, limit: int) -> list[PeekedMessage]:
    """The messages with a higher sequence, looked for from the beginning."""
    found: list[PeekedMessage] = []
    after: str | None = None
    while len(found) < limit:
        try:
            messages = queue.peek(limit=_STRIDE, after=after)
        except InvalidInput:
            found, after = [], None
            continue
        found += [message for message in messages if message.sequence is not None and message.sequence > sequence]
        if len(messages) < _STRIDE:
            break
        after = messages[-1].message_id
    return found[:limit]
