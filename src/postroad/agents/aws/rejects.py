"""The queue of what can never be handled, on SQS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from postroad.agents.port import Rejected
from postroad.errors import MessageTooLarge, PostroadError
from postroad.queues import OutgoingMessage, Queue

_FITS: Final = 700_000


class Rejects:
    """Puts records and rows where they are seen."""

    def __init__(self, queue: Callable[[], Queue]) -> None:
        self._queue = queue

    def put(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        """Put them into the queue; those that could not be put are returned."""
        return [entry for entry in rejected if not self._is_put(entry)]

    def _is_put(self, entry: Rejected) -> bool:
        try:
            try:
                [result] = self._queue().send([OutgoingMessage(body=entry.to_json())])
            except MessageTooLarge:
                [result] = self._queue().send([OutgoingMessage(body=_cut(entry).to_json())])
        except PostroadError:
            return False
        return result.ok


def _cut(entry: Rejected) -> Rejected:
    """The record's beginning: SQS takes no more."""
    return msgspec.structs.replace(entry, reason=f"{entry.reason} (its data is cut)", data=entry.data[:_FITS])
