"""Plan, apply, drift and alarms on the embedded engine and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from postroad.errors import PlanChanged, QueueNotFound, TopologyError
from postroad.operations import AuditLog, doctor
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.tasks import ensure_queues
from postroad.topology import (
    Action,
    AlarmDecl,
    ApplyResult,
    Component,
    Drift,
    QueueDecl,
    StreamDecl,
    SubscriptionDecl,
    TopicDecl,
    Topology,
    agents_topology,
    apply,
    bus_topology,
    chat_topology,
    drift,
    evaluate_alarms,
    lint,
    plan,
    task_topology,
    transfers_topology,
)
from postroad.wiring import Backend, connect

PUSH, PUSH_DLQ = "rtchat-prod-push-queue", "rtchat-prod-push-dlq"


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'p.db'}"
    with connect(url) as opened:
        yield opened


@pytest.fixture
def chat() -> Topology:
    return chat_topology("rtchat", "prod")


def changes_of(actions: tuple[Action, ...]) -> list[tuple[str, str, str]]:
    return [(action.verb, action.kind, action.name) for action in actions]


def without(topology: Topology, *names: str) -> Topology:
    return replace(topology, resources=tuple(each for each in topology.resources if each.name not in names))


def test_a_plan_names_dead_letters_before_their_sources_and_skips_what_is_not_made_here(
    backend: Backend, chat: Topology
) -> None:
    found = plan(chat, backend)

    names = [action.name for action in found.actions if action.verb == "create"]
    assert names.index(PUSH_DLQ) < names.index(PUSH)
    skipped = [action for action in found.actions if action.verb == "skip"]
    assert {action.kind for action in skipped} == {"alarm"}
    assert all(action.reason for action in skipped)
    assert not found.empty
    assert backend.queues() == []


def test_queues_and_topics_come_before_subscriptions(backend: Backend) -> None:
    kinds = [action.kind for action in plan(transfers_topology(), backend).actions if action.verb == "create"]

    first = kinds.index("subscription")
    assert {"queue", "topic"}.isdisjoint(kinds[first:])


def test_apply_makes_everything_and_a_second_apply_changes_nothing(backend: Backend) -> None:
    topology = transfers_topology()

    first = apply(topology, backend)
    second = apply(topology, backend)

    assert len(first.applied) == 10
    assert first.failed == ()
    assert second.applied == ()
    assert second.failed == ()
    assert plan(topology, backend).empty
    assert plan(topology, backend).unchanged == 10


def test_what_was_made_carries_messages(backend: Backend) -> None:
    apply(transfers_topology(), backend)
    topic = backend.topic("events-transfers.fifo", fifo=True)
    kinds = {"usdc": "events.transfers.submitted.usdc", "other": "events.transfers.settled"}

    for body, kind in kinds.items():
        topic.publish([OutgoingMessage(body, {"EventType": kind}, group="g", dedup_id=body)])

    received = {
        name: [each.body for each in backend.queue(name).receive(max_messages=10)]
        for name in ("gateway-usdc.fifo", "ledger-postings.fifo")
    }
    assert received == {"gateway-usdc.fifo": [b"usdc"], "ledger-postings.fifo": [b"usdc", b"other"]}


def test_neither_plan_nor_drift_nor_a_second_apply_writes_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    topology = transfers_topology()
    with connect(f"sqlite:///{path}") as backend:
        apply(topology, backend)
        watching = apsw.Connection(str(path))
        before = watching.pragma("data_version")

        plan(topology, backend)
        drift(topology, backend)
        apply(topology, backend)

        after = watching.pragma("data_version")
        watching.close()
    assert after == before


def test_a_setting_changed_by_hand_is_one_drift_and_apply_changes_it_back(backend: Backend, chat: Topology) -> None:
    apply(chat, backend)
    backend.update_queue(replace(backend.queue_spec(PUSH), visibility=5))

    found = drift(chat, backend)
    done = apply(chat, backend)

    assert found == (Drift("queue", PUSH, "visibility", 60, 5),)
    assert [(action.verb, action.name, dict(action.changes)) for action in done.applied] == [
        ("update", PUSH, {"visibility": (5, 60)})
    ]
    assert drift(chat, backend) == ()


def test_a_filter_changed_by_hand_is_one_drift(backend: Backend) -> None:
    topology = transfers_topology()
    apply(topology, backend)
    queue = backend.queue("gateway-usdc.fifo")
    backend.topic("events-transfers.fifo", fifo=True).subscribe(queue, filter={"EventType": ["other"]})

    [found] = drift(topology, backend)

    assert (found.kind, found.field, found.have) == ("subscription", "filter", {"EventType": ["other"]})
    assert len(apply(topology, backend).applied) == 1
    assert drift(topology, backend) == ()


def test_a_deleted_queue_is_a_drift_without_a_field(backend: Backend, chat: Topology) -> None:
    apply(chat, backend)
    backend.delete_queue(PUSH)

    [found] = drift(chat, backend)

    assert (found.name, found.field, found.have) == (PUSH, "", None)
    assert changes_of(apply(chat, backend).applied) == [("create", "queue", PUSH)]


def test_a_queue_that_was_there_is_adopted_with_its_messages(backend: Backend, chat: Topology) -> None:
    backend.create_queue(QueueSpec(PUSH, visibility=5)).send([OutgoingMessage("kept")])

    done = apply(chat, backend)

    assert ("update", "queue", PUSH) in changes_of(done.applied)
    assert backend.queue_spec(PUSH).visibility == 60
    assert backend.queue(PUSH).stats().visible == 1


def test_another_plan_than_expected_changes_nothing(backend: Backend, chat: Topology) -> None:
    agreed = plan(chat, backend).digest
    backend.create_queue(QueueSpec(PUSH_DLQ))

    with pytest.raises(PlanChanged):
        apply(chat, backend, expect=agreed)

    assert backend.queues() == [PUSH_DLQ]


def test_the_plan_that_was_agreed_to_is_carried_out(backend: Backend, chat: Topology) -> None:
    done = apply(chat, backend, expect=plan(chat, backend).digest)

    assert len(done.applied) == 5


def test_the_same_state_gives_the_same_digest(backend: Backend, chat: Topology) -> None:
    assert plan(chat, backend).digest == plan(chat, backend).digest


def test_what_is_not_declared_is_left_alone(backend: Backend, chat: Topology) -> None:
    backend.create_queue(QueueSpec("somebody-elses"))
    apply(chat, backend)

    done = apply(without(chat, "rtchat-prod-alerts", *(each.name for each in chat.of("alarm"))), backend)

    assert done.applied == ()
    assert "somebody-elses" in backend.queues()
    assert "rtchat-prod-alerts" in backend.topics()


def test_prune_removes_what_the_topology_made_and_nothing_else(backend: Backend) -> None:
    whole = Topology(
        "shop",
        (
            QueueDecl(QueueSpec("orders")),
            TopicDecl("news"),
            SubscriptionDecl("news", "orders"),
            StreamDecl("clicks", shards=2),
        ),
    )
    backend.create_queue(QueueSpec("somebody-elses"))
    backend.topic("other-news")
    apply(Topology("elsewhere", (QueueDecl(QueueSpec("of-another-topology")),)), backend)
    apply(whole, backend)

    done = apply(Topology("shop", ()), backend, prune=True)

    assert {(action.kind, action.name) for action in done.applied} == {
        ("subscription", "news->orders"),
        ("queue", "orders"),
        ("topic", "news"),
        ("stream", "clicks"),
    }
    assert backend.queues() == ["of-another-topology", "somebody-elses"]
    assert backend.topics() == ["other-news"]
    assert apply(Topology("shop", ()), backend, prune=True).applied == ()


def test_prune_keeps_a_queue_with_messages(backend: Backend) -> None:
    apply(Topology("shop", (QueueDecl(QueueSpec("orders")),)), backend)
    backend.queue("orders").send([OutgoingMessage("one")])

    done = apply(Topology("shop", ()), backend, prune=True)

    assert (done.applied, [(action.verb, action.reason) for action in done.skipped]) == (
        (),
        [("skip", "it holds messages")],
    )
    assert backend.queue("orders").stats().visible == 1


def test_prune_keeps_the_dead_letters_of_queues_that_stay(backend: Backend) -> None:
    ours = (
        QueueDecl(QueueSpec("last")),
        QueueDecl(QueueSpec("dead", dead_letter="last")),
        QueueDecl(QueueSpec("orders", dead_letter="dead")),
        QueueDecl(QueueSpec("free")),
    )
    apply(Topology("shop", ours), backend)
    backend.queue("orders").send([OutgoingMessage("one")])

    done = apply(Topology("shop", ()), backend, prune=True)

    assert changes_of(done.applied) == [("delete", "queue", "free")]
    assert {action.name: action.reason for action in done.skipped} == {
        "last": "queue 'dead' has its dead letters there",
        "dead": "queue 'orders' has its dead letters there",
        "orders": "it holds messages",
    }


def test_prune_keeps_the_dead_letters_of_a_queue_that_somebody_else_made(backend: Backend) -> None:
    apply(Topology("shop", (QueueDecl(QueueSpec("dead")),)), backend)
    backend.create_queue(QueueSpec("somebody-elses", dead_letter="dead"))

    done = apply(Topology("shop", ()), backend, prune=True)

    assert (done.applied, [action.name for action in done.skipped]) == ((), ["dead"])


def test_a_filter_in_another_order_is_the_same_filter(backend: Backend) -> None:
    def filtered(*values: str) -> Topology:
        parts = (TopicDecl("news"), QueueDecl(QueueSpec("orders")))
        return Topology("shop", (*parts, SubscriptionDecl("news", "orders", filter={"EventType": values})))

    apply(filtered("a", "b"), backend)

    assert plan(filtered("b", "a"), backend).empty
    assert not plan(filtered("b", "c"), backend).empty


def test_prune_removes_a_queue_that_was_adopted(backend: Backend) -> None:
    backend.create_queue(QueueSpec("orders"))
    apply(Topology("shop", (QueueDecl(QueueSpec("orders")),)), backend)

    apply(Topology("shop", ()), backend, prune=True)

    assert backend.queues() == []


def test_a_removed_queue_shows_in_a_plan_that_prunes_only(backend: Backend) -> None:
    apply(Topology("shop", (QueueDecl(QueueSpec("orders")),)), backend)
    rest = Topology("shop", ())

    assert plan(rest, backend).empty
    assert changes_of(plan(rest, backend, prune=True).actions) == [("delete", "queue", "orders")]
    with pytest.raises(PlanChanged):
        apply(rest, backend, prune=True, expect=plan(rest, backend).digest)


def test_a_stream_keeps_records_as_long_as_declared(backend: Backend) -> None:
    apply(Topology("shop", (StreamDecl("clicks", shards=2, retention_hours=48),)), backend)

    shorter = Topology("shop", (StreamDecl("clicks", shards=2, retention_hours=24),))

    assert drift(shorter, backend) == (Drift("stream", "clicks", "retention_hours", 24, 48),)
    assert len(apply(shorter, backend).applied) == 1
    assert drift(shorter, backend) == ()


def test_one_failure_stops_what_depends_on_it_and_nothing_else(backend: Backend) -> None:
    backend.stream("clicks", shards=4)
    topology = Topology(
        "shop",
        (
            StreamDecl("clicks", shards=1),
            QueueDecl(QueueSpec("dead", retention=1_209_600)),
            QueueDecl(QueueSpec("orders", dead_letter="dead")),
        ),
    )

    done = apply(topology, backend)

    assert changes_of(done.applied) == [("create", "queue", "dead"), ("create", "queue", "orders")]
    [(action, why)] = done.failed
    assert (action.kind, action.name) == ("stream", "clicks")
    assert "4 shards" in why


def test_dependants_of_a_failure_are_named_and_a_second_run_finishes(backend: Backend) -> None:
    def shop(dead: QueueSpec) -> Topology:
        orders = QueueDecl(QueueSpec("orders", dead_letter="dead"))
        return Topology("shop", (QueueDecl(dead), orders, TopicDecl("news"), SubscriptionDecl("news", "orders")))

    first = apply(shop(QueueSpec("dead", retention=1_209_600, redrive_allow="none")), backend)
    second = apply(shop(QueueSpec("dead", retention=1_209_600, redrive_allow=("orders",))), backend)

    assert [(action.name, why[:9]) for action, why in first.failed] == [
        ("orders", "dead_lett"),
        ("news->orders", "not tried"),
    ]
    assert changes_of(first.applied) == [("create", "queue", "dead"), ("create", "topic", "news")]
    assert changes_of(second.applied) == [
        ("update", "queue", "dead"),
        ("create", "queue", "orders"),
        ("create", "subscription", "news->orders"),
    ]


def test_two_applies_at_once_give_what_one_gives(tmp_path: Path) -> None:
    topology = transfers_topology()
    url = f"sqlite:///{tmp_path / 'p.db'}"
    connect(url).close()

    def work(_: int) -> ApplyResult:
        with connect(url) as backend:
            return apply(topology, backend)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))

    assert [result.failed for result in results] == [()] * 4
    with connect(url) as backend:
        assert drift(topology, backend) == ()
        assert len(backend.queues()) == 6


@pytest.mark.parametrize("code", ["nowhere", "s3://", "s3://bucket", "s3://bucket/", "https://bucket/key"])
def test_code_that_lies_nowhere_is_refused(backend: Backend, chat: Topology, code: str) -> None:
    with pytest.raises(TopologyError) as refused:
        apply(chat, backend, code=code)

    assert refused.value.field == "code"
    assert backend.queues() == []


def test_alarms_are_judged_by_what_the_queues_hold(backend: Backend, chat: Topology) -> None:
    apply(chat, backend)
    backend.queue(PUSH_DLQ).send([OutgoingMessage("dead")])

    states = {state.name: state for state in evaluate_alarms(chat, backend)}

    dead = states["rtchat-prod-sqs-push-dlq"]
    assert (dead.state, dead.value, dead.threshold) == ("alarm", 1.0, 1.0)
    assert states["rtchat-prod-sqs-offline-dlq"].state == "ok"
    assert states["rtchat-prod-sqs-push-oldest"].value == 0


def test_an_alarm_without_a_number_has_no_data(backend: Backend) -> None:
    topology = Topology(
        "shop",
        (QueueDecl(QueueSpec("orders")), AlarmDecl("a", "ApproximateNumberOfMessagesVisible", "orders", 1)),
    )

    [missing] = evaluate_alarms(topology, backend)
    backlog, *_ = evaluate_alarms(transfers_topology(), backend)

    assert (missing.state, missing.value) == ("no_data", None)
    assert backlog.state == "no_data"


def test_tasks_get_their_queues_and_skip_the_rest(backend: Backend) -> None:
    done = apply(task_topology("dev"), backend)

    assert "dev-tasks" in backend.queues()
    assert {action.kind for action in done.skipped} == {"table", "bus", "bucket", "function", "rule", "alarm"}
    with pytest.raises(QueueNotFound):
        backend.queue("events-dev")


def test_an_apply_that_changes_something_is_audited(tmp_path: Path, chat: Topology) -> None:
    with connect(f"sqlite:///{tmp_path / 'p.db'}") as backend:
        apply(chat, backend, actor="ada")
        apply(chat, backend, actor="ada")

    log = AuditLog(tmp_path / "postroad-audit.jsonl")
    records = list(log.read())

    assert [(record.action, record.actor, record.target) for record in records] == [
        ("topology.apply.start", "ada", "rtchat-prod"),
        ("topology.apply.end", "ada", "rtchat-prod"),
    ]
    assert records[1].detail["applied"] == 5
    assert log.verify().ok


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda backend: apply(chat_topology("rtchat", "prod"), backend), id="chat"),
        pytest.param(lambda backend: apply(transfers_topology(), backend), id="transfers"),
        pytest.param(lambda backend: apply(task_topology("dev"), backend), id="tasks"),
        pytest.param(lambda backend: apply(agents_topology(), backend), id="agents"),
        pytest.param(lambda backend: apply(bus_topology("shop-"), backend), id="bus-template"),
        pytest.param(ensure_queues, id="queues-of-tasks"),
        pytest.param(lambda backend: backend.bus("orders", "billing"), id="group"),
        pytest.param(lambda backend: backend.bus("orders").start_receiver(), id="broadcast"),
        pytest.param(lambda backend: backend.archive("orders"), id="archive"),
    ],
)
def test_a_fresh_install_leaves_the_doctor_nothing_to_say(backend: Backend, made: Callable[[Backend], object]) -> None:
    made(backend)

    assert doctor(backend) == ()


def test_a_topology_that_a_template_cannot_hold_is_warned_of() -> None:
    queues = [QueueDecl(QueueSpec(f"q-{number}", redrive_allow="none", receive_wait=20)) for number in range(260)]

    codes = [finding.code for finding in lint(Topology("big", tuple(queues)))]

    assert codes.count("too-many-resources") == 1


def test_a_policy_that_a_role_cannot_hold_is_warned_of() -> None:
    queues = tuple(QueueDecl(QueueSpec(f"queue-with-a-long-name-{number}", receive_wait=20)) for number in range(140))
    component = Component("everything", sends=tuple(queue.name for queue in queues))

    findings = lint(Topology("wide", queues, components=(component,)))

    assert [finding.target for finding in findings if finding.code == "policy-too-large"] == ["everything"]
