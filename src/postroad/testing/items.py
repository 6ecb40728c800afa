"""The conformance suite of items: a new adapter is a subclass with the fixture `ground`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from postroad.errors import InvalidInput
from postroad.items import ABSENT, ANY, Item, ItemResult, Items
from postroad.testing.conformance import Suite, all_refuse, json_bytes, refuses

BAD_KEYS = [
    *("", "acme", "/rest", "acme/", "ac me/rest", "é/rest", "a" * 257 + "/rest", "acme/a\nb", "acme/a\x00b"),
    *("acme/\ud800", "acme/" + "x" * 901, "acme/" + "é" * 451),
]
GOOD_KEYS = [
    "acme/x",
    "A-b_c.d/leases/with spaces, 'quotes' and \"more\"",
    "acme/" + "x" * 900,
    "acme/é漢😀",
    "acme/a//b",
    "acme/%_",
    "eu:acme" + "x" * 249 + "/LEASE#TASK#req-123",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsFixture:
    """A store without items.

    Attributes:
        items: The adapter under test.
        transaction: `backend.transaction()`, where the traits say that writes are joined.
    """

    items: Items
    transaction: Callable[[], AbstractContextManager[None]] | None = None


class ItemsConformance(Suite):
    """Every promise of `Items`."""

    @pytest.fixture
    def items(self, ground: ItemsFixture) -> Items:
        return ground.items

    def test_a_missing_item_is_none(self, items: Items) -> None:
        assert items.get("acme/none") is None

    @pytest.mark.parametrize("value", [b"", b"\x00\xff", b"text", bytes(262_144)])
    def test_what_was_put_comes_back_byte_for_byte(self, items: Items, value: bytes) -> None:
        result = items.put("acme/a", value)

        assert result == ItemResult(ok=True, item=Item(key="acme/a", value=value, version=1))
        assert items.get("acme/a") == result.item

    def test_any_json_text_comes_back_unchanged(self, items: Items) -> None:
        values = json_bytes()

        for number, value in enumerate(values):
            items.put(f"acme/{number}", value)

        found = [items.get(f"acme/{number}") for number in range(len(values))]
        assert [item and item.value for item in found] == values

    def test_a_version_is_one_at_first_and_grows_by_one_with_each_write(self, items: Items) -> None:
        results = [items.put("acme/a", b"same") for _ in range(4)]

        assert [result.item.version for result in results if result.item] == [1, 2, 3, 4]

    def test_keys_do_not_touch_each_other(self, items: Items) -> None:
        items.put("acme/a", b"1")
        items.put("acme/b", b"2")

        items.delete("acme/a")

        assert items.get("acme/b") == Item(key="acme/b", value=b"2", version=1)

    @pytest.mark.parametrize("key", GOOD_KEYS)
    def test_the_rest_of_a_key_may_be_any_printable_text(self, items: Items, key: str) -> None:
        items.put(key, b"here")

        assert items.get(key) == Item(key=key, value=b"here", version=1)
        assert [item.key for item in items.scan(key).items] == [key]

    @pytest.mark.parametrize("absent", [ABSENT, "absent"])
    def test_a_put_that_expects_absence_writes_once(self, items: Items, absent: Any) -> None:
        first = items.put("acme/a", b"first", expect=absent)

        second = items.put("acme/a", b"second", expect=absent)

        assert first.ok
        assert second == ItemResult(ok=False, item=Item(key="acme/a", value=b"first", version=1))

    def test_a_put_with_the_right_version_writes(self, items: Items) -> None:
        items.put("acme/a", b"first")

        result = items.put("acme/a", b"second", expect=1)

        assert result == ItemResult(ok=True, item=Item(key="acme/a", value=b"second", version=2))

    def test_a_write_with_another_version_changes_nothing_and_returns_the_current_item(self, items: Items) -> None:
        items.put("acme/a", b"first")
        current = items.put("acme/a", b"second").item

        results = [items.put("acme/a", b"third", expect=1), items.delete("acme/a", expect=1)]

        assert results == [ItemResult(ok=False, item=current)] * 2
        assert items.get("acme/a") == current

    def test_a_put_that_expects_a_version_of_nothing_fails_without_an_item(self, items: Items) -> None:
        assert items.put("acme/a", b"x", expect=1) == ItemResult(ok=False, item=None)
        assert items.get("acme/a") is None

    def test_a_deleted_item_is_gone_and_can_be_put_again_as_absent(self, items: Items) -> None:
        items.put("acme/a", b"x")

        assert items.delete("acme/a", expect=1) == ItemResult(ok=True, item=None)
        assert items.get("acme/a") is None
        assert items.put("acme/a", b"y", expect=ABSENT).ok

    @pytest.mark.parametrize(("expect", "ok"), [(ANY, True), ("any", True), (ABSENT, True), (1, False)])
    def test_deleting_what_is_not_there_is_ok_unless_a_version_was_expected(
        self, items: Items, expect: Any, ok: bool
    ) -> None:
        assert items.delete("acme/none", expect=expect) == ItemResult(ok=ok, item=None)

    def test_a_scan_gives_the_prefix_in_key_order_and_nothing_else(self, items: Items) -> None:
        inside = ["acme/lease/", "acme/lease/1", "acme/lease/10", "acme/lease/2", "acme/lease/é"]
        for key in ["acme/leasf", "acme/leas", "acme2/lease/1", "acm/lease/1", *reversed(inside)]:
            items.put(key, key.encode())

        page = items.scan("acme/lease/")

        assert [(item.key, item.value) for item in page.items] == [(key, key.encode()) for key in inside]
        assert page.cursor is None
        assert [item.key for item in items.scan("acme/").items] == ["acme/leas", *inside, "acme/leasf"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
    def test_pages_of_a_scan_give_each_item_once(self, items: Items, limit: int) -> None:
        keys = [f"acme/n/{n}" for n in range(6)]
        for key in keys:
            items.put(key, b"")
        items.put("acme/o", b"")

        page = items.scan("acme/n/", limit=limit)
        found = [item.key for item in page.items]
        while page.cursor is not None:
            page = items.scan("acme/n/", limit=limit, cursor=page.cursor)
            assert len(page.items) <= limit
            found += [item.key for item in page.items]

        assert found == keys

    def test_a_scan_goes_on_where_its_cursor_was_deleted(self, items: Items) -> None:
        for n in range(4):
            items.put(f"acme/n/{n}", b"")
        page = items.scan("acme/n/", limit=2)
        items.delete("acme/n/1")

        rest = items.scan("acme/n/", limit=10, cursor=page.cursor)

        assert [item.key for item in rest.items] == ["acme/n/2", "acme/n/3"]

    def test_a_scan_takes_percent_and_underscore_as_themselves(self, items: Items) -> None:
        items.put("acme/a%b", b"")
        items.put("acme/axb", b"")

        assert [item.key for item in items.scan("acme/a%").items] == ["acme/a%b"]
        assert items.scan("acme/_").items == ()

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_without_tenant_or_rest_is_refused(self, items: Items, key: str) -> None:
        attempts = (lambda: items.get(key), lambda: items.put(key, b""), lambda: items.delete(key))

        all_refuse(InvalidInput, "key", *attempts)

    def test_a_value_above_the_limit_is_refused_and_changes_nothing(self, items: Items) -> None:
        with refuses(InvalidInput, "value"):
            items.put("acme/a", bytes(items.traits.max_value_bytes + 1))

        assert items.get("acme/a") is None

    @pytest.mark.parametrize("expect", [0, -1, True, "present", None])
    def test_an_expectation_that_is_none_is_refused(self, items: Items, expect: int) -> None:
        with refuses(InvalidInput, "expect"):
            items.put("acme/a", b"", expect=expect)

    @pytest.mark.parametrize(
        ("field", "prefix", "limit", "cursor"),
        [
            ("prefix", "acme", 1, None),
            ("prefix", "", 1, None),
            ("limit", "acme/", 0, None),
            ("limit", "acme/", 1_001, None),
            ("cursor", "acme/", 1, "other/a"),
        ],
    )
    def test_a_scan_that_cannot_be_is_refused(
        self, items: Items, field: str, prefix: str, limit: int, cursor: str | None
    ) -> None:
        with refuses(InvalidInput, field):
            items.scan(prefix, limit=limit, cursor=cursor)

    def test_of_many_threads_one_wins_each_version(self, items: Items) -> None:
        def count(_: int) -> int:
            won = 0
            while won < 5:
                current = items.get("acme/counter")
                expect = ABSENT if current is None else current.version
                value = 0 if current is None else int(current.value)
                won += items.put("acme/counter", str(value + 1).encode(), expect=expect).ok
            return won

        with ThreadPoolExecutor(4) as threads:
            total = sum(threads.map(count, range(4)))

        assert items.get("acme/counter") == Item(key="acme/counter", value=str(total).encode(), version=total)

    def test_writes_of_one_transaction_happen_together_or_not_at_all(self, ground: ItemsFixture) -> None:
        if ground.transaction is None:
            assert not ground.items.traits.joins_writes
            pytest.skip("the traits say that writes are not joined")
        with ground.transaction():
            ground.items.put("acme/a", b"kept")
            ground.items.put("acme/b", b"kept")
        with suppress(ZeroDivisionError), ground.transaction():
            ground.items.put("acme/a", b"lost")
            ground.items.delete("acme/b")
            raise ZeroDivisionError

        values = [item.value for item in ground.items.scan("acme/").items]
        assert values == [b"kept", b"kept"]
