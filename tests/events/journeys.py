"""Events, messages and damages that Hypothesis makes for the codec."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from postroad.events import codec, event


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Item:
    sku: str
    count: int
    price: Decimal


@event
class Registered:
    sku: str
    inside: Any = None


@event
class Journey:
    text: str
    whole: int
    real: float
    flag: bool
    raw: bytes
    money: Decimal
    unique: UUID
    moment: datetime
    day: date
    hour: time
    span: timedelta
    color: Color
    item: Item
    items: list[Item]
    by_name: dict[str, Item]
    by_number: dict[int, list[str]]
    letters: frozenset[str]
    maybe: Item | None
    anything: Any = None
    anythings: list[Any] = field(default_factory=list)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.integers(-(2**70), 2**70)
reals = st.floats(allow_nan=False, allow_infinity=False)
money = st.decimals(allow_nan=False, allow_infinity=False)
items = st.builds(Item, texts, whole, money)
json_values = st.recursive(
    st.none() | st.booleans() | whole | reals | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
anything = st.recursive(
    json_values, lambda inner: st.builds(Registered, texts, inner) | st.lists(inner, max_size=3), max_leaves=4
)
spans = st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000))
journeys = st.builds(
    Journey,
    text=texts,
    whole=whole,
    real=reals,
    money=money,
    span=spans,
    item=items,
    items=st.lists(items, max_size=3),
    by_name=st.dictionaries(texts, items, max_size=3),
    by_number=st.dictionaries(whole, st.lists(texts, max_size=2), max_size=3),
    letters=st.frozensets(texts, max_size=3),
    maybe=st.none() | items,
    anything=anything,
    anythings=st.lists(anything, max_size=3),
)

VALID = codec.encode(codec.wrap(Registered("ü", [1, {"b": "MARK"}, Registered("c")]), publisher_id="p", key="k"))
SPLINTERS = [b'"', b"{", b"[[", b"\\u", b"1e999", b"null", b"", b"\xff", b"-", b"NaN"]
FIELDS: dict[str, Any] = json.loads(VALID)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid message with some bytes changed, cut out, doubled or put in."""
    data = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        data[start:end] = draw(st.binary(max_size=8) | st.sampled_from(SPLINTERS))
    return bytes(data)


@st.composite
def mistyped(draw: st.DrawFn) -> bytes:
    """Right JSON with wrong values in the envelope's fields."""
    names = draw(st.lists(st.sampled_from([*FIELDS, "version", "session_id", "extra"]), max_size=4))
    return json.dumps({**FIELDS, **{name: draw(json_values) for name in names}}).encode()


@st.composite
def deep(draw: st.DrawFn) -> bytes:
    """Brackets without measure, closed or not."""
    opening, closing = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")]))
    levels = draw(st.integers(0, 3_000))
    body = opening * levels + draw(st.sampled_from([b"", b"1", b'"x"'])) + closing * draw(st.integers(0, levels))
    return VALID.replace(b'"MARK"', body) if draw(st.booleans()) else body


@st.composite
def long(draw: st.DrawFn) -> bytes:
    """Long numbers, texts and lists."""
    unit = draw(st.sampled_from([b"1", b"x", b"\\", b'"', b"[],", b'{"a":1},', b"\xf0\x9f\x8e\x89", b"0.", b"-", b" "]))
    body = unit * draw(st.integers(1, 5_000))
    before, after = draw(st.sampled_from([(b'"', b'"'), (b"[", b"1]"), (b"", b"")]))
    whole_body = before + body + after
    return VALID.replace(b'"MARK"', whole_body) if draw(st.booleans()) else whole_body


hostile = st.one_of(st.binary(max_size=200), damaged(), mistyped(), deep(), long(), json_values.map(json.dumps))
