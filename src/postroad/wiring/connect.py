"""`connect(url)` is the one place that picks adapters; `run(bus, …)` connects and receives.

An address is `sqlite:///path`, `memory://` or `aws://region[?endpoint_url=…&stage=…]`.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from postroad import failpoints
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, without_credentials
from postroad.events import EventRegistry, default_registry
from postroad.ports import TASK_DIRECTORY, Ports
from postroad.settings import adapter, default_url, failpoints as configured_failpoints
from postroad.signals import stopped_by_signals
from postroad.wiring.backend import Backend

if TYPE_CHECKING:
    from postroad.bus import Bus, RemoteEventBus
    from postroad.wiring.aws import AwsInstallation
    from postroad.wiring.sqlite import SQLiteInstallation

_OPTIONS = {
    "sqlite": frozenset[str](),
    "memory": frozenset[str](),
    "aws": frozenset(("endpoint_url", "stage", "bucket", "table")),
}
_FORMS = "sqlite:///path, memory:// or aws://region[?endpoint_url=…&stage=…&bucket=…&table=…]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed address; the whole address of a third party's adapter is its `place`."""

    scheme: str
    place: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path | None:
        """The embedded file that is opened, if any; a third party's adapter uses the default one."""
        if self.scheme in ("memory", "aws"):
            return None
        return Path(self.place if self.scheme == "sqlite" else "postroad.db")


def parse_url(url: str) -> Address:
    """Parse an address, or raise `ConfigurationError` with the accepted forms."""
    if not isinstance(url, str):
        raise _refused(repr(url), "is not text")
    if not url.isprintable():
        raise _refused(repr(url), "contains a character that cannot be printed")
    parts = _split(url)
    if parts.scheme not in _OPTIONS:
        if adapter(parts.scheme) is None:
            raise _refused(url, f"has an unknown scheme {parts.scheme!r}")
        return Address(scheme=parts.scheme, place=url)
    if url.endswith("?"):
        raise _refused(url, "ends with '?' and names no option", "If it belongs to the name, write %3F. ")
    try:
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise _refused(url, f"has a query that cannot be read: {error}") from None
    for name in options:
        if name not in _OPTIONS[parts.scheme]:
            raise _refused(url, f"has an unknown option {name!r}")
    if not options.get("endpoint_url", "https://").startswith(("http://", "https://")):
        raise _refused(url, "has an endpoint_url that is neither http:// nor https://")
    place = _place(url, parts.scheme, parts.netloc, parts.path)
    return Address(scheme=parts.scheme, place=place, options=options)


def _split(url: str) -> SplitResult:
    """Split the address; a '#' is part of a file's name, and an error in any other address."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "sqlite":
            return urlsplit(url.replace("#", "%23"))
    except ValueError as error:
        raise _refused(url, f"cannot be read: {error}") from None
    if "#" in url and parts.scheme in _OPTIONS:
        raise _refused(url, "has a '#', which means nothing there")
    return parts


def _place(url: str, scheme: str, host: str, path: str) -> str:
    if scheme == "memory":
        if host or path:
            raise _refused(url, "names a place, which memory does not have")
        return ""
    if scheme == "aws":
        if path.strip("/"):
            raise _refused(url, "has a path; only the region comes before the options")
        if host and re.fullmatch(r"[a-z0-9-]+", host) is None:
            raise _refused(url, f"names {host!r}, which is not a region")
        return host
    if host or not path.startswith("/") or len(path) < 2:
        raise _refused(url, "names no file: it needs three slashes before the path")
    place = unquote(path[1:], errors="surrogateescape")
    if not place.isprintable():
        raise _refused(url, "contains a character that cannot be printed")
    if place.startswith(":memory:"):
        raise _refused(url, "would be lost with this process; use memory:// for that")
    return place


def _refused(url: str, why: str, remedy: str = "") -> ConfigurationError:
    return ConfigurationError(f"url: {url} {why}", field="url", remedy=f"{remedy}Use {_FORMS}.")


def connect(
    url: str | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    registry: EventRegistry = default_registry,
    trail_keep: int = 100_000,
) -> Backend:
    """Open a backend.

    Args:
        url: The address: `sqlite:///path`, `memory://`, `aws://region`, or one whose scheme an installed adapter has
            (an entry point `postroad.adapters`), which replaces some ports of the file `postroad.db`. By default
            `$POSTROAD_URL`, or the file `postroad.db` in the working directory.
        clock: Where to read the time, by default the machine's clock. Change it in tests.
        registry: The event classes that the program knows, by default all that were declared with `@event`.
        trail_keep: How many settled messages the embedded engine remembers, by default 100,000.

    Raises:
        ConfigurationError: The address cannot be understood, or its adapter cannot be imported.
        SchemaMismatch: The file was made by another version of Postroad.
        StorageDamaged: The file cannot be read.

    Example:
        with postroad.connect("sqlite:///shop.db") as backend:
            backend.create_queue(QueueSpec("orders"))
    """
    if (text := configured_failpoints()) is not None:
        failpoints.load(text)
    address = parse_url(default_url() if url is None else url)
    # Adapters are imported when they are chosen: a program on one file needs neither boto3 nor its import time.
    if address.scheme == "aws":
        from postroad.wiring.aws import AwsInstallation

        account = AwsInstallation(address.place, address.options, clock=clock)
        return Backend(_ports(account, clock, registry), account, joins_writes=False)
    from postroad.wiring.sqlite import SQLiteInstallation

    if address.file is not None and _vanishes(address.file):
        raise ConfigurationError(
            f"url: {address.file} would be lost: a task runs in a directory of its own, which is removed after it",
            field="url",
            remedy="Decorate the task with @task(pass_env=('POSTROAD_URL',)) and call connect() without a url to open "
            "the store of its worker, or name a file by its whole path.",
        )
    file = SQLiteInstallation(address.file, clock=clock, trail_keep=trail_keep)
    ports = _ports(file, clock, registry)
    if address.scheme in ("memory", "sqlite"):
        return Backend(ports, file, joins_writes=True)
    try:
        file.url, file.kind = without_credentials(address.place).partition("?")[0], address.scheme
        adapted = _adapted(address, ports)
        names = [each.name for each in fields(Ports)]
        replaced = [getattr(adapted, name) for name in names if getattr(adapted, name) is not getattr(ports, name)]
        return Backend(adapted, file, joins_writes=False, replaced=replaced)
    except BaseException:
        file.close()
        raise


def _ports(store: SQLiteInstallation | AwsInstallation, clock: Clock, registry: EventRegistry) -> Ports:
    return Ports(
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


def _vanishes(file: Path) -> bool:
    """Return whether the file would be made in the directory of a task, which is removed with all that it holds."""
    if file.is_absolute() or file.exists():
        return False
    # A working directory that is gone is refused when the file is opened.
    with suppress(FileNotFoundError):
        return any(part.startswith(TASK_DIRECTORY) for part in Path.cwd().parts)
    return False


def buses_of(modules: Iterable[str]) -> list[tuple[str, Bus]]:
    """Return the buses that the loaded ones of these modules declare, each once, with their names."""
    if "postroad.bus" not in sys.modules:
        # A module that declares a bus has imported them.
        return []
    from postroad.bus import Bus

    found: dict[int, tuple[str, Bus]] = {}
    for module in filter(None, map(sys.modules.get, modules)):
        for name, value in list(vars(module).items()):
            if isinstance(value, Bus):
                found.setdefault(id(value), (name, value))
    return list(found.values())


def run(*buses: RemoteEventBus, url: str | None = None, stop: threading.Event | None = None) -> None:
    """Receive with all the buses until SIGTERM, Ctrl-C or `stop`, then let running handlers finish.

    Messages that no handler has begun are released.

    Args:
        buses: The buses to run; those that are not bound yet are bound to the backend at `url`.
        url: The backend, by default `$POSTROAD_URL` or the file `postroad.db`.
        stop: An event that another thread sets to end the run; needed outside of the main thread.

    Raises:
        ConfigurationError: No bus was given, or one of them is not a bus or has no handlers.

    Example:
        postroad.run(orders, url="sqlite:///shop.db")
    """
    from postroad.bus import Bus, RemoteEventBus

    given: Sequence[object] = buses
    if not buses:
        raise ConfigurationError("buses: there is none to run", field="buses", remedy="Give at least one bus.")
    if strange := [each for each in given if not isinstance(each, RemoteEventBus)]:
        raise ConfigurationError(
            f"buses: {strange[0]!r:.80} is not a bus",
            field="buses",
            remedy='Give buses, such as orders = postroad.Bus("orders", group="billing").',
        )
    if idle := [bus.topic if isinstance(bus, Bus) else bus.name for bus in buses if not bus.has_handlers]:
        # It would receive events only to release them.
        raise ConfigurationError(
            f"buses: the bus {idle[0]!r} has no handlers",
            field="buses",
            remedy="Subscribe a handler, as in @bus.on(OrderPlaced), or import the module that does.",
        )
    with ExitStack() as stack:
        stopping = stack.enter_context(stopped_by_signals()) if stop is None else stop
        unbound = [bus for bus in buses if isinstance(bus, Bus) and not bus.is_bound]
        backend = stack.enter_context(connect(url)) if unbound else None
        for declared in unbound:
            declared.bind(backend)
        started: list[RemoteEventBus] = []
        stack.callback(_stop, started)
        for bus in buses:
            bus.start_receiver()
            started.append(bus)
        while not stopping.wait(0.5):
            for bus in buses:
                bus.check_receiver()


def _stop(buses: Sequence[RemoteEventBus]) -> None:
    """Stop all buses at the same time, so that none takes events while another waits for its handlers."""
    options = {"timeout": 20.0}
    threads = [threading.Thread(target=bus.stop_receiver, kwargs=options, name="postroad-stop") for bus in buses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
