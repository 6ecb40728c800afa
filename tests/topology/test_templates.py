"""The five templates hold what their users rely on."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.agents import tables
from postroad.errors import TopologyError
from postroad.topology import (
    AlarmDecl,
    Component,
    FunctionDecl,
    QueueDecl,
    RuleDecl,
    StreamDecl,
    SubscriptionDecl,
    TableDecl,
    TopicDecl,
    Topology,
    TriggerDecl,
    agents_topology,
    bus_topology,
    chat_topology,
    lint,
    render_cloudformation,
    task_topology,
    transfers_topology,
)

FOUR_DAYS, FOURTEEN_DAYS = 345_600, 1_209_600


def queue(topology: Topology, name: str) -> QueueDecl:
    found = topology.get("queue", name)
    assert isinstance(found, QueueDecl)
    return found


def alarm(topology: Topology, name: str) -> AlarmDecl:
    found = topology.get("alarm", name)
    assert isinstance(found, AlarmDecl)
    return found


def function(topology: Topology, name: str) -> FunctionDecl:
    found = topology.get("function", name)
    assert isinstance(found, FunctionDecl)
    return found


def rule(topology: Topology, name: str) -> RuleDecl:
    found = topology.get("rule", name)
    assert isinstance(found, RuleDecl)
    return found


def component(topology: Topology, name: str) -> Component:
    [found] = [each for each in topology.components if each.name == name]
    return found


@pytest.mark.parametrize(
    ("name", "visibility", "purposes"),
    [
        ("push", 60, ("push-notifications", "push-notification-dlq")),
        ("offline", 30, ("offline-message-fanout", "offline-message-dlq")),
    ],
)
def test_chat_has_a_queue_with_dead_letters_for_each_duty(
    name: str, visibility: int, purposes: tuple[str, str]
) -> None:
    topology = chat_topology("rtchat", "prod")

    used = queue(topology, f"rtchat-prod-{name}-queue")
    dead = queue(topology, f"rtchat-prod-{name}-dlq")

    assert len(topology.of("queue")) == 4
    spec = used.spec
    assert (spec.visibility, spec.retention, spec.receive_wait, spec.max_receives) == (visibility, FOUR_DAYS, 20, 3)
    assert spec.dead_letter == dead.name
    assert dead.spec.retention == FOURTEEN_DAYS
    assert dead.spec.redrive_allow == (used.name,)
    assert (used.encryption, dead.encryption) == ("sqs", "sqs")
    shared = {"Project": "rtchat", "Environment": "prod", "ManagedBy": "postroad"}
    assert used.tags == {**shared, "Name": used.name, "Purpose": purposes[0]}
    assert dead.tags == {**shared, "Name": dead.name, "Purpose": purposes[1]}


@pytest.mark.parametrize("name", ["push", "offline"])
def test_chat_hears_of_the_first_dead_letter_and_of_old_messages(name: str) -> None:
    topology = chat_topology("rtchat", "prod")

    dead = alarm(topology, f"rtchat-prod-sqs-{name}-dlq")
    oldest = alarm(topology, f"rtchat-prod-sqs-{name}-oldest")

    assert (dead.resource, dead.comparison, dead.threshold) == (f"rtchat-prod-{name}-dlq", ">=", 1)
    assert (dead.metric, dead.period, dead.periods) == ("ApproximateNumberOfMessagesVisible", 60, 1)
    assert (oldest.resource, oldest.comparison, oldest.threshold) == (f"rtchat-prod-{name}-queue", ">", 300)
    assert (oldest.metric, oldest.period, oldest.periods) == ("ApproximateAgeOfOldestMessage", 60, 3)
    assert dead.notify == oldest.notify == "rtchat-prod-alerts"
    assert isinstance(topology.get("topic", "rtchat-prod-alerts"), TopicDecl)


def test_chat_gives_each_component_what_it_needs() -> None:
    topology = chat_topology("rtchat", "prod")
    push, offline = "rtchat-prod-push-queue", "rtchat-prod-offline-queue"
    dead = ("rtchat-prod-push-dlq", "rtchat-prod-offline-dlq")

    assert component(topology, "realtime") == Component("realtime", sends=(offline,))
    assert component(topology, "workers") == Component("workers", consumes=(push, offline), sends=(push,))
    assert component(topology, "operator") == Component("operator", operates=dead)
    assert component(topology, "dashboard") == Component("dashboard", observes=(push, offline, *dead))


def test_transfers_fan_out_from_one_topic_in_order() -> None:
    topology = transfers_topology()

    assert topology.of("topic") == (TopicDecl("events-transfers.fifo", fifo=True, content_dedup=False),)
    for name in ("gateway-usdc", "ledger-postings", "projections-timeline"):
        spec = queue(topology, f"{name}.fifo").spec
        dead = queue(topology, f"{name}-dlq.fifo").spec
        assert (spec.fifo, spec.visibility, spec.max_receives, spec.retention) == (True, 60, 5, FOUR_DAYS)
        assert (spec.dead_letter, dead.retention) == (dead.name, FOURTEEN_DAYS)
        subscription = topology.get("subscription", f"events-transfers.fifo->{name}.fifo")
        assert isinstance(subscription, SubscriptionDecl)
        assert subscription.raw
        wanted = {"EventType": ("events.transfers.submitted.usdc",)} if name == "gateway-usdc" else {}
        assert subscription.filter == wanted


def test_transfers_have_a_producer_and_one_consumer_for_each_queue() -> None:
    topology = transfers_topology()

    assert component(topology, "producer") == Component("producer", publishes=("events-transfers.fifo",))
    for name in ("gateway-usdc", "ledger-postings", "projections-timeline"):
        assert component(topology, name) == Component(name, consumes=(f"{name}.fifo",))


@pytest.mark.parametrize(
    ("metric", "comparison", "threshold", "minutes"),
    [
        ("event_outbox_backlog", ">", 5_000, 5),
        ("event_publish_lag_seconds", ">", 60, 5),
        ("event_consumer_lag_seconds", ">", 300, 5),
        ("dead_letter_count", ">=", 1, 1),
    ],
)
def test_transfers_watch_the_outbox(metric: str, comparison: str, threshold: int, minutes: int) -> None:
    found = alarm(transfers_topology(), metric)

    assert (found.metric, found.namespace) == (metric, "Postroad")
    assert (found.comparison, found.threshold) == (comparison, threshold)
    assert found.period * found.periods == minutes * 60


def test_a_prefix_stands_before_each_name() -> None:
    topology = transfers_topology("dev.")

    assert {each.name for each in topology.of("queue")} >= {"dev-gateway-usdc.fifo", "dev-gateway-usdc-dlq.fifo"}
    assert topology.of("topic")[0].name == "dev-events-transfers.fifo"


def test_tasks_have_the_events_table_with_its_seven_indexes() -> None:
    table = task_topology("dev").get("table", "events-dev")

    assert isinstance(table, TableDecl)
    assert (table.hash_key, table.range_key, table.ttl_attribute) == ("PK", "SK", "ttl")
    assert [(index.name, index.hash_key, index.range_key, index.projection) for index in table.indexes] == [
        (f"GSI{number}-index", f"GSI{number}PK", f"GSI{number}SK", "ALL") for number in range(1, 8)
    ]


def test_tasks_save_events_and_keep_what_could_not_be_delivered() -> None:
    topology = task_topology("dev")
    dead = queue(topology, "dev-eventbridge-target-dlq").spec

    saved = rule(topology, "dev-save-event-to-dynamo")

    assert topology.find("bus", "events-dev") is not None
    assert (saved.bus, saved.pattern) == ("events-dev", {"detail-type": ["log-event"]})
    assert (saved.target_id, saved.max_attempts, saved.max_event_age) == ("dev-SaveEventToDynamo", 3, 3600)
    assert saved.dead_letter == dead.name
    assert (dead.retention, dead.visibility) == (FOURTEEN_DAYS, 180)
    for each in (rule(topology, name) for name in (saved.name, "dev-dispatcher", "dev-health-check")):
        assert each.dead_letter == function(topology, each.target).on_failure == dead.name


def test_tasks_wake_the_dispatcher_for_four_endings_and_check_health_every_five_minutes() -> None:
    topology = task_topology("dev")

    dispatcher, health = rule(topology, "dev-dispatcher"), rule(topology, "dev-health-check")

    assert dispatcher.pattern is not None
    assert dispatcher.pattern["detail"]["eventType"] == [
        "Task Completed",
        "Task Failed",
        "Task Timeout",
        "Task Cancelled",
    ]
    assert (health.bus, health.schedule) == ("default", "rate(5 minutes)")


def test_tasks_shout_about_lost_events_and_keep_them() -> None:
    topology = task_topology("dev")

    shouting = function(topology, "dev-eventbridge-dlq-alert")

    assert (shouting.timeout, shouting.memory) == (30, 256)
    assert shouting.triggers == (TriggerDecl("dev-eventbridge-target-dlq", batch_size=1),)
    assert "SLACK_WEBHOOK_URL" in shouting.environment
    assert "dev-eventbridge-archive" in shouting.environment["ARCHIVE_QUEUE_URL"]
    assert queue(topology, "dev-eventbridge-archive").spec.retention == FOURTEEN_DAYS
    watched = {each.resource: each for each in topology.of("alarm") if isinstance(each, AlarmDecl)}
    for name in ("dev-eventbridge-target-dlq", "dev-eventbridge-archive"):
        assert (watched[name].comparison, watched[name].threshold) == (">=", 1)


def test_tasks_have_the_workers_queues() -> None:
    topology = task_topology("dev")

    work, dead = queue(topology, "dev-tasks").spec, queue(topology, "dev-tasks-dlq").spec

    assert (work.visibility, work.retention, work.receive_wait) == (900, FOUR_DAYS, 20)
    assert (work.dead_letter, work.max_receives, dead.retention) == ("dev-tasks-dlq", 100, FOURTEEN_DAYS)
    assert queue(topology, "dev-tasks-dispatch").spec.dead_letter is None
    assert len(topology.of("bucket")) == 1


def test_agents_have_the_tables_of_the_agents_package() -> None:
    topology = agents_topology()

    declared = {each.name: each for each in topology.of("table") if isinstance(each, TableDecl)}

    assert declared.keys() == {"Agents", "Subscribers", "SubscriberEvents", "AgentGrants"}
    for table in tables.TABLES:
        assert declared[table.name] == TableDecl.of(table.name, table.shape)
    assert declared["Subscribers"].indexes[0].name == "bySubscriber"
    events = declared["SubscriberEvents"]
    assert (events.hash_key, events.range_key) == ("subscriberId", "timestamp")
    assert (events.stream, events.ttl_attribute) == ("NEW_IMAGE", "expiresAt")


def test_agents_have_a_stream_two_queues_and_three_functions() -> None:
    topology = agents_topology()

    assert topology.of("stream") == (StreamDecl("agent-events", shards=4, retention_hours=24),)
    assert queue(topology, "agents-dead.fifo").spec.redrive_allow == "all"
    assert topology.find("queue", "agents-rejected") is not None
    for name, source in (("aggregator", "agent-events"), ("publisher", "SubscriberEvents")):
        [trigger] = function(topology, name).triggers
        assert trigger.source == source
        assert (trigger.bisect, trigger.max_attempts, trigger.report_item_failures) == (True, -1, True)
    assert function(topology, "publisher").timeout == 360
    [sweep] = topology.of("rule")
    assert isinstance(sweep, RuleDecl)
    assert (sweep.target, sweep.schedule) == ("sweeper", "rate(1 minute)")


def test_agents_hear_of_late_and_throttled_functions() -> None:
    alarms = [each for each in agents_topology().of("alarm") if isinstance(each, AlarmDecl)]

    found = {(each.metric, each.comparison, each.threshold) for each in alarms}

    assert found == {("IteratorAge", ">", 60_000), ("Throttles", ">=", 1)}


@pytest.mark.parametrize(("name", "ordered"), [("control", True), ("state", True), ("telemetry", False)])
def test_the_buses_of_agents_have_dead_letters(name: str, ordered: bool) -> None:
    topology = bus_topology()
    suffix = ".fifo" if ordered else ""

    spec = queue(topology, f"agent-{name}{suffix}").spec

    assert (spec.visibility, spec.retention, spec.receive_wait) == (60, FOUR_DAYS, 20)
    assert (spec.content_dedup, spec.dedup_scope) == ((True, "group") if ordered else (False, "queue"))
    assert spec.dead_letter == f"agent-{name}-dlq{suffix}"
    assert queue(topology, spec.dead_letter).spec.retention == FOURTEEN_DAYS


@pytest.mark.parametrize(
    "topology",
    [chat_topology("rtchat", "prod"), transfers_topology(), task_topology("dev"), agents_topology(), bus_topology()],
    ids=lambda topology: topology.name,
)
def test_no_template_is_wrong(topology: Topology) -> None:
    doubts = {finding.code for finding in lint(topology)}

    assert doubts <= {"no-dlq"}


@pytest.mark.parametrize(
    ("project", "env", "named"),
    [
        ("", "prod", "-prod-push-queue"),
        ("rt.chat", "prod", "rt.chat-prod-push-dlq"),
        ("p" * 80, "prod", "push-dlq"),
        ("rtchat", "", "rtchat--push-queue"),
        (5, "prod", "5-prod-push-queue"),
        ("rtchat", None, "rtchat-None-push-queue"),
    ],
)
def test_a_project_that_makes_no_queue_name_is_refused_naming_the_queue(project: Any, env: Any, named: str) -> None:
    with pytest.raises(TopologyError) as refused:
        chat_topology(project, env)

    assert refused.value.codes == ("name-invalid",)
    assert named in str(refused.value)


@pytest.mark.parametrize("stage", ["", "a.b", "s" * 90])
def test_a_stage_that_makes_no_queue_name_is_refused(stage: str) -> None:
    with pytest.raises(TopologyError) as refused:
        task_topology(stage)

    assert refused.value.codes == ("name-invalid",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (chat_topology("rtchat", "prod"), chat_topology("rtchat", "dev")),
        (chat_topology("rtchat", "prod"), chat_topology("other", "prod")),
        (chat_topology("x" * 55, "prod"), chat_topology("x" * 55, "test")),
        (transfers_topology(), transfers_topology("eu-")),
        (transfers_topology("us-"), transfers_topology("eu-")),
        (task_topology("dev"), task_topology("prod")),
        (agents_topology(), agents_topology("eu-")),
        (bus_topology(), bus_topology("eu-")),
        (agents_topology(), transfers_topology()),
    ],
    ids=lambda topology: topology.name[:12],
)
def test_copies_of_a_template_stand_side_by_side_in_one_account(one: Topology, other: Topology) -> None:
    def names(topology: Topology) -> set[tuple[str, str]]:
        roles = {("role", component.role_name) for component in topology.components}
        return roles | {(each.kind, each.name) for each in topology.resources}

    assert not names(one) & names(other)
    assert all(len(name) <= 64 for kind, name in names(one) | names(other) if kind == "role")


def test_the_role_of_a_chat_component_is_named_after_project_and_environment() -> None:
    topology = chat_topology("rtchat", "prod")

    roles = {component.name: component.role_name for component in topology.components}

    assert roles == {
        "realtime": "rtchat-prod-realtime",
        "workers": "rtchat-prod-workers",
        "operator": "rtchat-prod-operator",
        "dashboard": "rtchat-prod-dashboard",
    }


def test_the_longest_name_that_a_queue_may_have_is_enough_for_everything_else() -> None:
    topology = chat_topology("p" * 61, "prod")

    template = render_cloudformation(topology)

    assert max(len(each.name) for each in topology.of("queue")) == 80
    assert template["Description"].startswith("Topology ppp")


def test_a_stage_with_capitals_and_underscores_has_a_bucket_that_aws_accepts() -> None:
    [bucket] = task_topology("My_Dev").of("bucket")

    assert bucket.name == "events-my-dev-overflow-${AWS::AccountId}"
    assert render_cloudformation(task_topology("My_Dev"))
