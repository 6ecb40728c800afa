"""The way from a bus to AWS: the clients it was given, or its own, made when first used."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

from postroad.clock import Clock
from postroad.connections import AwsConnection
from postroad.errors import ConfigurationError
from postroad.queues import SQSQueues
from postroad.settings import bus_variable

_HOST = re.compile(r"(?:sqs\.(?P<a>[a-z0-9-]+)|(?P<b>[a-z0-9-]+)\.queue)\.amazonaws\.com(\.cn)?")


class Clients:
    """Two connections: one that gives up within the publisher's budget, and one that waits for long polls."""

    def __init__(self, *, place: str | None, timeout: float, given: dict[str, Any]) -> None:
        self._region, self._endpoint = _where(place)
        self._timeout = max(0.1, timeout)
        self._given = {name: client for name, client in given.items() if client is not None}
        self._made: list[AwsConnection] = []

    def publishing(self, service: str) -> Any:
        """What sends through this service."""
        return self._given.get(service) or self._connect(
            connect_timeout=self._timeout / 4, read_timeout=self._timeout / 2, attempts=1
        )

    def longest(self, service: str) -> float | None:
        """How long a send through this service takes at most; None where a given client decides."""
        return None if service in self._given else self._timeout * 0.75

    def receiving(self) -> Any:
        """What receives from SQS."""
        return self._given.get("sqs") or self._connect()

    def close(self) -> None:
        """Close what was made here; clients that were given stay open."""
        for connection in self._made:
            connection.close()

    def _connect(self, **options: Any) -> AwsConnection:
        connection = AwsConnection(self._region, self._endpoint, **options)
        self._made.append(connection)
        return connection


def as_connection(source: Any, service: str) -> AwsConnection:
    """The source as something that has this service's client, be it a connection or the client itself."""
    if isinstance(source, AwsConnection):
        return source
    return cast(AwsConnection, SimpleNamespace(**{service: source, "once": lambda _: source}))


def queues_of(source: Any, clock: Clock) -> SQSQueues:
    """The queues that the client or connection reaches."""
    return SQSQueues(source, clock)


def checked_url(queue_url: str | None) -> str:
    """The queue's URL, from the argument or the environment."""
    told = bus_variable("QUEUE_URL") if queue_url is None else ("queue_url", queue_url)
    url = str(told[1]) if told else ""
    if not url.startswith(("http://", "https://")) or not urlsplit(url).netloc:
        if queue_url is None and told is None:
            what = "queue_url: no queue URL is given, neither as argument nor in WINK_SQS_QUEUE_URL"
        else:
            what = f"queue_url: {url!r} is not the URL of a queue (argument queue_url or variable WINK_SQS_QUEUE_URL)"
        raise ConfigurationError(what, field="queue_url", remedy="Give queue_url=..., or set WINK_SQS_QUEUE_URL.")
    return url


def _where(place: str | None) -> tuple[str | None, str | None]:
    """Region and endpoint, as far as the URL or ARN tells; the rest is AWS's own configuration."""
    if place is None:
        return None, None
    if place.startswith("arn:"):
        return place.split(":")[3] or None, None
    parts = urlsplit(place)
    if (found := _HOST.fullmatch(parts.hostname or "")) is not None:
        return found["a"] or found["b"], None
    return None, f"{parts.scheme}://{parts.netloc}"
