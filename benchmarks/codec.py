"""The codec beside bare msgspec on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from benchmarks.frame import Load, Loads, Opened, Row, Side, WrongResult
from postroad import Envelope, codec

ENVELOPE = Envelope(
    event_type="orders.placed",
    event_id=UUID("0190f3a8-7b1c-7cc3-98c4-dc0c0c07398f"),
    created_at=datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC),
    publisher_id="checkout-1",
    payload={
        "order_id": "A-1001",
        "customer": {"name": "Ada Lovelace", "email": "ada@example.org", "vip": True},
        "lines": [{"sku": f"SKU-{n}", "amount": n, "price": f"{n}.50"} for n in range(1, 6)],
        "placed_at": "2026-01-02T03:04:05Z",
        "note": None,
    },
    version=2,
    tenant_id="acme",
    key="A-1001",
)


@dataclass(frozen=True)
class Bare:
    """The same fields as an envelope, as a dataclass that msgspec reads and writes by itself."""

    event_type: str
    event_id: UUID
    created_at: datetime
    publisher_id: str
    payload: dict[str, Any]
    version: int = 1
    session_id: str | None = None
    tenant_id: str | None = None
    key: str | None = None
    traceparent: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None


@contextmanager
def _ours(_: Path, load: Load) -> Iterator[Opened]:
    yield Opened(lambda: _rate(lambda: codec.decode(codec.encode(ENVELOPE)), ENVELOPE, load.messages))


@contextmanager
def _bare(_: Path, load: Load) -> Iterator[Opened]:
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Bare)
    same = Bare(**{name: value for name, value in asdict(ENVELOPE).items() if name != "keys"})
    yield Opened(lambda: _rate(lambda: decoder.decode(encoder.encode(same)), same, load.messages))


def _rate(step: Callable[[], object], expected: object, count: int) -> float:
    if step() != expected:
        raise WrongResult("what was decoded is not what was encoded")
    started = time.perf_counter()
    for _ in range(count):
        step()
    return count / (time.perf_counter() - started)


ROWS = [
    Row(
        name="codec",
        what="encode and decode an envelope",
        unit="per_second",
        target=0.5,
        ours=Side(label="postroad", package="postroad", open=_ours),
        peer=Side(label="bare msgspec, a dataclass of the same fields", package="msgspec", open=_bare),
        loads=Loads(full=Load(messages=50_000), quick=Load(messages=20_000), smallest=Load(messages=100)),
    )
]
