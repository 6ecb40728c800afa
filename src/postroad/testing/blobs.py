"""The conformance suite of blobs: a new adapter is a subclass with the fixture `ground`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from postroad.blobs import MAX_BLOB_BYTES, BlobRef, Blobs
from postroad.errors import BlobNotFound, InvalidInput, StorageDamaged
from postroad.testing.conformance import Suite, all_refuse, cases, json_bytes, refuses

BAD_KEYS = [
    *("", "/", "/etc/passwd", "../up", "a/../b", "a/..", "a//b", "a/", "./a", "a/./b", ".hidden", "a/.hidden"),
    *("A/b", "a\\b", "a b", "a/b\n", "a\x00b", "é", "a/b c", "c:/x", "a" * 401),
]

REFERENCE = BlobRef(key="a", size=1, sha256="0" * 64)
BAD_REFERENCES: dict[str, list[Any]] = {
    "size": [structs.replace(REFERENCE, size=size) for size in (-1, MAX_BLOB_BYTES + 1, "1")],
    "sha256": [structs.replace(REFERENCE, sha256=sha256) for sha256 in ("zz", 5)],
    "ref": [5, "overflow/a", None],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobsFixture:
    """An empty store of blobs.

    Attributes:
        blobs: The adapter under test.
        advance: Lets the given number of seconds pass.
    """

    blobs: Blobs
    advance: Callable[[float], None]


class BlobsConformance(Suite):
    """Every promise of `Blobs`."""

    @pytest.fixture
    def blobs(self, ground: BlobsFixture) -> Blobs:
        return ground.blobs

    @pytest.mark.parametrize("data", [b"", b"\x00\xff\n", b"text", bytes(range(256)) * 4096])
    def test_what_was_put_comes_back_byte_for_byte(self, blobs: Blobs, data: bytes) -> None:
        ref = blobs.put("overflow/20300101/a", data)

        assert blobs.get(ref) == data

    def test_any_json_text_comes_back_unchanged(self, blobs: Blobs) -> None:
        values = json_bytes()

        refs = [blobs.put(f"overflow/20300101/{number}", value) for number, value in enumerate(values)]

        assert [blobs.get(ref) for ref in refs] == values

    def test_a_reference_names_key_size_and_hash(self, blobs: Blobs) -> None:
        ref = blobs.put("overflow/20300101/a", b"abc")

        assert ref == BlobRef(key="overflow/20300101/a", size=3, sha256=hashlib.sha256(b"abc").hexdigest())

    def test_a_key_and_a_longer_one_below_it_are_two_blobs(self, blobs: Blobs) -> None:
        short, long = blobs.put("jobs/one", b"1"), blobs.put("jobs/one/two", b"2")

        assert [blobs.get(short), blobs.get(long)] == [b"1", b"2"]

    @pytest.mark.parametrize("name", ["Req-1", "a..b", "x:y", "-", "_a", "n" * 256])
    def test_the_name_of_an_entity_may_be_part_of_a_key(self, blobs: Blobs, name: str) -> None:
        refs = [blobs.put(f"events/{part}/0f3c-payload.json", part.encode()) for part in (name, f"{name[:-1]}z")]

        assert [blobs.get(ref) for ref in refs] == [name.encode(), f"{name[:-1]}z".encode()]

    def test_putting_again_overwrites_and_a_reference_of_other_bytes_is_refused(self, blobs: Blobs) -> None:
        old = blobs.put("overflow/a", b"first")

        new = blobs.put("overflow/a", b"other")

        assert blobs.get(new) == b"other"
        for wrong in (old, structs.replace(new, size=new.size + 1)):
            with pytest.raises(StorageDamaged):
                blobs.get(wrong)

    def test_a_missing_blob_is_not_found_and_cannot_be_kept(self, blobs: Blobs) -> None:
        ref = BlobRef(key="overflow/20300101/none", size=1, sha256="0" * 64)

        for verb in (blobs.get, blobs.keep):
            with pytest.raises(BlobNotFound, match="overflow/20300101/none"):
                verb(ref)

    def test_a_deleted_blob_is_gone_and_deleting_twice_changes_nothing(self, blobs: Blobs) -> None:
        ref, other = blobs.put("overflow/a", b"a"), blobs.put("overflow/b", b"b")

        blobs.delete(ref)
        blobs.delete(ref)

        assert blobs.get(other) == b"b"
        with pytest.raises(BlobNotFound):
            blobs.get(ref)

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_postroad_would_not_build_is_refused(self, blobs: Blobs, key: str) -> None:
        ref = BlobRef(key=key, size=1, sha256="0" * 64)
        verbs = [partial(verb, ref) for verb in (blobs.get, blobs.delete, blobs.keep)]

        all_refuse(InvalidInput, "key", lambda: blobs.put(key, b"x"), *verbs)

    @pytest.mark.parametrize(("field", "ref"), cases(BAD_REFERENCES))
    def test_a_reference_that_no_put_can_have_made_is_refused(self, blobs: Blobs, field: str, ref: Any) -> None:
        all_refuse(InvalidInput, field, *(partial(verb, ref) for verb in (blobs.get, blobs.delete, blobs.keep)))

    @pytest.mark.parametrize(("field", "key", "data"), [("key", 5, b"x"), ("key", None, b"x"), ("data", "a", "text")])
    def test_what_is_no_key_or_no_bytes_is_not_put(self, blobs: Blobs, field: str, key: Any, data: Any) -> None:
        with refuses(InvalidInput, field):
            blobs.put(key, data)

    def test_more_than_the_limit_is_refused(self, blobs: Blobs) -> None:
        with refuses(InvalidInput, "data", match="limit"):
            blobs.put("overflow/a", bytes(MAX_BLOB_BYTES + 1))

    def test_pruning_removes_what_is_older_and_leaves_the_rest(self, ground: BlobsFixture) -> None:
        old, elsewhere = ground.blobs.put("overflow/1/a", b"a"), ground.blobs.put("jobs/1/a", b"j")
        ground.advance(5.0)
        young = ground.blobs.put("overflow/1/b", b"b")

        removed = ground.blobs.prune("overflow/", older_than=4.0)

        assert removed == 1
        assert [ground.blobs.get(young), ground.blobs.get(elsewhere)] == [b"b", b"j"]
        with pytest.raises(BlobNotFound):
            ground.blobs.get(old)

    def test_pruning_where_nothing_was_ever_put_removes_nothing(self, blobs: Blobs) -> None:
        assert blobs.prune("overflow/", older_than=0.0) == 0

    @pytest.mark.parametrize("prefix", ["", "/", "overflow", "../", "/overflow/", "overflow//"])
    def test_pruning_needs_a_folder_of_keys(self, blobs: Blobs, prefix: str) -> None:
        with pytest.raises(InvalidInput):
            blobs.prune(prefix, older_than=0.0)

    def test_a_kept_blob_starts_its_time_anew(self, ground: BlobsFixture) -> None:
        ref = ground.blobs.put("overflow/1/a", b"a")
        # S3 knows whole seconds only.
        ground.advance(3.0)

        ground.blobs.keep(ref)

        assert ground.blobs.prune("overflow/", older_than=2.0) == 0
        assert ground.blobs.get(ref) == b"a"
