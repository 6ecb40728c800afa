"""Pages: a part of a list, and the sealed cursor to the next part."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from postroad.errors import InvalidCursor, InvalidInput
from postroad.queues import PeekedMessage, Queue

if TYPE_CHECKING:
    from postroad.http.requests import ApiRequest

Entry = TypeVar("Entry")
Page = TypeVar("Page")


def page(
    request: ApiRequest,
    into: Callable[[list[Any], str | None], Page],
    of: str,
    entries: Sequence[Entry],
    limit: int,
    *,
    position: Callable[[Entry], str],
    row: Callable[[Entry], Any | None],
) -> Page:
    """The first `limit` entries as rows (None is left out), with a cursor when more follow."""
    shown = entries[:limit]
    rows = [document for entry in shown if (document := row(entry)) is not None]
    more = len(entries) > limit
    return into(rows, request.context.cursors.seal(of, position(shown[-1])) if more else None)


_SEAL_BYTES = 16


class Cursors:
    """Seals positions so that a forged, shortened or foreign cursor is recognised."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"postroad cursors", "sha256")

    def seal(self, of: str, position: str) -> str:
        """The cursor for a position in the list `of`, which names its route and filters."""
        data = position.encode()
        return base64.urlsafe_b64encode(self._mac(of, data) + data).rstrip(b"=").decode()

    def open(self, of: str, cursor: str) -> str:
        """The position that was sealed for this list, or `InvalidCursor`."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _refused() from None
        seal, data = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._mac(of, data)):
            raise _refused()
        return data.decode()

    def _mac(self, of: str, data: bytes) -> bytes:
        return hmac.new(self._key, of.encode() + b"\0" + data, hashlib.sha256).digest()[:_SEAL_BYTES]


def _refused() -> InvalidCursor:
    return InvalidCursor("cursor: this list did not give it out", field="cursor")


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
