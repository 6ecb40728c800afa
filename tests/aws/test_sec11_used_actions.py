"""The policies of roles beside the calls that the roles really make: no right is missing, and none is unused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from postroad import Backend, OutgoingMessage, QueueSpec, connect
from postroad.receiving import Ack, Receiver, Reject
from postroad.testing import FaultProxy
from postroad.topology import Component, QueueDecl, Topology, iam_policy

pytestmark = pytest.mark.aws
Work = Callable[[Backend], None]
_SQS = {
    "SendMessageBatch": "SendMessage",
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
}
"""The permission that IAM wants for a batch is that of the single call."""
_ACTIONS = (*_SQS, *_SQS.values(), "ReceiveMessage", "GetQueueUrl", "GetQueueAttributes", "CreateQueue", "ListQueues")


@pytest.fixture
def proxy(ministack_url: str) -> Iterator[FaultProxy]:
    with FaultProxy(ministack_url) as proxy:
        yield proxy


@pytest.fixture
def shop(ministack_url: str, unique: Callable[[str], str]) -> Topology:
    """A queue with dead letters, which exists, and a component for each role."""
    name = unique("orders")
    dead = f"{name}-dlq"
    topology = Topology(
        "shop",
        (QueueDecl(QueueSpec(dead)), QueueDecl(QueueSpec(name, dead_letter=dead, max_receives=5))),
        (
            Component("sender", sends=(name,)),
            Component("consumer", consumes=(name,)),
            Component("observer", observes=(name, dead)),
        ),
    )
    with connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        for each in topology.of("queue"):
            assert isinstance(each, QueueDecl)
            backend.create_queue(each.spec)
    return topology


def _used(proxy: FaultProxy, allowed: set[str], work: Work) -> set[str]:
    """Do the work where every call that the policy does not allow is refused; return the IAM actions that it used."""
    for action in _ACTIONS:
        if f"sqs:{_SQS.get(action, action)}" not in allowed:
            proxy.add("forbidden", match=action)
    with connect(f"aws://us-east-1?endpoint_url={proxy.url}") as backend:
        work(backend)
    return {f"sqs:{_SQS.get(seen.action, seen.action)}" for seen in proxy.seen if seen.status == 200}


def _allowed(topology: Topology, component: str) -> set[str]:
    document: dict[str, Any] = iam_policy(topology, component, region="eu-central-1", account="123456789012")
    return {action for statement in document["Statement"] for action in statement["Action"]}


def _send(name: str, ministack_url: str) -> None:
    with connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        assert all(result.ok for result in backend.queue(name).send([OutgoingMessage(body) for body in "ab"]))


def test_sec11_a_sender_uses_exactly_what_it_is_allowed(proxy: FaultProxy, shop: Topology) -> None:
    name, allowed = shop.components[0].sends[0], _allowed(shop, "sender")

    def send(backend: Backend) -> None:
        [result] = backend.queue(name).send([OutgoingMessage("a")])
        assert result.ok

    used = _used(proxy, allowed, send)

    assert used == allowed


def test_sec11_a_consumer_uses_exactly_what_it_is_allowed(
    proxy: FaultProxy, shop: Topology, ministack_url: str
) -> None:
    name, allowed = shop.components[1].consumes[0], _allowed(shop, "consumer")
    _send(name, ministack_url)

    def consume(backend: Backend) -> None:
        queue = backend.queue(name)
        Receiver(
            queue, lambda delivery: Ack() if delivery.body == b"a" else Reject(reason="invalid"), wait=1.0
        ).run_once(wait=1.0)
        queue.stats()
        _send(name, ministack_url)
        held = queue.receive(wait=1.0)
        queue.extend(held, seconds=60)
        queue.release(held)

    used = _used(proxy, allowed, consume)

    assert used == allowed


def test_sec11_an_observer_uses_exactly_what_it_is_allowed(proxy: FaultProxy, shop: Topology) -> None:
    names, allowed = shop.components[2].observes, _allowed(shop, "observer")

    def observe(backend: Backend) -> None:
        for name in names:
            backend.queue(name).stats()

    used = _used(proxy, allowed, observe)

    assert used == allowed
