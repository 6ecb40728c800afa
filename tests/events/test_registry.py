"""A registry answers for what was registered, and for nothing else."""

from __future__ import annotations

import abc
import sys
from dataclasses import InitVar, dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest

from postroad.errors import InvalidInput, InvalidName, UnknownEventType
from postroad.events import EventRegistry


@dataclass
class Paid:
    amount: Decimal
    by: str = "card"


@dataclass
class Refunded:
    amount: Decimal


class OutOfStock(Exception):
    pass


@dataclass
class Tree:
    children: list[Tree]
    value: Any = None


@dataclass
class Seeded:
    x: int
    seed: InitVar[int]


@dataclass
class Abstract(abc.ABC):
    x: int

    @abc.abstractmethod
    def area(self) -> int: ...


def test_a_plain_dataclass_is_registered_under_its_module_and_qualified_name() -> None:
    registry = EventRegistry()

    name = registry.register(Paid)

    assert name == f"{__name__}:Paid"
    assert registry.name_of(Paid) == name
    assert registry.type_of(name) is Paid


def test_registering_the_same_class_again_changes_nothing() -> None:
    registry = EventRegistry()

    assert registry.register(Paid, "paid") == registry.register(Paid) == registry.register(Paid, "paid") == "paid"


def test_a_new_name_is_written_and_the_old_one_is_still_read() -> None:
    registry = EventRegistry()
    registry.register(Paid, "paid")

    registry.register(Paid, "orders.paid")

    assert registry.name_of(Paid) == "orders.paid"
    assert registry.type_of("paid") is registry.type_of("orders.paid") is Paid


def test_two_classes_for_one_name_are_refused_and_nothing_changes() -> None:
    registry = EventRegistry()
    registry.register(Paid, "money")

    with pytest.raises(InvalidName, match="already means"):
        registry.register(Refunded, "money")

    assert registry.type_of("money") is Paid
    with pytest.raises(UnknownEventType):
        registry.name_of(Refunded)


@pytest.mark.parametrize("name", ["os:system", "builtins:eval", f"{__name__}:Paid", "", "x" * 1_000_000, None, 5, []])
def test_an_unknown_name_is_never_imported(name: Any) -> None:
    before = set(sys.modules)

    with pytest.raises(UnknownEventType) as caught:
        EventRegistry().type_of(name)

    assert len(str(caught.value)) < 300
    assert set(sys.modules) == before


@pytest.mark.parametrize("odd", [Paid, Paid(Decimal(1)), 5, None, []], ids=type)
def test_the_name_of_what_is_not_registered_is_unknown(odd: Any) -> None:
    with pytest.raises(UnknownEventType, match="not registered"):
        EventRegistry().name_of(odd)


@pytest.mark.parametrize(
    "odd", [5, "x", None, Paid(Decimal(1)), lambda: 1, int, object, Abstract], ids=lambda odd: type(odd).__name__
)
def test_what_cannot_travel_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        EventRegistry().register(odd)

    assert caught.value.field == "cls"


def test_a_dataclass_with_init_only_fields_is_refused_by_their_name() -> None:
    with pytest.raises(InvalidInput, match="not fields and cannot travel: seed") as caught:
        EventRegistry().register(Seeded)

    assert caught.value.field == "seed"


def module_of(**contents: object) -> ModuleType:
    module = ModuleType("shop.api")
    vars(module).update(contents)
    return module


def test_a_module_registers_what_it_exports_under_its_own_name_and_reads_the_defining_one() -> None:
    registry = EventRegistry()
    module = module_of(
        __all__=["Paid", "OutOfStock", "helper"], Paid=Paid, OutOfStock=OutOfStock, helper=len, R=Refunded
    )

    names = registry.register_module(module)

    assert names == ["shop.api:Paid", "shop.api:OutOfStock"]
    assert registry.name_of(Paid) == "shop.api:Paid"
    assert registry.type_of(f"{__name__}:Paid") is Paid
    assert registry.type_of("shop.api:OutOfStock") is OutOfStock
    with pytest.raises(UnknownEventType):
        registry.name_of(Refunded)


def test_a_module_without_all_registers_its_public_names() -> None:
    registry = EventRegistry()

    names = registry.register_module(module_of(Paid=Paid, _Refunded=Refunded, instance=Paid(Decimal(1))))

    assert names == ["shop.api:Paid"]


def test_a_module_that_exports_nothing_registers_nothing() -> None:
    assert EventRegistry().register_module(module_of(__all__=[], Paid=Paid)) == []


def test_a_module_with_a_class_that_cannot_travel_registers_nothing() -> None:
    registry = EventRegistry()

    with pytest.raises(InvalidInput, match="Seeded"):
        registry.register_module(module_of(Paid=Paid, Seeded=Seeded))

    assert registry.known_name(Paid) is None


@pytest.mark.parametrize("odd", ["shop.api", None, Paid], ids=lambda odd: type(odd).__name__)
def test_what_is_not_a_module_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidInput, match="not a module"):
        EventRegistry().register_module(odd)


def test_the_schema_names_the_fields_and_the_required_ones() -> None:
    registry = EventRegistry()
    registry.register(Paid)

    schema = registry.json_schema(Paid)["$defs"]["Paid"]

    assert list(schema["properties"]) == ["amount", "by"]
    assert schema["required"] == ["amount"]


def test_the_schema_of_a_class_with_open_places_takes_any_value_there() -> None:
    registry = EventRegistry()
    registry.register(Tree)

    schema = registry.json_schema(Tree)["$defs"]["Tree"]

    assert "type" not in schema["properties"]["value"]
    assert schema["properties"]["children"]["items"] == {"type": "object", "title": "Tree"}


def test_the_schema_of_what_is_not_registered_is_unknown() -> None:
    with pytest.raises(UnknownEventType):
        EventRegistry().json_schema(Paid)
