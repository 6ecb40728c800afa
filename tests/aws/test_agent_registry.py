"""Agents and their subscriptions on emulated AWS: many at once, twice, half-way and with a lost answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.aws.cloud import Cloud

from postroad.agents import AgentEvent
from postroad.agents.aws import subscriptions
from postroad.agents.tables import AGENTS, TABLES
from postroad.errors import AgentDeleted, AgentExists, AgentNotFound, ConsentRequired, NotSupported, Unavailable

pytestmark = pytest.mark.aws


@pytest.fixture
def cloud(village: Cloud) -> Cloud:
    return village


def test_the_queue_of_an_agent_has_its_settings_and_its_policy(cloud: Cloud) -> None:
    made = cloud.agents.register(cloud.id("ann"), principal_arn="arn:aws:iam::000000000000:role/ann")
    assert made.queue_url is not None

    told = cloud.aws.sqs.get_queue_attributes(QueueUrl=made.queue_url, AttributeNames=["All"])["Attributes"]

    assert told["DeduplicationScope"] == "messageGroup"
    assert told["FifoThroughputLimit"] == "perMessageGroupId"
    assert told["MessageRetentionPeriod"] == "1209600"
    redrive = json.loads(told["RedrivePolicy"])
    assert redrive["maxReceiveCount"] in (5, "5")
    assert redrive["deadLetterTargetArn"].endswith(":agents-dead.fifo")
    assert told["FifoQueue"] == "true"
    [statement] = json.loads(told["Policy"])["Statement"]
    assert sorted(statement["Action"]) == [
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:GetQueueUrl",
        "sqs:ReceiveMessage",
    ]
    with pytest.raises(NotSupported):
        cloud.agents.queue(cloud.id("ann")).send([])


def test_the_tables_are_on_demand_with_their_keys_stream_and_expiry(cloud: Cloud) -> None:
    names = {table.name: cloud.store._tables.name(table) for table in TABLES}
    found = {name: cloud.aws.dynamodb.describe_table(TableName=real)["Table"] for name, real in names.items()}
    expiry = cloud.aws.dynamodb.describe_time_to_live(TableName=names["SubscriberEvents"])["TimeToLiveDescription"]
    [index] = found["Subscribers"]["GlobalSecondaryIndexes"]

    assert {name: [key["AttributeName"] for key in table["KeySchema"]] for name, table in found.items()} == {
        "Agents": ["agentId"],
        "Subscribers": ["producerId", "subscriberId"],
        "SubscriberEvents": ["subscriberId", "timestamp"],
        "AgentGrants": ["producerId", "subscriberId"],
    }
    assert index["IndexName"] == "bySubscriber"
    assert [key["AttributeName"] for key in index["KeySchema"]] == ["subscriberId", "producerId"]
    assert {table["BillingModeSummary"]["BillingMode"] for table in found.values()} == {"PAY_PER_REQUEST"}
    assert found["SubscriberEvents"]["StreamSpecification"]["StreamViewType"] == "NEW_IMAGE"
    assert (expiry["TimeToLiveStatus"], expiry["AttributeName"]) == ("ENABLED", "expiresAt")


def test_the_registry_keeps_its_rules(cloud: Cloud) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    token = cloud.agents.rotate_token(cloud.id("ann"))
    cloud.agents.grant(cloud.id("ann"), cloud.id("bob"))

    with pytest.raises(AgentExists):
        cloud.register("ann")
    with pytest.raises(AgentNotFound):
        cloud.subscribe("bob", "nobody")
    deleted = cloud.agents.delete(cloud.id("ann"))

    assert deleted.subscribers == 1
    assert cloud.agents.authenticate(token) is None
    assert not cloud.store.subscriptions.is_granted(cloud.id("ann"), cloud.id("bob"))
    assert not {"tokenHash", "formerHash"} & set(
        cloud.store._tables.item(AGENTS, {"agentId": {"S": cloud.id("ann")}}) or {"tokenHash"}
    )
    listed = cloud.everyone()
    assert (cloud.id("ann") in listed, cloud.id("bob") in listed) == (False, True)
    with pytest.raises(AgentDeleted):
        cloud.register("ann")
    with pytest.raises(AgentNotFound):
        cloud.agents.delete(cloud.id("ann"))


def test_a_delete_that_was_cut_off_is_finished_by_a_repeat(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")

    with monkeypatch.context() as patch:
        patch.setattr(cloud.store.registry, "_remove_queue", _die)
        with pytest.raises(KeyboardInterrupt):
            cloud.agents.delete(cloud.id("ann"))
    half = [result.error for result in cloud.agents.publish([AgentEvent(cloud.id("ann"), "x", {})])]
    cloud.agents.delete(cloud.id("ann"))

    assert half == ["agent_not_found"]
    with pytest.raises(AgentDeleted):
        cloud.register("ann")


def test_a_registration_that_was_cut_off_is_repaired_by_a_repeat(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cloud.store._tables, "transact", _die)
        with pytest.raises(KeyboardInterrupt):
            cloud.register("ann")
    unknown = [result.error for result in cloud.agents.publish([AgentEvent(cloud.id("ann"), "x", {})])]

    made = cloud.agents.register(cloud.id("ann"))

    assert unknown == ["agent_not_found"]
    assert cloud.agents.authenticate(made.token) == cloud.id("ann")
    assert cloud.take("ann") == []


def test_many_agents_are_registered_in_few_writes(cloud: Cloud) -> None:
    calls: list[str] = []
    client = cloud.store._tables.client
    client.meta.events.register("before-call.dynamodb", lambda model, **_: calls.append(model.name), unique_id="many")

    made = cloud.agents.register_many(3, order="total", accept="all")
    client.meta.events.unregister("before-call.dynamodb", unique_id="many")
    found = [cloud.agents.get(each.agent_id) for each in made]

    assert calls.count("TransactWriteItems") == len(set(calls)) - 1 == 1
    assert {(agent.order, agent.accept) for agent in found} == {("total", "all")}
    assert [cloud.agents.authenticate(each.token) for each in made] == [each.agent_id for each in made]


def test_a_registration_whose_answer_was_lost_is_found_done(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = cloud.store._tables.transact
    monkeypatch.setattr(cloud.store._tables, "transact", lambda told: writes(told) and False)

    made = cloud.agents.register(cloud.id("ann"))

    assert cloud.agents.authenticate(made.token) == cloud.id("ann")


def test_subscriptions_and_grants_keep_their_rules(cloud: Cloud) -> None:
    cloud.register("ann", "bob", "cat")
    pair = (cloud.id("bob"), cloud.id("ann"))

    new = [cloud.agents.subscribe(*pair) for _ in range(2)]
    first = cloud.agents.subscriptions(cloud.id("bob")).items
    with pytest.raises(ConsentRequired):
        cloud.agents.check_consent(cloud.id("cat"), cloud.id("ann"))
    cloud.agents.grant(cloud.id("ann"), cloud.id("cat"))
    cloud.agents.check_consent(cloud.id("cat"), cloud.id("ann"))
    cloud.subscribe("cat", "ann")
    heard = [each.subscriber_id for each in cloud.agents.subscribers(cloud.id("ann"), limit=1).items]
    cloud.agents.revoke(cloud.id("ann"), cloud.id("cat"))

    assert new == [True, False]
    assert cloud.agents.subscriptions(cloud.id("bob")).items == first
    assert heard == [cloud.id("bob")]
    assert [each.subscriber_id for each in cloud.agents.subscribers(cloud.id("ann")).items] == [cloud.id("bob")]
    with pytest.raises(ConsentRequired):
        cloud.agents.check_consent(cloud.id("cat"), cloud.id("ann"))


def test_many_subscriptions_are_made_all_or_none(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.register("ann", "bob", "cat", "dan")
    pairs = [(cloud.id(listener), cloud.id("ann")) for listener in ("bob", "cat", "dan", "bob")]
    writes = cloud.store._tables.transact
    cloud.subscribe("cat", "ann")
    first = cloud.agents.subscribers(cloud.id("ann")).items

    with pytest.raises(AgentNotFound):
        cloud.agents.subscribe_many([*pairs, (cloud.id("bob"), cloud.id("nobody"))])
    monkeypatch.setattr(subscriptions, "PAUSES", (0.0,))
    monkeypatch.setattr(cloud.store._tables, "transact", lambda told: writes([*told, _refused(told[0])]))
    with pytest.raises(Unavailable):
        cloud.agents.subscribe_many(pairs)
    before = cloud.agents.subscribers(cloud.id("ann")).items
    monkeypatch.undo()
    new = cloud.agents.subscribe_many(pairs)

    assert before == first
    assert new == 2
    assert cloud.agents.subscribe_many(pairs) == 0
    assert first[0] in cloud.agents.subscribers(cloud.id("ann")).items


def test_more_subscriptions_than_a_transaction_holds_are_made_a_hundred_at_a_time(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_AT_ONCE", 2)
    cloud.register("ann", "bob", "cat")
    names = [cloud.id(name) for name in ("ann", "bob", "cat")]

    new = cloud.agents.subscribe_many([(listener, producer) for listener in names for producer in names])

    assert new == 9
    assert len(cloud.agents.subscriptions(names[0]).items) == 3


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def _refused(write: dict[str, Any]) -> dict[str, Any]:
    """A write like this one under a condition that does not hold."""
    put = write["Put"]
    item = {**put["Item"], "subscriberId": {"S": "nobody"}}
    return {"Put": {**put, "Item": item, "ConditionExpression": "attribute_exists(producerId)"}}
