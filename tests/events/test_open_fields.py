"""Where any value may stand, values say what they are; nothing is imported to read them."""

from __future__ import annotations

import abc
import enum
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pytest

from postroad.errors import InvalidMessage, RemoteError
from postroad.events import Codec, EventRegistry, codec, event

if TYPE_CHECKING:
    from nowhere import CheckersOnly  # type: ignore[import-not-found]  # exists for type checkers only

T = TypeVar("T")
Whole = TypeVar("Whole", bound=int)


@event
class Item:
    sku: str


@event
class Holder:
    content: Any


@dataclass(frozen=True)
class Unknown:
    text: str
    inner: Any = None


@dataclass(frozen=True)
class Box(Generic[T]):
    inside: T


@dataclass(frozen=True)
class Counted(Generic[Whole]):
    count: Whole


class Priced(Protocol):
    sku: str


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> int: ...


@event
class Square(Shape):
    side: int

    def area(self) -> int:
        return self.side**2


class Refused(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


class Unregistered(Exception):
    pass


def sent(sent_event: object, by: Codec = codec) -> Any:
    """The event after a journey through bytes."""
    return by.unwrap(by.decode(by.encode(by.wrap(sent_event, publisher_id="p"))))


@event
class Open:
    any_value: Any = None
    anything: object = None
    by_name: dict[str, Any] = field(default_factory=dict)
    by_number: dict[int, object] = field(default_factory=dict)
    several: list[Any] = field(default_factory=list)
    bare_list: list = field(default_factory=list)  # type: ignore[type-arg]  # people write it
    bare_dict: dict = field(default_factory=dict)  # type: ignore[type-arg]  # people write it
    pair: tuple[int, Any] = (0, None)
    bare_box: Box | None = None  # type: ignore[type-arg]  # people write it
    any_box: Box[Any] | None = None
    item_box: Box[Item] | None = None
    boxes: list[Box[Any]] = field(default_factory=list)
    checkers: CheckersOnly | None = None
    many_checkers: list[CheckersOnly] = field(default_factory=list)
    fixed_checkers: tuple[CheckersOnly, ...] = ()
    priced: Priced | None = None
    shape: Shape | None = None
    shapes: tuple[Shape, ...] = ()
    either: Item | Square | None = None
    typed: Item | None = None
    error: Exception | None = None


@pytest.mark.parametrize(
    "given",
    [
        {"any_value": Item("a")},
        {"any_value": [Item("a"), {"deep": Item("b")}, None, 1.5, "x"]},
        {"any_value": Holder(Holder([Item("c")]))},
        {"anything": Item("a")},
        {"anything": {"plain": [1, "two", None, True]}},
        {"by_name": {"a": Item("a"), "b": 5}, "by_number": {7: Item("x")}},
        {"several": [Item("a"), 1], "bare_list": [Item("b")], "bare_dict": {"c": Item("c")}},
        {"pair": (1, Item("a"))},
        {"bare_box": Box(Item("a")), "any_box": Box(Item("b")), "item_box": Box(Item("c"))},
        {"boxes": [Box(Item("a")), Box(5)]},
        {"checkers": Item("a"), "many_checkers": [Item("b")], "fixed_checkers": (Item("c"), Item("d"))},
        {"priced": Item("a"), "shape": Square(2), "shapes": (Square(3),)},
        {"either": Square(4)},
        {"typed": Item("a")},
    ],
    ids=lambda given: "-".join(given),
)
def test_registered_types_arrive_as_themselves(given: dict[str, Any]) -> None:
    event_sent = Open(**given)

    assert sent(event_sent) == event_sent


def test_a_value_in_an_open_place_is_tagged_and_one_in_a_typed_place_is_not() -> None:
    payload = codec.wrap(Open(any_value=Item("a"), typed=Item("b")), publisher_id="p").payload

    assert payload["any_value"] == {"__type__": f"{__name__}:Item", "sku": "a"}
    assert payload["typed"] == {"sku": "b"}


def test_an_unregistered_type_arrives_as_a_dict_with_its_name() -> None:
    arrived = sent(Open(any_value=Unknown("hey", Item("a"))))

    assert arrived.any_value == {"__type__": f"{__name__}:Unknown", "text": "hey", "inner": Item("a")}


class Mixed(enum.Enum):
    TEXT = "1"
    NUMBER = 1
    PAIR = (1, 2)


@event
class Choice:
    either: Unknown | Box[Any] | int | None = None
    several: list[Unknown | Counted[int]] = field(default_factory=list)
    mixed: Mixed = Mixed.TEXT
    by_name: dict[str, Mixed | None] = field(default_factory=dict)


@pytest.mark.parametrize(
    "given",
    [
        Choice(either=Unknown("a"), mixed=Mixed.NUMBER),
        Choice(either=Box(Item("a")), mixed=Mixed.PAIR),
        Choice(either=5, by_name={"a": Mixed.PAIR, "b": None}),
        Choice(several=[Unknown("a"), Counted(1)]),
    ],
)
def test_a_class_of_a_union_and_an_enum_of_mixed_values_arrive_as_themselves(given: Choice) -> None:
    assert sent(given) == given


def test_a_value_that_a_mixed_enum_does_not_have_is_refused() -> None:
    wrapped = codec.wrap(Choice(), publisher_id="p")
    wrapped.payload["mixed"] = True

    with pytest.raises(InvalidMessage, match="True is not a valid Mixed") as caught:
        codec.unwrap(wrapped)

    assert caught.value.field == "payload.mixed"


def test_a_receiver_that_does_not_know_the_type_gets_a_dict() -> None:
    registry = EventRegistry()
    registry.register(Holder)
    message = codec.encode(codec.wrap(Holder(Item("a")), publisher_id="p"))

    here = Codec(registry)
    arrived = here.unwrap(here.decode(message))

    assert arrived == Holder({"__type__": f"{__name__}:Item", "sku": "a"})


def test_a_bound_type_variable_is_checked() -> None:
    @event
    class Counts:
        counted: Counted  # type: ignore[type-arg]  # people write it

    wrapped = codec.wrap(Counts(Counted(5)), publisher_id="p")
    wrapped.payload["counted"]["count"] = "five"

    with pytest.raises(InvalidMessage) as caught:
        codec.unwrap(wrapped)

    assert caught.value.field == "payload.counted.count"


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:eval", "builtins:ValueError", "antigravity:x", "", 5, None, ["x"]]
)
def test_a_tag_that_is_not_registered_imports_nothing_and_stays_a_dict(name: Any) -> None:
    wrapped = codec.wrap(Holder(None), publisher_id="p")
    wrapped.payload["content"] = {"__type__": name, "x": 1}
    before = set(sys.modules)

    assert codec.unwrap(wrapped).content == {"__type__": name, "x": 1}
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({"__type__": f"{__name__}:Item"}, "payload.content.sku"),
        ({"__type__": f"{__name__}:Item", "sku": 5}, "payload.content.sku"),
        (
            {"__type__": f"{__name__}:Holder", "content": {"__type__": f"{__name__}:Item"}},
            "payload.content.content.sku",
        ),
        ({"__exception__": "builtins:ValueError"}, "payload.content"),
        ({"__exception__": 5, "message": "", "args": []}, "payload.content"),
        ({"__exception__": "x", "message": "", "args": {}}, "payload.content"),
    ],
)
def test_a_tagged_value_that_does_not_fit_is_refused_with_its_path(content: Any, path: str) -> None:
    wrapped = codec.wrap(Holder(None), publisher_id="p")
    wrapped.payload["content"] = content

    with pytest.raises(InvalidMessage) as caught:
        codec.unwrap(wrapped)

    assert caught.value.field == path


def arrived_error(error: BaseException, *registered: type) -> BaseException:
    registry = EventRegistry()
    for cls in (Holder, *registered):
        registry.register(cls)
    found = sent(Holder(error), Codec(registry)).content
    assert isinstance(found, BaseException)
    return found


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 3),
        KeyError("missing"),
        OSError(2, "No such file"),
        TimeoutError(),
        StopIteration(5),
        ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_built_in_exception_comes_back_as_its_class(error: BaseException) -> None:
    arrived = arrived_error(error)

    assert type(arrived) is type(error)


def test_an_exception_keeps_message_and_args() -> None:
    arrived = arrived_error(ValueError("bad", 3, [None]))

    assert arrived.args == ("bad", 3, [None])


def test_an_exception_travels_as_type_name_message_and_args() -> None:
    payload = codec.wrap(Holder(ValueError("bad")), publisher_id="p").payload

    assert payload["content"] == {"__exception__": "builtins:ValueError", "message": "bad", "args": ["bad"]}


def test_a_registered_exception_comes_back_as_itself_even_with_another_constructor() -> None:
    arrived = arrived_error(Refused(7, "no"), Refused)

    assert type(arrived) is Refused
    assert str(arrived) == "7: no"


def test_an_unknown_exception_comes_back_as_remote_error_and_keeps_its_name_when_sent_on() -> None:
    arrived = arrived_error(arrived_error(Unregistered("why", 5)))

    assert isinstance(arrived, RemoteError)
    assert (arrived.type_name, arrived.message, arrived.remote_args) == (
        f"{__name__}:Unregistered",
        "('why', 5)",
        ("why", 5),
    )


def test_an_argument_that_json_cannot_hold_travels_as_its_repr() -> None:
    arrived = arrived_error(ValueError(len, float("nan"), Item("a")), Item)

    assert arrived.args == ("<built-in function len>", "nan", Item("a"))


def test_a_message_that_is_not_text_travels_escaped() -> None:
    arrived = arrived_error(Unregistered("\udcff"))

    assert isinstance(arrived, RemoteError)
    assert (arrived.message, arrived.remote_args) == ("\\udcff", ("'\\udcff'",))


def test_a_field_for_exceptions_takes_nothing_else() -> None:
    assert isinstance(sent(Open(error=KeyError("x"))).error, KeyError)
    wrapped = codec.wrap(Open(), publisher_id="p")
    wrapped.payload["error"] = {"text": "not an exception"}

    with pytest.raises(InvalidMessage, match="Expected `Exception`") as caught:
        codec.unwrap(wrapped)

    assert caught.value.field == "payload.error"


@event
class Derived:
    base: Any
    doubled: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", [self.base, self.base])
        if self.base == "odd":
            raise KeyError("odd")


def test_a_field_outside_the_constructor_arrives_too() -> None:
    assert sent(Derived(Item("a"))) == Derived(Item("a"))


def test_what_an_open_class_itself_refuses_is_an_invalid_message() -> None:
    wrapped = codec.wrap(Derived("even"), publisher_id="p")
    wrapped.payload["base"] = "odd"

    with pytest.raises(InvalidMessage, match="KeyError"):
        codec.unwrap(wrapped)


def test_a_local_class_that_annotations_cannot_see_is_read_as_any() -> None:
    @event
    class Local:
        x: int

    @event
    class Outer:
        inner: Local
        below: list[Outer] = field(default_factory=list)

    assert sent(Outer(Local(1), [Outer(Local(2))])) == Outer(Local(1), [Outer(Local(2))])
