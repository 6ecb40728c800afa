"""The policies of roles beside the calls that the roles really make: no right is missing, and none is unused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from postroad import Backend, OutgoingMessage, QueueSpec, connect
from postroad.connections import aws_rights
from postroad.connections.aws import AwsConnection
from postroad.operations import Match, redrive
from postroad.receiving import Ack, Receiver, Reject
from postroad.testing import FaultProxy
from postroad.topology import BusDecl, Component, QueueDecl, TopicDecl, Topology, iam_policy

pytestmark = pytest.mark.aws
Work = Callable[[Backend], None]
_OF_BATCHES = {
    "SendMessageBatch": "SendMessage",
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
    "PublishBatch": "Publish",
}
"""The permission that IAM wants for a batch is that of the single call."""
_SQS = (
    *("SendMessage", "DeleteMessage", "ChangeMessageVisibility", "ReceiveMessage", "GetQueueUrl", "GetQueueAttributes"),
    *("CreateQueue", "ListQueues", "SetQueueAttributes", "ListQueueTags", "ListDeadLetterSourceQueues"),
    *("StartMessageMoveTask", "CancelMessageMoveTask", "ListMessageMoveTasks"),
)
_SNS = ("Publish", "CreateTopic", "ListTopics", "GetTopicAttributes", "Subscribe", "ListSubscriptionsByTopic")
_EVENTS = ("PutEvents", "CreateEventBus", "ListEventBuses", "DescribeEventBus", "PutRule", "ListRules")
_SERVICES = {"sqs": _SQS, "sns": _SNS, "events": _EVENTS}
_ACTIONS = {action: f"{service}:{action}" for service, actions in _SERVICES.items() for action in actions}
_ACTIONS |= {batch: _ACTIONS[single] for batch, single in _OF_BATCHES.items()}
"""The permission of each call; a call that is not here is allowed to nobody."""


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
            Component("operator", operates=(dead,)),
        ),
    )
    with connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        for each in topology.of("queue"):
            assert isinstance(each, QueueDecl)
            backend.create_queue(each.spec)
    return topology


def _used(proxy: FaultProxy, allowed: set[str], work: Work) -> set[str]:
    """Do the work where every call that the policy does not allow is refused; return the IAM actions that it used."""
    for action, permission in _ACTIONS.items():
        if permission not in allowed:
            proxy.add("forbidden", match=action)
    with connect(f"aws://us-east-1?endpoint_url={proxy.url}") as backend:
        work(backend)
    return {_ACTIONS.get(seen.action, seen.action) for seen in proxy.seen if seen.status == 200}


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


def test_sec11_a_publisher_uses_exactly_what_it_is_allowed(
    proxy: FaultProxy, aws: AwsConnection, unique: Callable[[str], str]
) -> None:
    name = unique("news")
    arns = aws.sns.create_topic(Name=name)["TopicArn"], aws.events.create_event_bus(Name=name)["EventBusArn"]
    publisher = Component("publisher", publishes=(name,))
    allowed = _allowed(Topology("shop", (TopicDecl(name), BusDecl(name)), (publisher,)), "publisher")

    def publish(backend: Backend) -> None:
        results = [backend.topic(arn).publish([OutgoingMessage("{}", {"EventType": "placed"})])[0] for arn in arns]
        assert all(result.ok for result in results)

    used = _used(proxy, allowed, publish)

    assert used == allowed


def test_sec11_an_operator_uses_exactly_what_it_is_allowed(
    proxy: FaultProxy, shop: Topology, ministack_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The audit record goes into the working directory.
    monkeypatch.chdir(tmp_path)
    dead, name = (each.name for each in shop.of("queue"))
    allowed = _allowed(shop, "operator")
    _send(dead, ministack_url)
    moved: list[int] = []

    def operate(backend: Backend) -> None:
        redriven = partial(redrive, backend, dead, to=name, reason="mended", native=False)
        moved.extend(redriven(match=chosen).moved for chosen in (Match(key="nobody"), None))

    used = _used(proxy, allowed, operate)

    assert moved == [0, 2]
    # The emulator has no move tasks; test_redrive_by_sqs.py makes their calls.
    assert used == allowed - set(aws_rights.MOVE)
