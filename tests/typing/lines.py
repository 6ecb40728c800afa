"""Lines that type checkers refuse, and lines that they accept, behind the heads of the modules they stand in."""

from __future__ import annotations

BUS = """
import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable
from typing import Any, assert_type
from uuid import UUID

import msgspec
import pydantic

import postroad
from postroad import Backend, Bus, BusConfig, PublishResult
from postroad.bus import EventBus, EventHandler, InProcessEventBus, Middleware


@postroad.event(name="orders.placed")
class Placed:
    order_id: str
    amount: int = 0


@postroad.event
class Paid:
    order_id: str


@postroad.event
class Refunded(Paid):
    reason: str = ""


@dataclasses.dataclass
class Plain:
    number: int


@postroad.event
class Model(pydantic.BaseModel):
    number: int


class Struct(msgspec.Struct, frozen=True):
    number: int


class Callable_:
    def __call__(self, event: Placed) -> None: ...


def placed(event: Placed) -> None: ...
def paid(event: Paid) -> None: ...
def either(event: Placed | Paid) -> None: ...
def anything(event: object) -> None: ...
def untyped(event: Any) -> Any: ...
def with_connection(event: Placed, connection: Any) -> None: ...
def with_three(event: Placed, connection: Any, more: Any) -> None: ...
def nothing() -> None: ...
def keyword(*, event: Placed) -> None: ...
async def aplaced(event: Placed) -> None: ...
async def apaid(event: Paid) -> None: ...
def timing(handler: EventHandler) -> EventHandler: return handler
def no_middleware(handler: EventHandler) -> None: ...
def number(event: int) -> None: ...


bus = postroad.Bus("orders", group="billing")
local = InProcessEventBus()
"""
ACCEPTED = {
    "a handler of its own type": "bus.on(Placed)(placed)",
    "an async handler": "bus.on(Placed)(aplaced)",
    "a handler of any object": "bus.on(Placed)(anything)",
    "an untyped handler": "bus.on(Placed)(untyped)",
    "a lambda": "bus.on(Placed)(lambda event: event.order_id)",
    "a handler of two types": "bus.on(Placed, Paid)(either)",
    "a handler of three types": "bus.on(Placed, Paid, Refunded)(either)",
    "a handler of many types": "bus.on(Placed, Paid, Refunded, Plain, Model)(anything)",
    "a handler of a base": "bus.on(Refunded)(paid)",
    "a base that stands for its subclasses": "bus.on(Paid)(paid)",
    "a handler with a connection": "bus.on(Placed)(with_connection)",
    "a method": "bus.on(Placed)(list[Placed]().append)",
    "an object that can be called": "bus.on(Placed)(Callable_())",
    "all options": "bus.on(Placed, name='bill', max_attempts=5, retry_delays=(1, 5.5), timeout=3)(aplaced)",
    "options that are None": "bus.on(Placed, name=None, max_attempts=None, retry_delays=None, timeout=None)(placed)",
    "the type of a decorated function": "assert_type(bus.on(Placed)(placed)(Placed('A-1')), None)",
    "a plain dataclass": "bus.on(Plain)(lambda event: event.number)",
    "a pydantic model": "bus.on(Model)(lambda event: event.number)",
    "a Struct": "bus.on(Struct)(lambda event: event.number)",
    "subscribe": "bus.subscribe(Placed, placed)",
    "subscribe an async handler": "bus.subscribe(Placed, aplaced)",
    "subscribe a lambda": "bus.subscribe(Placed, lambda event: event.amount + 1)",
    "subscribe with a connection": "bus.subscribe(Placed, with_connection)",
    "subscribe a handler of any object": "bus.subscribe(Placed, anything)",
    "unsubscribe": "assert_type(bus.unsubscribe(Placed, placed), bool)",
    "every event": "bus.on_any(anything)",
    "middleware": "bus.use(timing)",
    "several middlewares": "bus.use(timing, lambda handler: handler)",
    "the result of a publish": "assert_type(bus.publish(Placed('A-1')), PublishResult[Placed])",
    "the event of a result": "bus.publish(Placed('A-1'), key='A').event.order_id.upper()",
    "the id of a result": "assert_type(bus.publish(Paid('A-1')).event_id, UUID | None)",
    "a result of a subclass": "wide: PublishResult[Paid] = bus.publish(Refunded('A-1'))",
    "the results of many": "assert_type(bus.publish_many([Placed('A-1')]), list[PublishResult[Placed]])",
    "an awaited publish": "async def one() -> str: return (await bus.apublish(Placed('A-1'))).event.order_id",
    "many awaited": "async def many() -> list[PublishResult[Paid]]: return await bus.apublish_many([Paid('A-1')])",
    "a loop over events": "assert_type(bus.events(Placed), AsyncGenerator[Placed, None])",
    "a loop over two types": "assert_type(bus.events(Placed, Paid), AsyncGenerator[Placed | Paid, None])",
    "the bus of a process": "assert_type(local.publish(Placed('A-1')).event, Placed)",
    "a bus as the protocol": "some_bus: EventBus = bus",
    "the bus of a process as the protocol": "other_bus: EventBus = local",
    "a pause": "error = postroad.Retryable('later', after=60, category='network')",
    "no other attempt": "final = postroad.NonRetryable('never', category='auth')",
    "a bus of a backend": "def opened(backend: Backend) -> Bus: return backend.bus('orders', 'billing')",
}
REFUSED = {
    "a handler of another type": "bus.on(Placed)(paid)",
    "an async handler of another type": "bus.on(Placed)(apaid)",
    "a handler of one of two types": "bus.on(Placed, Paid)(placed)",
    "a handler of two of three types": "bus.on(Placed, Paid, Plain)(either)",
    "a handler of a subclass": "bus.on(Paid)(lambda event: event.reason)",
    "a handler of a number": "bus.on(Placed)(number)",
    "a handler without the event": "bus.on(Placed)(nothing)",
    "a handler that takes the event by keyword": "bus.on(Placed)(keyword)",
    "a field that the event does not have": "bus.on(Placed)(lambda event: event.colour)",
    "what is no function": "bus.on(Placed)('charge')",
    "an instance as a type": "bus.on(Placed('A-1'))(placed)",
    "a name as a type": "bus.on('orders.placed')(placed)",
    "a function as a type": "bus.on(placed)",
    "an option that does not exist": "bus.on(Placed, retries=5)(placed)",
    "a name that is a number": "bus.on(Placed, name=5)(placed)",
    "attempts that are text": "bus.on(Placed, max_attempts='5')(placed)",
    "attempts that are a fraction": "bus.on(Placed, max_attempts=1.5)(placed)",
    "delays that are a number": "bus.on(Placed, retry_delays=5)(placed)",
    "delays that are text": "bus.on(Placed, retry_delays=('1', '5'))(placed)",
    "a timeout that is text": "bus.on(Placed, timeout='5s')(aplaced)",
    "a decorated function with another event": "bus.on(Placed)(placed)(Paid('A-1'))",
    "subscribe with another type": "bus.subscribe(Placed, paid)",
    "subscribe an async handler of another type": "bus.subscribe(Placed, apaid)",
    "subscribe without the event": "bus.subscribe(Placed, nothing)",
    "subscribe with three parameters": "bus.subscribe(Placed, with_three)",
    "subscribe with a field that does not exist": "bus.subscribe(Placed, lambda event: event.colour)",
    "subscribe to an instance": "bus.subscribe(Placed('A-1'), placed)",
    "subscribe locally with another type": "local.subscribe(Placed, paid)",
    "middleware that returns nothing": "bus.use(no_middleware)",
    "middleware that is no function": "bus.use('timing')",
    "a handler of every event that is none": "bus.on_any(5)",
    "a key that is a number": "bus.publish(Placed('A-1'), key=5)",
    "a field of a result that does not exist": "bus.publish(Placed('A-1')).event.colour",
    "a result of another event": "wrong: PublishResult[Paid] = bus.publish(Placed('A-1'))",
    "a result of a base as one of a subclass": "narrow: PublishResult[Refunded] = bus.publish(Paid('A-1'))",
    "results of other events": "others: list[PublishResult[Paid]] = bus.publish_many([Placed('A-1')])",
    "an awaited field that does not exist": "async def f() -> str: return (await bus.apublish(Paid('A'))).event.sum",
    "a loop over instances": "bus.events(Placed('A-1'))",
    "a loop variable of another type": "loop: AsyncGenerator[Paid, None] = bus.events(Placed)",
    "a pause that is text": "postroad.Retryable('later', after='60')",
    "a pause of what is not tried again": "postroad.NonRetryable('never', after=60)",
    "a field of an event with the wrong type": "Placed(order_id=5)",
    "a change of a frozen event": "Placed('A-1').order_id = 'B'",
    "a field of a model with the wrong type": "Model(number=[])",
    "a setting that does not exist": "BusConfig(concurency=8)",
    "a topic that is no text": "postroad.Bus(5)",
}
EVENTS = """
import postroad

@postroad.event
class OrderPlaced:
    order_id: str

"""
WRONG_EVENTS = {
    "a field of the wrong type": "OrderPlaced(order_id=1)",
    "a field that does not exist": "OrderPlaced(order_id='A', colour='red')",
    "a change of a frozen event": "OrderPlaced(order_id='A').order_id = 'B'",
    "a setting that does not exist": "postroad.QueueSpec('q', visibilty=1)",
    "a body of the wrong type": "postroad.OutgoingMessage(1)",
}
TASKS = """
from postroad import TaskProducer, task
from tests.typing.task_sample import download, scrape

def check(producer: TaskProducer) -> None:
"""
WRONG_TASKS = {
    "an argument of the wrong type": "producer.submit(scrape, store_id=1)",
    "an argument that does not exist": "producer.submit(scrape, store_id='s', depht=1)",
    "an argument that is missing": "producer.submit(scrape)",
    "an option among the arguments": "producer.submit(scrape, store_id='s', request_id='r1')",
    "a wrong argument behind the context": "producer.submit(download, url=5)",
    "a wrong argument from an async program": "producer.asubmit(scrape, store_id=1)",
    "a result taken for another type": "text: str = producer.submit(scrape, 's').wait()",
    "an option that does not exist": "producer.options(dellay=1)",
    "a time as a text": "producer.options(at='tomorrow')",
    "an option of a task that does not exist": "task(max_atempts=3)",
    "errors that are not classes": "task(retry_on=('ValueError',))",
}
MODULES = {
    "accepted": (BUS, list(ACCEPTED.values())),
    "refused": (BUS, list(REFUSED.values())),
    "wrong_events": (EVENTS, list(WRONG_EVENTS.values())),
    "wrong_tasks": (TASKS, [f"    {line}" for line in WRONG_TASKS.values()]),
}
"""The head and the lines of each module, by its name."""
