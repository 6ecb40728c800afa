"""The `@event` decorator makes frozen, slotted, registered dataclasses."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import pydantic
import pydantic.dataclasses
import pytest

from postroad.errors import InvalidInput, InvalidName
from postroad.events import EventRegistry, default_registry, event


@event
class OrderPlaced:
    order_id: str
    amount: Decimal = Decimal(0)


@event(name="tests.order-shipped", version=2)
class OrderShipped:
    order_id: str


@event
@dataclass(order=True)
class Measured:
    value: int
    tags: list[str] = field(default_factory=list, compare=False)
    _: KW_ONLY
    unit: str = "m"
    made: ClassVar[int] = 7

    def doubled(self) -> int:
        return self.value * 2


@event
class Named:
    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a name is not empty")

    def shown(self) -> str:
        return self.name


@event
class Loud(Named):
    def shown(self) -> str:
        return super().shown().upper()


class Color(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int


class Shaped(Protocol):
    x: int


def test_a_plain_class_becomes_a_frozen_slotted_dataclass() -> None:
    placed = OrderPlaced("A-1")

    assert placed == OrderPlaced(order_id="A-1", amount=Decimal(0))
    assert not hasattr(placed, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        placed.order_id = "B"  # type: ignore[misc]  # what the type checker refuses is refused at run time too


def test_a_dataclass_keeps_its_fields_and_options_and_becomes_frozen_and_slotted() -> None:
    first, second = Measured(1, ["a"], unit="km"), Measured(2)

    assert first < second
    assert (second.tags, second.unit, second.doubled(), Measured.made) == ([], "m", 4, 7)
    assert hash(Measured(3)) == hash(Measured(3))
    assert "__slots__" in vars(Measured)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.value = 5  # type: ignore[misc]  # as above


def test_a_frozen_slotted_dataclass_stays_the_same_class() -> None:
    @dataclass(frozen=True, slots=True)
    class Ready:
        x: int

    assert event(Ready) is Ready


T = TypeVar("T")


@event
class Holding(Generic[T]):
    held: T


def test_a_generic_event_is_made_with_its_arguments_named_or_not() -> None:
    named = Holding[int](5)

    assert named == Holding(5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        named.held = 6  # type: ignore[misc]  # the test is about it


def test_a_method_that_calls_super_works_in_a_subclass() -> None:
    assert Loud("hey").shown() == "HEY"


def test_the_default_name_is_module_and_qualified_name() -> None:
    assert default_registry.name_of(OrderPlaced) == f"{__name__}:OrderPlaced"
    assert default_registry.type_of(f"{__name__}:OrderPlaced") is OrderPlaced


def test_a_name_of_its_own_stands_in_every_registry() -> None:
    registry = EventRegistry()

    assert registry.register(OrderShipped) == "tests.order-shipped"
    assert default_registry.name_of(OrderShipped) == "tests.order-shipped"


def test_a_subclass_does_not_inherit_the_name() -> None:
    @event
    class Returned(OrderShipped):
        why: str

    assert default_registry.name_of(Returned).endswith("<locals>.Returned")


def test_an_event_without_fields_is_an_event() -> None:
    @event
    class Tick:
        pass

    assert Tick() == Tick()


@pytest.mark.parametrize("odd", [5, "text", lambda: None, None, OrderPlaced("A")], ids=type)
def test_what_is_not_a_class_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a class"):
        event()(odd)


@pytest.mark.parametrize("odd", [Color, Point, Shaped, ValueError], ids=lambda odd: odd.__name__)
def test_a_class_of_another_form_is_refused(odd: type) -> None:
    with pytest.raises(InvalidInput, match="cannot become a dataclass"):
        event(odd)


@pytest.mark.parametrize("version", [0, -1, True, 1.5, "2", None])
def test_a_version_that_is_no_whole_number_from_one_on_is_refused(version: Any) -> None:
    class Odd:
        x: int

    with pytest.raises(InvalidInput, match="version") as caught:
        event(version=version)(Odd)

    assert caught.value.field == "version"


@pytest.mark.parametrize("name", ["", " ", "with space", "tab\t", "nul\0", "\ud800", "x" * 257, 5])
def test_a_name_that_cannot_stand_in_a_message_is_refused(name: Any) -> None:
    class Odd:
        x: int

    with pytest.raises(InvalidName) as caught:
        event(name=name)(Odd)

    assert caught.value.field == "name"


def test_fields_that_no_dataclass_can_have_are_refused_with_the_reason() -> None:
    class Wrong:
        tags: list[str] = []

    with pytest.raises(InvalidInput, match="mutable default"):
        event(Wrong)


def test_two_classes_of_one_name_are_refused_and_the_first_stands() -> None:
    @event(name="tests.twice")
    class First:
        x: int

    class Second:
        x: int

    with pytest.raises(InvalidName, match=r"'tests\.twice' already means .*First"):
        event(name="tests.twice")(Second)

    assert default_registry.type_of("tests.twice") is First


def test_a_class_that_is_defined_again_takes_the_place_of_the_older() -> None:
    def define() -> type:
        @event
        class Again:
            x: int

        return Again

    older, newer = define(), define()

    assert default_registry.type_of(default_registry.name_of(older)) is newer


SCRIPT = """
from postroad.events import default_registry, event

@event
class OrderPlaced:
    order_id: str

if __name__ == "__main__":
    print(default_registry.name_of(OrderPlaced))
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["shop.py"], "shop:OrderPlaced"),
        (["-m", "shop"], "shop:OrderPlaced"),
        (["-m", "goods.shop"], "goods.shop:OrderPlaced"),
        (["-c", "import shop; print(shop.default_registry.name_of(shop.OrderPlaced))"], "shop:OrderPlaced"),
    ],
)
def test_main_counts_as_the_name_it_is_imported_by(command: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    (tmp_path / "goods").mkdir()
    (tmp_path / "goods" / "shop.py").write_text(SCRIPT)

    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == expected


def test_a_spawned_child_names_the_classes_of_its_main_module_alike(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        SCRIPT.replace('if __name__ == "__main__":\n    print', "def show() -> None:\n    print")
        + "\nif __name__ == '__main__':\n"
        "    import multiprocessing\n"
        "    child = multiprocessing.get_context('spawn').Process(target=show)\n"
        "    child.start()\n"
        "    child.join()\n"
    )

    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "shop:OrderPlaced"


@pydantic.dataclasses.dataclass
class Checked:
    order_id: str


@pytest.mark.parametrize("cls", [Checked])
@pytest.mark.parametrize("take", [event, EventRegistry().register])
def test_a_pydantic_dataclass_is_refused_rather_than_stripped_of_its_validation(take: Any, cls: type) -> None:
    with pytest.raises(InvalidInput, match="pydantic") as caught:
        take(cls)

    assert caught.value.field == "cls"
    with pytest.raises(pydantic.ValidationError):
        cls(order_id=5)
