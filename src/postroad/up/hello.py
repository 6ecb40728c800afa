"""The part `hello`: handles the event that `postroad up` suggests to publish first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from postroad.events import event
from postroad.receiving import current_context
from postroad.settings import Settings
from postroad.telemetry import get_logger
from postroad.wiring import Backend, run

if TYPE_CHECKING:
    from postroad.bus import Bus

TOPIC = "hello"
COMMAND = f"""bus publish {TOPIC} postroad.hello '{{"name": "world"}}'"""
"""What people are told to try, without the name of the program and the address of the data."""


@event(name="postroad.hello")
class Hello:
    """A greeting."""

    name: str


def hello_bus(backend: Backend) -> Bus:
    """Return the bus that handles greetings; from then on they wait for it."""
    hello = backend.bus(TOPIC, "hello")
    hello.subscribe(Hello, _greet)
    return hello


def _greet(event: Hello) -> None:
    context = current_context()
    get_logger("hello").info("hello_handled", event_id=None if context is None else str(context.envelope.event_id))


def subscribe(backend: Backend) -> None:
    """Create the subscription, so that a greeting that is published before the part runs is handled too."""
    if backend.kind == "sqlite":
        hello_bus(backend).close()


def say_hello(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Handle greetings until `stop` is set; only on a file, where another process can publish them for nothing."""
    if backend.kind != "sqlite":
        stop.wait()
        return
    with hello_bus(backend) as hello:
        run(hello, stop=stop)
