"""`connect(url)`: the one place that picks adapters; `run(bus, …)` connects and receives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

from postroad import failpoints
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, without_credentials
from postroad.events import EventRegistry, default_registry
from postroad.settings import adapter, default_url, failpoints as configured_failpoints
from postroad.signals import stopped_by_signals
from postroad.wiring.backend import Backend
from postroad.wiring.url import Address, parse

if TYPE_CHECKING:
    from postroad.blobs import Blobs
    from postroad.bus import Bus
    from postroad.items import Items
    from postroad.journal import Journal
    from postroad.ports import Ports, StreamStore, TopicStore
    from postroad.queues import QueueStore
    from postroad.wiring.aws import AwsInstallation
    from postroad.wiring.sqlite import SQLiteInstallation

_STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPorts:
    """The ports of one backend."""

    queues: QueueStore
    topics: TopicStore
    streams: StreamStore
    items: Items
    blobs: Blobs | None
    journal: Journal
    clock: Clock
    registry: EventRegistry


def connect(
    url: str | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    registry: EventRegistry = default_registry,
    trail_keep: int = 100_000,
) -> Backend:
    """Open the backend at `url`, by default `$POSTROAD_URL`, else the file `postroad.db` in the working directory.

    An address whose scheme an adapter of a third party has (an entry point `postroad.adapters`) opens that file for
    all ports that the adapter does not replace.
    """
    if (told := configured_failpoints()) is not None:
        failpoints.load(told)
    address = parse(default_url() if url is None else url)
    # Adapters are imported when they are chosen: a program on one file needs neither boto3 nor its import time.
    if address.scheme == "aws":
        from postroad.wiring.aws import AwsInstallation

        account = AwsInstallation(address, clock=clock)
        return Backend(_ports(account, clock, registry), account, joins_writes=False)
    from postroad.wiring.sqlite import SQLiteInstallation

    file = SQLiteInstallation(address.file, clock=clock, trail_keep=trail_keep)
    ports = _ports(file, clock, registry)
    if address.scheme in ("memory", "sqlite"):
        return Backend(ports, file, joins_writes=True)
    try:
        file.url, file.kind = without_credentials(address.place).partition("?")[0], address.scheme
        adapted = _adapted(address, ports)
        return Backend(adapted, file, joins_writes=False, replaced=_replaced(ports, adapted))
    except BaseException:
        file.close()
        raise


def _ports(store: SQLiteInstallation | AwsInstallation, clock: Clock, registry: EventRegistry) -> Ports:
    return BackendPorts(
        queues=store.queues,
        topics=store.topics,
        streams=store.streams,
        items=store.items,
        blobs=store.blobs,
        journal=store.journal,
        clock=clock,
        registry=registry,
    )


def _adapted(address: Address, ports: Ports) -> Ports:
    """The ports with those of the adapter in place."""
    found = adapter(address.scheme)
    assert found is not None
    try:
        factory = cast("Callable[[str, Ports], Ports]", found.load())
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"url: the adapter {found.value} of {address.scheme}:// cannot be imported: {error}",
            field="url",
            remedy="Install it again together with what it needs.",
        ) from error
    return factory(address.place, ports)


def _replaced(ports: Ports, adapted: Ports) -> list[object]:
    """The ports that the adapter brought along."""
    names = [field.name for field in fields(adapted)]
    return [getattr(adapted, name) for name in names if getattr(adapted, name) is not getattr(ports, name)]


def run(*buses: Bus, url: str | None = None, stop: threading.Event | None = None) -> None:
    """Receive with all the buses until SIGTERM, Ctrl-C or `stop`; then let running handlers end and hand back the rest.

    Args:
        buses: Those that are not bound yet are bound to the backend at `url`.
        url: The backend; by default `$POSTROAD_URL`, else the file `postroad.db`.
        stop: Set by another thread to end the run; needed where this is not the main thread.

    Raises:
        ConfigurationError: No bus was given, or one of them has no handlers.

    Example:
        postroad.run(orders, url="sqlite:///shop.db")
    """
    if not buses:
        raise ConfigurationError("buses: there is none to run", field="buses", remedy="Give at least one bus.")
    with ExitStack() as stack:
        stopping = stack.enter_context(stopped_by_signals()) if stop is None else stop
        unbound = [bus for bus in buses if not bus.is_bound]
        if unbound:
            backend = stack.enter_context(connect(url))
            for bus in unbound:
                bus.bind(backend)
        for bus in buses:
            bus.start_receiver()
        stopping.wait()
        for bus in buses:
            bus.stop_receiver(timeout=_STOP_SECONDS)
