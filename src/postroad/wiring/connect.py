"""`connect(url)`: the one place that picks adapters."""

from __future__ import annotations

from postroad import failpoints
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError
from postroad.events import EventRegistry, default_registry
from postroad.settings import default_url
from postroad.settings import failpoints as configured_failpoints
from postroad.wiring.backend import Backend
from postroad.wiring.ground import Ground
from postroad.wiring.url import Address, parse


def connect(
    url: str | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    registry: EventRegistry = default_registry,
    trail_keep: int = 100_000,
) -> Backend:
    """Open the backend at `url`, by default `$POSTROAD_URL`, else the file `postroad.db` in the working directory."""
    if (told := configured_failpoints()) is not None:
        failpoints.load(told)
    address = parse(default_url() if url is None else url)
    return Backend(_ground(address, clock, trail_keep), clock=clock, registry=registry)


def _ground(address: Address, clock: Clock, trail_keep: int) -> Ground:
    # Adapters are imported when they are chosen: a program on one file needs neither boto3 nor its import time.
    if address.scheme in ("memory", "sqlite"):
        from postroad.wiring.sqlite import SQLiteGround

        path = None if address.scheme == "memory" else address.path
        return SQLiteGround(path, clock=clock, trail_keep=trail_keep)
    if address.scheme == "aws":
        from postroad.wiring.aws import AwsGround

        return AwsGround(address, clock=clock)
    raise ConfigurationError(f"url: the scheme {address.scheme!r} is unknown", field="url")
