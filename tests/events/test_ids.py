"""Ids are UUIDv7, in the order in which they are made."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, strategies as st

from postroad.events import UUID7Source, uuid7
from postroad.events.envelope import uuid7_of


def test_the_bits_stand_where_rfc_9562_puts_them() -> None:
    # The example of RFC 9562, appendix A.6.
    assert uuid7_of(0x017F22E279B0, (0xCC3 << 62) | 0x18C4DC0C0C07398F) == UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_moment_and_tail_order_the_ids(milliseconds: int, tail: int) -> None:
    made = uuid7_of(milliseconds, tail)

    assert (made.version, made.variant) == (7, RFC_4122)
    assert made.int >> 80 == milliseconds


def test_ids_grow_within_one_millisecond_and_when_the_clock_steps_back() -> None:
    moments = iter([5_000_000, 5_000_000, 4_000_000, 4_999_999, 6_000_000])
    source = UUID7Source(time_ns=lambda: next(moments), random_bytes=lambda count: b"\xff" * count)

    made = [source() for _ in range(5)]

    assert all(first < second for first, second in pairwise(made))
    assert [each.int >> 80 for each in made] == [5, 5, 5, 5, 6]


def test_time_and_randomness_alone_decide_the_id() -> None:
    one, other = (UUID7Source(time_ns=lambda: 7_000_000, random_bytes=bytes) for _ in range(2))

    assert [one(), one()] == [other(), other()]


def test_threads_never_share_an_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: uuid7(), range(10_000)))

    assert len(set(made)) == 10_000


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    source = UUID7Source(time_ns=lambda: 1_000_000)
    first = source()

    source.forget()

    assert abs(source().int - first.int) > 1_000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_forgets_what_the_parent_made() -> None:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, uuid7().bytes)
        os._exit(0)
    made = uuid7()
    os.waitpid(child, 0)

    theirs = UUID(bytes=os.read(reader, 16))
    os.close(reader)
    os.close(writer)

    assert theirs != made
