"""Every kind of field that msgspec knows arrives as it was sent."""

from __future__ import annotations

import enum
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, Optional, TypeVar
from uuid import UUID

import pytest

from postroad.errors import InvalidEvent, InvalidMessage
from postroad.events import codec, event

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    S = 1


@dataclass(frozen=True)
class Item:
    sku: str
    count: int = 1


@dataclass(frozen=True)
class Box(Generic[T]):
    inside: T


@dataclass(frozen=True)
class IntBox(Box[int]):
    label: str = ""


@dataclass(frozen=True)
class Node:
    name: str
    below: tuple[Node, ...] = ()


@event
class Everything:
    text: str = ""
    whole: int = 0
    real: float = 0.0
    flag: bool = False
    nothing: None = None
    raw: bytes = b""
    money: Decimal = Decimal(0)
    unique: UUID = UUID(int=0)
    moment: datetime = datetime(2025, 1, 1, tzinfo=UTC)
    day: date = date(2025, 1, 1)
    hour: time = time(1)
    span: timedelta = timedelta()
    color: Color = Color.RED
    size: Size = Size.S
    word: Literal["a", "b", 3] = "a"
    item: Item | None = None
    items: list[Item] = field(default_factory=list)
    pair: tuple[int, str] = (0, "")
    many: tuple[Item, ...] = ()
    letters: set[str] = field(default_factory=set)
    frozen: frozenset[int] = frozenset()
    by_name: dict[str, Item] = field(default_factory=dict)
    by_number: dict[int, str] = field(default_factory=dict)
    by_real: dict[float, str] = field(default_factory=dict)
    by_day: dict[date, str] = field(default_factory=dict)
    by_id: dict[UUID, list[int]] = field(default_factory=dict)
    by_color: dict[Color, int] = field(default_factory=dict)
    either: int | str | list[int] = 0
    maybe: Optional[Decimal] = None  # noqa: UP045
    box: Box[int] | None = None
    nested_box: Box[Box[Item]] | None = None
    int_box: IntBox | None = None
    tree: Node | None = None


def sent(sent_event: object) -> Any:
    """The event after a journey through bytes."""
    return codec.unwrap(codec.decode(codec.encode(codec.wrap(sent_event, publisher_id="p"))))


@pytest.mark.parametrize(
    "given",
    [
        {"text": 'ünï 🎉 \0 \x1f \u2028 " \\'},
        {"whole": 2**200},
        {"whole": -1},
        {"real": 1e300},
        {"real": -0.1},
        {"flag": True},
        {"raw": bytes(range(256))},
        {"money": Decimal("123456789.123456789012345678")},
        {"unique": UUID("01890a5d-ac96-774b-bcce-b302099a8057")},
        {"moment": datetime(2025, 1, 15, 10, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))},
        {"moment": datetime(2025, 1, 15, 10, 30)},
        {"day": date(1, 1, 1)},
        {"hour": time(23, 59, 59, 999999)},
        {"span": timedelta(days=-3, seconds=5, microseconds=7)},
        {"color": Color.BLUE, "size": Size.S, "word": 3},
        {"item": Item("x", 2), "items": [Item("y"), Item("z")]},
        {"pair": (1, "one"), "many": (Item("a"),)},
        {"letters": {"a", "b"}, "frozen": frozenset({1, 2})},
        {"by_name": {"a b": Item("x")}, "by_number": {1: "one", -2: "two"}, "by_real": {1.5: "x"}},
        {"by_day": {date(2025, 1, 1): "x"}, "by_id": {UUID(int=5): [1]}, "by_color": {Color.BLUE: 4}},
        {"either": "text"},
        {"either": [1, 2]},
        {"maybe": Decimal("0.1")},
        {"box": Box(5), "nested_box": Box(Box(Item("deep"))), "int_box": IntBox(3, "three")},
        {"tree": Node("root", (Node("left"), Node("right", (Node("leaf"),))))},
    ],
    ids=lambda given: "-".join(given),
)
def test_a_field_arrives_as_it_was_sent(given: dict[str, Any]) -> None:
    event_sent = Everything(**given)

    assert sent(event_sent) == event_sent


@event
class Parcel:
    item: Item
    labels: dict[int, Item] = field(default_factory=dict)
    box: Box[int] | None = None


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "payload.item"),
        ({"item": None}, "payload.item"),
        ({"item": "x"}, "payload.item"),
        ({"item": {}}, "payload.item.sku"),
        ({"item": {"sku": 5}}, "payload.item.sku"),
        ({"item": {"sku": "x", "count": "1"}}, "payload.item.count"),
        ({"item": {"sku": "x", "count": 1.5}}, "payload.item.count"),
        ({"item": {"sku": "x"}, "labels": {"1": {}}}, "payload.labels[...].sku"),
        ({"item": {"sku": "x"}, "labels": {"one": {"sku": "y"}}}, "payload.labels"),
        ({"item": {"sku": "x"}, "box": {"inside": "text"}}, "payload.box.inside"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(payload: dict[str, Any], path: str) -> None:
    wrapped = codec.wrap(Parcel(Item("x")), publisher_id="p")
    wrapped.payload.clear()
    wrapped.payload.update(payload)

    with pytest.raises(InvalidMessage) as caught:
        codec.unwrap(wrapped)

    assert caught.value.field == path
    assert str(caught.value).startswith(path)


def test_unknown_fields_are_ignored() -> None:
    wrapped = codec.wrap(Parcel(Item("x")), publisher_id="p")
    wrapped.payload.update({"new": [1, {"deep": None}]})

    assert codec.unwrap(codec.decode(codec.encode(wrapped))) == Parcel(Item("x"))


@event
class Checked:
    even: int

    def __post_init__(self) -> None:
        if self.even % 2:
            raise {1: ValueError, 3: KeyError}[self.even]("odd")


@pytest.mark.parametrize("odd", [1, 3])
def test_what_the_class_itself_refuses_is_an_invalid_message(odd: int) -> None:
    wrapped = codec.wrap(Checked(2), publisher_id="p")
    wrapped.payload["even"] = odd

    with pytest.raises(InvalidMessage, match="odd"):
        codec.unwrap(wrapped)


TYPE_PARAMETERS = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
from postroad.events import codec, event
if TYPE_CHECKING:
    from somewhere import Nowhere

@event
class Item:
    sku: str

@dataclass(frozen=True)
class Box[T]:
    inside: T

@event
class Sent[T]:
    value: T
    box: Box[T]
    boxes: list[Box[T]]
    other: Nowhere | None = None

given = Sent(Item("a"), Box(Item("b")), [Box(Item("c"))], Item("d"))
assert codec.unwrap(codec.decode(codec.encode(codec.wrap(given, publisher_id="p")))) == given
print("arrived")
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are syntax from Python 3.12 on")
def test_type_parameters_are_read_as_any(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TYPE_PARAMETERS)

    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True)

    assert done.stdout.strip() == "arrived", done.stderr


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"whole": "7"}, "payload.whole"),
        ({"text": 7}, "payload.text"),
        ({"item": Item("A", "two")}, "payload.item.count"),  # type: ignore[arg-type]
        ({"items": [Item("A"), Item(5)]}, "payload.items[1].sku"),  # type: ignore[arg-type]
        ({"word": "c"}, "payload.word"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_its_annotation_does_not_allow_is_refused_before_it_is_sent(given: Any, path: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        codec.wrap(Everything(**given), publisher_id="p")

    assert caught.value.field == path


def test_the_declared_fields_of_a_class_with_open_ones_are_checked_too() -> None:
    @event
    class Open:
        number: int
        anything: Any = None

    assert sent(Open(1, {"x": 2})) == Open(1, {"x": 2})
    with pytest.raises(InvalidEvent, match=r"payload\.number"):
        sent(Open("one"))  # type: ignore[arg-type]


def test_sending_calls_no_code_of_the_class() -> None:
    calls: list[object] = []

    @event
    class Counted:
        number: int

        def __post_init__(self) -> None:
            calls.append(self.number)

    codec.wrap(Counted(1), publisher_id="p")

    assert calls == [1]
