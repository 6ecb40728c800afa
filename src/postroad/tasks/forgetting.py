"""Forgetting the leases of tasks that ended long ago, a few at a time."""

from __future__ import annotations

from postroad.blobs import Blobs
from postroad.items import Item, Items
from postroad.tasks.books import LEASES, decode_lease
from postroad.tasks.leases import leases_of

KEPT_SECONDS = 30 * 86_400
_AT_ONCE = 200


class Forgetting:
    """Walks through the leases of a tenant, round after round, and removes those that ended thirty days ago."""

    def __init__(self, items: Items, blobs: Blobs | None, tenant: str) -> None:
        self._items = items
        self._blobs = blobs
        self._prefix = leases_of(tenant)
        self._cursor: str | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a round has begun and not ended."""
        return self._cursor is not None

    def step(self, now_ms: int) -> int:
        """Look at the next few; how many were forgotten."""
        page = self._items.scan(self._prefix, limit=_AT_ONCE, cursor=self._cursor)
        forgotten = sum(self._forget(item, now_ms - KEPT_SECONDS * 1_000) for item in page.items)
        self._cursor = page.cursor
        if page.cursor is None and self._blobs is not None:
            self._blobs.prune(LEASES, older_than=KEPT_SECONDS)
        return forgotten

    def _forget(self, item: Item, before_ms: int) -> bool:
        outcome = decode_lease(item.value).outcome
        if outcome is None or outcome.at >= before_ms:
            return False
        # A run that began again meanwhile has another version, and stays.
        return self._items.delete(item.key, expect=item.version).ok
