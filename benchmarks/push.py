"""The row of pushes: a thousand devices of one provider beside a bare loop of httpx."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.certificates import make_certificates, private_pem
from benchmarks.frame import Load, Loads, Opened, Row, Side, WrongResult
from benchmarks.http2 import running
from postroad.notifications.messages import PushNotification, PushPayload
from postroad.notifications.senders import APNSSender

CONCURRENCY = 8
_DEVICES = [f"{number:064x}" for number in range(1_000)]
_PUSH = PushNotification(
    userId="user_123",
    deviceTokens=("device",),
    payload=PushPayload("New message", "John: Hey!", {"conversationId": "conv_456"}),
    timestamp=datetime(2024, 1, 15, 10, 30, tzinfo=UTC),
)
_BODY = json.dumps({"aps": {"alert": {"title": "New message", "body": "John: Hey!"}}, "conversationId": "conv_456"})

# What Apple refuses a push without, or takes something else for; what differs from push to push is left out.
_HEADERS = {
    "authorization": f"bearer {'x' * 200}",
    "content-type": "application/json",
    "apns-topic": "com.example.chat",
    "apns-push-type": "alert",
    "apns-priority": "10",
    "apns-expiration": "1800000000",
}


@contextmanager
def _ours(directory: Path, load: Load) -> Iterator[Opened]:
    """As many threads as the worker has send to all devices."""
    certificates = make_certificates(directory)
    key = private_pem(ec.generate_private_key(ec.SECP256R1()))
    devices = _DEVICES[: load.messages]
    with running(certificates) as url, ThreadPoolExecutor(CONCURRENCY) as pool:
        with APNSSender(
            key=key,
            key_id="ABC123DEFG",
            team_id="DEF123GHIJ",
            topic="com.example.chat",
            base_url=url,
            ca_file=certificates.ca_file,
        ) as sender:

            def run() -> float:
                started = time.perf_counter()
                results = list(pool.map(lambda device: sender.send(_PUSH, device, push_id="push"), devices))
                seconds = time.perf_counter() - started
                _check([(result.status, result.provider_id) for result in results], devices)
                return len(devices) / seconds

            yield Opened(run)


@contextmanager
def _bare(directory: Path, load: Load) -> Iterator[Opened]:
    """As many tasks post the same to all devices, with the headers that every push has and nothing around it."""
    certificates = make_certificates(directory)
    devices = _DEVICES[: load.messages]
    with running(certificates) as url, asyncio.Runner() as runner:
        # The context by itself: what httpx reads of a file is deprecated there.
        trust = httpx.create_ssl_context()
        trust.load_verify_locations(certificates.ca_file)
        kept = httpx.Limits(keepalive_expiry=None)
        client = httpx.AsyncClient(
            base_url=url, headers=_HEADERS, http1=False, http2=True, verify=trust, timeout=10.0, limits=kept
        )

        def run() -> float:
            started = time.perf_counter()
            answers = runner.run(_post_all(client, devices))
            seconds = time.perf_counter() - started
            _check([(answer.status_code, answer.headers["apns-id"]) for answer in answers], devices)
            return len(devices) / seconds

        yield Opened(run)
        runner.run(client.aclose())


async def _post_all(client: httpx.AsyncClient, devices: list[str]) -> list[httpx.Response]:
    waiting, answers = iter(devices), list[httpx.Response]()

    async def work() -> None:
        for device in waiting:
            answers.append(await client.post(f"/3/device/{device}", content=_BODY))

    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    return answers


def _check(answers: list[tuple[int | None, str | None]], devices: list[str]) -> None:
    if answers != [(200, "1")] * len(devices):
        raise WrongResult(f"not all were sent over one connection: {set(answers)}")


ROWS = [
    Row(
        name="push-http2",
        unit="per_second",
        target=0.7,
        loads=Loads(full=Load(messages=1_000), quick=Load(messages=1_000), smallest=Load(messages=20)),
        what=f"pushes to 1,000 devices over one HTTP/2 connection, {CONCURRENCY} at a time",
        ours=Side(label="APNSSender", package="postroad", open=_ours),
        peer=Side(label="bare loop of httpx", package="httpx", open=_bare),
    ),
]
