"""Items in this process's memory, for tests and trials."""

from __future__ import annotations

import bisect

from postroad.connections.own_memory import OwnMemory
from postroad.items.port import ANY, Expected, Item, ItemPage, ItemResult, ItemsTraits
from postroad.items.rules import MAX_VALUE_BYTES, check_expect, check_key, check_scan, check_value, holds

_TRAITS = ItemsTraits(durable=False, joins_writes=False, max_value_bytes=MAX_VALUE_BYTES)


class MemoryItems:
    """Items that end with the process."""

    def __init__(self) -> None:
        self._lock = OwnMemory()
        self._items: dict[str, Item] = {}
        self._keys: list[str] = []

    @property
    def traits(self) -> ItemsTraits:
        return _TRAITS

    def get(self, key: str) -> Item | None:
        """The item as the last write left it."""
        check_key(key)
        with self._lock:
            return self._items.get(key)

    def put(self, key: str, value: bytes, *, expect: Expected = ANY) -> ItemResult:
        """Write the value if the expected version, absence or anything is there."""
        check_key(key)
        check_value(value)
        wanted = check_expect(expect)
        with self._lock:
            current = self._items.get(key)
            if not holds(wanted, None if current is None else current.version):
                return ItemResult(ok=False, item=current)
            if current is None:
                bisect.insort(self._keys, key)
            item = Item(key=key, value=value, version=1 if current is None else current.version + 1)
            self._items[key] = item
        return ItemResult(ok=True, item=item)

    def delete(self, key: str, *, expect: Expected = ANY) -> ItemResult:
        """Remove the item if the expected version is there; ok with `ANY` also when there is none."""
        check_key(key)
        wanted = check_expect(expect)
        with self._lock:
            current = self._items.get(key)
            if not holds(wanted, None if current is None else current.version):
                return ItemResult(ok=False, item=current)
            if current is not None:
                del self._items[key]
                del self._keys[bisect.bisect_left(self._keys, key)]
        return ItemResult(ok=True, item=None)

    def scan(self, prefix: str, *, limit: int = 100, cursor: str | None = None) -> ItemPage:
        """Items whose key starts with `prefix`, in key order."""
        check_scan(prefix, limit, cursor)
        with self._lock:
            start = (
                bisect.bisect_left(self._keys, prefix) if cursor is None else bisect.bisect_right(self._keys, cursor)
            )
            keys = [key for key in self._keys[start : start + limit + 1] if key.startswith(prefix)]
            items = tuple(self._items[key] for key in keys[:limit])
        return ItemPage(items=items, cursor=items[-1].key if len(keys) > limit else None)

    def close(self) -> None:
        """Refuse every use of the items from now on."""
        self._lock.close()
