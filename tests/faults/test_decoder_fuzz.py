"""The decoder returns an envelope or raises an error of Postroad, quickly, whatever the bytes are."""

from __future__ import annotations

import json
import random
import string
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from postroad.errors import PostroadError
from postroad.events import DomainEvent, Envelope, codec, event

pytestmark = pytest.mark.slow

INPUTS = 20_000
LONGEST_SECONDS = 0.05
MEBIBYTE = 1 << 20
LEAVES: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**63, 2**64, 10**400, -(10**400), 1e308, 5e-324, 0.1),
    *("", "x", "é", "\x00", "\u2028", "9" * 400, "os:system", "builtins:eval", "../../etc/passwd", "{}", "[1]"),
    *([], {}, [[]], {"": {}}, {"__exception__": "OSError", "message": "no", "args": [1]}, {"__type__": "os.system"}),
]
RAW = [
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999999", b"-0", b"01", b"1.", b".5", b"0x10", b"1" * 5_000),
    *(b'"\\ud800"', b'"\\udfff\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'"\x00"', b'"\\u0000"', b'"\\x41"', b"'a'"),
    *(b"/**/", b",", b"}", b"]", b"{", b"[", b'"', b":", b"\xef\xbb\xbf", b"\xc0\xaf", b"\xf4\x90\x80\x80"),
]


@event(name="fuzz.order_placed")
class OrderPlaced:
    order_id: str
    amount: int
    tags: list[str]
    note: dict[str, Any]


def _valid() -> list[dict[str, Any]]:
    """Return an envelope in each of the two forms."""
    fixed: dict[str, Any] = {"event_id": UUID("019b7b2c-0000-7000-8000-000000000001"), "tenant_id": "acme"}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    placed = OrderPlaced("o-1", 25, ["a", "b"], {"deep": {"er": [1, None, "x"]}})
    ours = codec.wrap(placed, publisher_id="shop", key="o-1", correlation_id="c-1", created_at=at, **fixed)
    domain = DomainEvent("orders.placed", key={"orderId": "o-1"}, payload={"n": 1}, occurred_at=at, **fixed)
    return [json.loads(codec.encode(ours)), json.loads(domain.to_json())]


class Fuzzer:
    """Makes inputs from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.valid = _valid()
        self.kinds: list[Callable[[], bytes]] = [
            *(self.noise, self.changed_bytes, self.changed_bytes, self.changed_value, self.changed_value),
            *(self.repeated_key, self.raw_value, self.raw_value, self.deep, self.cut),
        ]

    def input(self) -> bytes:
        return self.random.choice(self.kinds)()

    def body(self) -> bytes:
        return json.dumps(self.random.choice(self.valid), ensure_ascii=self.random.random() < 0.5).encode()

    def noise(self) -> bytes:
        alphabet = self.random.choice(
            [bytes(range(256)), b'{}[]":,\\0123456789.eE+-truefalsn ', string.printable.encode()]
        )
        return bytes(self.random.choices(alphabet, k=self.random.randrange(200)))

    def changed_bytes(self) -> bytes:
        body = bytearray(self.body())
        for _ in range(self.random.randint(1, 6)):
            at = self.random.randrange(len(body))
            body[at : at + self.random.randrange(3)] = self.random.randbytes(self.random.randrange(3))
        return bytes(body)

    def changed_value(self) -> bytes:
        """Replace, remove or add a value somewhere in an envelope."""
        document = json.loads(self.body())
        for _ in range(self.random.randint(1, 3)):
            at, key = self.random.choice(list(_places(document)))
            action = self.random.randrange(3)
            if action == 0:
                at[key] = self.random.choice(LEAVES)
            elif action == 1:
                del at[key]
            elif isinstance(at, dict):
                at[self.random.choice(["", "é", "__proto__", "payload", "x" * 300, key + " "])] = at[key]
            if not document:
                break
        return json.dumps(document).encode()

    def repeated_key(self) -> bytes:
        body = self.body()
        key = json.dumps(self.random.choice(list(json.loads(body))))
        return body[:-1] + f", {key}: {json.dumps(self.random.choice(LEAVES))}}}".encode()

    def raw_value(self) -> bytes:
        """Put a piece that is no JSON, or a value beyond what JSON promises, in the place of a value."""
        document = json.loads(self.body())
        at, key = self.random.choice(list(_places(document)))
        at[key] = "@@@"
        return json.dumps(document).encode().replace(b'"@@@"', self.random.choice(RAW), 1)

    def deep(self) -> bytes:
        levels = self.random.choice([10, 60, 63, 64, 65, 66, 100, 1_000, 20_000])
        before, after = self.random.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
        return self.raw_value().replace(b"1", before * levels + b"1" + after * self.random.choice([levels, 0]), 1)

    def cut(self) -> bytes:
        body = self.body()
        return body[: self.random.randrange(len(body))] + self.random.choice([b"", b" ", b"}", b'"}', body])

    def long(self) -> bytes:
        """Return an envelope of up to a mebibyte, most of which is one value."""
        size = self.random.choice([MEBIBYTE // 16, MEBIBYTE])
        value = self.random.choice(
            [b'"' + b"a" * size + b'"', b"[" + b"1," * (size // 2) + b"1]", b"9" * size, b"[" * size]
        )
        return self.body().replace(b"1", value, 1)


def _places(value: Any) -> Any:
    """Yield each container in the value with each of its keys or indexes."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, inner in items:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _outcome(data: bytes) -> str:
    before = time.thread_time()
    try:
        assert type(codec.decode(data)) is Envelope
        outcome = "decoded"
    except PostroadError as error:
        outcome = type(error).__name__
    seconds = time.thread_time() - before
    assert seconds < LONGEST_SECONDS, f"{seconds:.3f} s for {len(data)} bytes: {data[:200]!r}"
    return outcome


def test_every_input_becomes_an_envelope_or_an_error_of_ours() -> None:
    fuzzer = Fuzzer(seed=20_260_101)
    for valid in fuzzer.valid:
        assert _outcome(json.dumps(valid).encode()) == "decoded"
    modules = set(sys.modules)

    outcomes = Counter(_outcome(fuzzer.input()) for _ in range(INPUTS))
    outcomes.update(_outcome(fuzzer.long()) for _ in range(60))

    assert set(sys.modules) == modules
    # Both ends are reached: what only looks broken is decoded, and what is broken is refused.
    assert outcomes["decoded"] > INPUTS // 100
    assert outcomes.total() - outcomes["decoded"] > INPUTS // 2
