"""`stream`: producers put records, and workers share the shards by leases and store how far they are."""

from __future__ import annotations

import time
from itertools import pairwise

from postroad.errors import PostroadError
from postroad.streams import TRIM_HORIZON, Record, ShardLease, Stream
from postroad.testing.verify import workload
from postroad.testing.verify.scenario import Client, Facts, History, Place, Role, Scenario
from postroad.testing.verify.workload import Message
from postroad.wiring import Backend

_STREAM, _CONSUMER = "verify", "ledger"
_SHARDS = 4
_LEASE_SECONDS = 3.0
_CALM_LEASE_SECONDS = 60.0
_RENEW_SECONDS = 0.5


def _prepare(place: Place, backend: Backend) -> None:
    backend.stream(_STREAM, _SHARDS)


def _produce(client: Client, backend: Backend) -> None:
    stream = backend.stream(_STREAM, _SHARDS)

    def put(message: Message) -> Exception | None:
        return stream.put([Record(key=message.body.key, data=message.raw)])[0].error

    workload.publish_all(client, _STREAM, put)


def _work(client: Client, backend: Backend) -> None:
    """Read the shards of this worker's share, handle each record, and store the position after each read."""
    handler = workload.Handler(client, _CONSUMER)
    stream = backend.stream(_STREAM, _SHARDS)
    client.at_work()
    seconds = _LEASE_SECONDS if client.place.faults else _CALM_LEASE_SECONDS
    leases: list[ShardLease] = []
    renew_at = 0.0
    while not client.stopping:
        try:
            if time.monotonic() >= renew_at:
                renew_at = time.monotonic() + _RENEW_SECONDS
                leases = stream.lease(_CONSUMER, client.name, seconds=seconds)
            moved = [_advance(client, handler, stream, lease) for lease in leases]
        except PostroadError:
            moved = []
        if not any(moved):
            time.sleep(0.02)


def _advance(client: Client, handler: workload.Handler, stream: Stream, lease: ShardLease) -> bool:
    """Handle what follows in one shard; return whether there was anything."""
    began = time.monotonic()
    after = stream.position(_CONSUMER, lease.shard) or TRIM_HORIZON
    records = stream.read(lease.shard, after=after, limit=10)
    if not records:
        return False
    with client.holding():
        for record in records:
            body = workload.read_body(record.data)
            fields = workload.fields_of(body, record.data)
            client.record("receive", sub=_CONSUMER, sequence=record.sequence, t0=began, **fields)
            started = time.monotonic()
            handler.take_effect(body)
            client.record("handled", sub=_CONSUMER, id=body.id, key=body.key, n=body.n, t0=started)
        stream.checkpoint(_CONSUMER, lease.shard, records[-1].sequence, lease=lease)
    return True


def _read_back(place: Place, backend: Backend, history: History) -> None:
    """Read every shard once more from its beginning: no sequence twice, none smaller than the one before."""
    stream = backend.stream(_STREAM, _SHARDS)
    for shard in stream.shards():
        read = [(record.sequence, workload.read_body(record.data).id) for record in workload.whole(stream, shard)]
        sequences = [sequence for sequence, _ in read]
        grows = all(earlier < later for earlier, later in pairwise(sequences))
        history.check("I21", grows, f"sequences of {shard} grow")
        for record in workload.behind(stream, _CONSUMER, shard):
            history.write("left", sub=_CONSUMER, id=workload.read_body(record.data).id)
        handled = workload.effects_of(place, _CONSUMER)
        passed = [each for sequence, each in read if sequence <= (stream.position(_CONSUMER, shard) or "")]
        missed = [each for each in passed if each not in handled]
        history.check("I21", not missed, f"the checkpoint of {shard} passed {missed[:3]} unhandled")


SCENARIO = Scenario(
    facts=Facts(subscriptions={_STREAM: (_CONSUMER,)}, ordered=True, visibility=0),
    roles={
        "producer": Role(work=_produce, processes=2, sends=True),
        "worker": Role(work=_work, processes=2, holds=True),
    },
    prepare=_prepare,
    unsettled=lambda place, backend: workload.unread(backend.stream(_STREAM, _SHARDS), _CONSUMER),
    read_back=_read_back,
    weight=50,
    stores=("sqlite",),
)
