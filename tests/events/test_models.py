"""Pydantic models as events: validated when they are read, and refused if they could not read what they wrote."""

from __future__ import annotations

import dataclasses
import types
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID, uuid4

import attrs
import pydantic
import pydantic.dataclasses
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel

import postroad
from postroad import Envelope, EventRegistry, codec
from postroad.errors import ConfigurationError, InvalidInput, InvalidMessage, UnknownEventType
from postroad.events import Codec, upcast


class Line(BaseModel):
    article: str
    price: Decimal


@postroad.event(name="models.ordered", version=2)
class Ordered(BaseModel):
    model_config = ConfigDict(frozen=True)

    order_id: Annotated[str, Field(min_length=1)]
    lines: list[Line] = []
    ordered_at: datetime | None = None
    event_id: UUID = Field(default_factory=uuid4)

    @pydantic.field_validator("order_id")
    @classmethod
    def no_test_orders(cls, value: str) -> str:
        if value.startswith("test"):
            raise ValueError("a test order")
        return value


@upcast(Ordered, from_version=1)
def rename(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "order_id": payload["id"]}


ORDER = Ordered(order_id="A-1", lines=[Line(article="pen", price=Decimal("1.20"))], ordered_at=datetime.now(UTC))


def travelled(event: object, through: Codec = codec) -> Any:
    return through.unwrap(through.decode(through.encode(through.wrap(event, publisher_id="web"))))


def test_a_model_travels_and_comes_back_equal() -> None:
    assert travelled(ORDER) == ORDER
    assert isinstance(travelled(ORDER), Ordered)


def test_a_model_keeps_its_name_its_version_and_its_own_id() -> None:
    envelope = codec.wrap(ORDER, publisher_id="web")

    assert (envelope.event_type, envelope.version) == ("models.ordered", 2)
    assert envelope.event_id == ORDER.event_id
    assert envelope.payload["lines"] == [{"article": "pen", "price": "1.20"}]


def test_event_leaves_the_model_what_it_is() -> None:
    assert issubclass(Ordered, BaseModel)
    with pytest.raises(pydantic.ValidationError):
        Ordered(order_id="")


def test_an_older_payload_is_lifted_before_it_is_validated() -> None:
    old = Envelope(
        event_type="models.ordered",
        event_id=uuid4(),
        created_at=datetime.now(UTC),
        publisher_id="web",
        payload={"id": "A-1"},
    )

    assert codec.unwrap(old).order_id == "A-1"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"order_id": ""}, "payload.order_id"),
        ({"order_id": "test-1"}, "payload.order_id"),
        ({"lines": [{"article": "pen"}]}, "payload.lines[0].price"),
        ({"ordered_at": "yesterday"}, "payload.ordered_at"),
    ],
)
def test_what_the_model_refuses_is_refused_by_the_name_of_its_field(change: dict[str, Any], field: str) -> None:
    envelope = codec.wrap(ORDER, publisher_id="web")
    wrong = dataclasses.replace(envelope, payload={**envelope.payload, **change})

    with pytest.raises(InvalidMessage) as caught:
        codec.unwrap(wrong)

    assert caught.value.field == field
    assert "yesterday" not in str(caught.value)


@postroad.event
class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    at: datetime
    key: UUID

    @pydantic.computed_field
    def year(self) -> int:
        return self.at.year


def test_a_strict_model_with_computed_fields_reads_what_it_wrote() -> None:
    one = Strict(at=datetime.now(UTC), key=uuid4())

    assert travelled(one) == one


@postroad.event
class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")
    both: int = Field(default=1, serialization_alias="other", validation_alias=AliasChoices("other", "old"))


def test_aliases_are_the_names_in_the_message() -> None:
    one = Aliased.model_validate({"orderId": "A-1", "old": 2})

    assert codec.wrap(one, publisher_id="web").payload == {"orderId": "A-1", "other": 2}
    assert travelled(one) == one


class Confused(BaseModel):
    order_id: str = Field(serialization_alias="orderId")


class Listed(RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class Checked:
    order_id: str


@attrs.define
class Attributes:
    order_id: str


@pytest.mark.parametrize(
    ("cls", "field", "remedy"),
    [
        (Confused, "order_id", "one `alias`"),
        (Listed, "cls", "BaseModel"),
        (Checked, "cls", "BaseModel"),
        (Attributes, "cls", "plain class"),
    ],
)
@pytest.mark.parametrize("take", [postroad.event, EventRegistry().register])
def test_what_could_not_be_read_again_is_refused_with_the_remedy(take: Any, cls: type, field: str, remedy: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        take(cls)

    assert caught.value.field == field
    assert remedy in caught.value.remedy


def test_a_bus_refuses_such_a_class_when_it_is_subscribed_and_when_it_is_published() -> None:
    with postroad.connect("memory://") as backend:
        bus = backend.bus("orders", "billing")

        for wrong in (Confused, Listed, Checked, Attributes):
            with pytest.raises(ConfigurationError, match="cannot be an event") as caught:
                bus.on(wrong)
            assert caught.value.field == "event_types"
        (failure,) = bus.publish(Confused(order_id="A-1")).errors

    assert "is written as 'orderId' and read as 'order_id'" in str(failure.error)


def test_a_module_is_registered_without_the_models_that_cannot_be_events() -> None:
    module = types.ModuleType("shop_models")
    vars(module).update(Ordered=Ordered, Listed=Listed, Confused=Confused, RootModel=RootModel)
    registry = EventRegistry()

    assert registry.register_module(module) == ["models.ordered"]


class Unregistered(BaseModel):
    number: int = 1


def test_a_model_that_is_not_registered_is_unknown() -> None:
    with pytest.raises(UnknownEventType, match="Unregistered is not registered"):
        Codec(EventRegistry()).wrap(Unregistered(), publisher_id="web")


@postroad.event
class Measured(BaseModel):
    celsius: float


def test_a_value_that_json_cannot_hold_is_refused_when_it_is_published() -> None:
    with pytest.raises(InvalidMessage, match="payload"):
        codec.wrap(Measured(celsius=float("nan")), publisher_id="web")


def test_a_model_that_skipped_its_validation_is_refused_without_showing_its_value() -> None:
    with pytest.raises(InvalidMessage, match="Measured holds a value that its fields do not declare") as caught:
        codec.wrap(Measured.model_construct(celsius="secret"), publisher_id="web")

    assert "secret" not in str(caught.value)


@postroad.event
class Shipped:
    order: Ordered
    lines: list[Line]
    anything: Any = None


def test_a_dataclass_may_hold_models() -> None:
    one = Shipped(order=ORDER, lines=ORDER.lines, anything=ORDER)

    assert travelled(one) == one


def test_a_model_has_a_json_schema() -> None:
    assert postroad.default_registry.json_schema(Ordered)["required"] == ["order_id"]


@dataclasses.dataclass
class Plain:
    order_id: str
    tags: list[str] = dataclasses.field(default_factory=list)


class Undecorated(BaseModel):
    order_id: str


@pytest.mark.parametrize("event", [Plain("A-1", ["new"]), Undecorated(order_id="A-1")])
def test_a_bus_takes_plain_dataclasses_and_models_without_the_decorator(event: Any) -> None:
    seen: list[object] = []
    with postroad.connect("memory://") as backend:
        bus = backend.bus("orders", "billing")
        bus.on(type(event))(seen.append)

        assert backend.bus("orders", "web").publish(event).ok
        bus.receive_once()

    assert seen == [event]
    assert seen[0] is not event
