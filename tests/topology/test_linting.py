"""What lint says, code by code."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.errors import InvalidInput, TopologyError
from postroad.queues import QueueSpec
from postroad.topology import (
    AlarmDecl,
    BucketDecl,
    BusDecl,
    Component,
    FunctionDecl,
    IndexDecl,
    QueueDecl,
    Resource,
    RuleDecl,
    StreamDecl,
    SubscriptionDecl,
    TableDecl,
    TopicDecl,
    Topology,
    TriggerDecl,
    aws_name,
    chat_topology,
    lint,
    plan,
    render_cloudformation,
)
from postroad.wiring import connect


def spec(name: str, /, **changed: object) -> QueueSpec:
    """Settings that `QueueSpec` itself might refuse, as a hand-written file could hold them."""
    made = QueueSpec(name, fifo=name.endswith(".fifo"))
    for field, value in changed.items():
        object.__setattr__(made, field, value)
    return made


def queues(*specs: QueueSpec) -> Topology:
    return Topology("test", tuple(QueueDecl(each) for each in specs))


def codes(topology: Topology, **options: object) -> set[tuple[str, str]]:
    found = lint(topology, **options)  # type: ignore[arg-type]  # the options of each case
    return {(finding.code, finding.severity) for finding in found}


CASES: list[tuple[str, str, Topology]] = [
    ("name-invalid", "error", queues(spec("orders", name="or.ders"))),
    ("name-invalid", "error", Topology("two words", ())),
    ("name-clash", "error", queues(spec("orders"), spec("orders"))),
    ("name-clash", "error", Topology("test", (BusDecl("a.b"), BusDecl("a-b")))),
    ("unknown-reference", "error", queues(spec("orders", dead_letter="nowhere"))),
    ("unknown-reference", "error", Topology("test", (), (Component("app", sends=("nowhere",)),))),
    ("unknown-reference", "error", Topology("test", (SubscriptionDecl("news", "orders"),))),
    ("unknown-reference", "error", Topology("test", (FunctionDecl("f", "m.handler", "nobody"),))),
    ("unknown-reference", "error", Topology("test", (QueueDecl(spec("orders"), encryption="my-key"),))),
    ("fifo-mismatch", "error", queues(spec("orders.fifo", dead_letter="dead"), spec("dead"))),
    ("fifo-mismatch", "error", Topology("test", (TopicDecl("news", fifo=True),))),
    (
        "fifo-mismatch",
        "error",
        Topology("test", (TopicDecl("news"), QueueDecl(spec("a.fifo")), SubscriptionDecl("news", "a.fifo"))),
    ),
    ("dlq-retention", "error", queues(spec("orders", dead_letter="dead"), spec("dead", retention=60))),
    ("dlq-retention", "warning", queues(spec("orders", dead_letter="dead"), spec("dead"))),
    ("dlq-cycle", "error", queues(spec("orders", dead_letter="orders"))),
    ("dlq-cycle", "error", queues(spec("a", dead_letter="b"), spec("b", dead_letter="c"), spec("c", dead_letter="a"))),
    ("no-dlq", "warning", queues(spec("orders"))),
    ("short-poll", "warning", queues(spec("orders", receive_wait=0))),
    ("max-receives-low", "warning", queues(spec("orders", dead_letter="dead", max_receives=1), spec("dead"))),
    ("redrive-allow-open", "warning", queues(spec("orders", dead_letter="dead"), spec("dead"))),
    ("unencrypted", "warning", Topology("test", (QueueDecl(spec("orders"), encryption="none"),))),
    (
        "alarm-threshold",
        "warning",
        Topology(
            "test",
            (
                QueueDecl(spec("orders", dead_letter="dead")),
                QueueDecl(spec("dead")),
                AlarmDecl("late", "ApproximateNumberOfMessagesVisible", "dead", 1, comparison=">"),
            ),
        ),
    ),
    (
        "alarm-threshold",
        "warning",
        Topology(
            "test",
            (
                BusDecl("bus"),
                QueueDecl(spec("orders")),
                QueueDecl(spec("lost")),
                RuleDecl("r", "bus", "orders", "t", pattern={}, dead_letter="lost"),
                AlarmDecl("late", "ApproximateNumberOfMessagesVisible", "lost", 1, comparison=">"),
            ),
        ),
    ),
    (
        "rule-dlq-fifo",
        "error",
        Topology(
            "test",
            (
                BusDecl("bus"),
                QueueDecl(spec("orders")),
                QueueDecl(spec("dead.fifo")),
                RuleDecl("r", "bus", "orders", "t", pattern={}, dead_letter="dead.fifo"),
            ),
        ),
    ),
]


@pytest.mark.parametrize(
    ("code", "severity", "topology"), CASES, ids=[f"{c}-{s}-{i}" for i, (c, s, _) in enumerate(CASES)]
)
def test_lint_finds(code: str, severity: str, topology: Topology) -> None:
    assert (code, severity) in codes(topology)


def test_visibility_has_to_be_twice_what_handlers_take() -> None:
    topology = queues(spec("orders", visibility=30))

    assert ("visibility-below-p99", "warning") in codes(topology, handler_p99={"orders": 15.5})
    assert ("visibility-below-p99", "warning") not in codes(topology, handler_p99={"orders": 15})


def test_dead_letters_of_more_than_ten_queues_may_be_open_to_all() -> None:
    many = [spec(f"orders-{n}", dead_letter="dead") for n in range(11)]

    assert ("redrive-allow-open", "warning") not in codes(queues(*many, spec("dead", retention=1_209_600)))


def test_the_retention_of_fifo_dead_letters_starts_anew() -> None:
    topology = queues(spec("orders.fifo", dead_letter="dead.fifo"), spec("dead.fifo", retention=60))

    assert not {code for code, _ in codes(topology)} & {"dlq-retention"}


def test_chat_is_without_doubt() -> None:
    assert lint(chat_topology("rtchat", "prod")) == ()


def test_an_error_stops_plan_and_render_and_lists_all_findings() -> None:
    topology = queues(spec("orders", dead_letter="nowhere", receive_wait=0))

    with connect("memory://") as backend, pytest.raises(TopologyError) as planned:
        plan(topology, backend)
    with pytest.raises(TopologyError) as rendered:
        render_cloudformation(topology)

    assert planned.value.codes == rendered.value.codes == ("unknown-reference",)
    assert {finding.code for finding in planned.value.findings} == {"unknown-reference", "short-poll"}  # type: ignore[attr-defined]  # findings of lint
    assert "'nowhere'" in str(planned.value)


def test_an_unknown_reference_suggests_the_nearest_name() -> None:
    resources: tuple[Resource, ...] = (QueueDecl(spec("orders")),)
    topology = Topology("test", resources, (Component("app", sends=("oders",)),))

    [finding] = [each for each in lint(topology) if each.code == "unknown-reference"]

    assert "'orders'" in finding.remedy


@pytest.mark.parametrize(
    ("dotted", "fifo", "name"),
    [
        ("gateway.usdc", True, "gateway-usdc.fifo"),
        ("gateway.usdc", False, "gateway-usdc"),
        ("gateway.usdc.fifo", True, "gateway-usdc.fifo"),
        ("events.transfers", True, "events-transfers.fifo"),
    ],
)
def test_a_dotted_name_becomes_one_that_aws_accepts(dotted: str, fifo: bool, name: str) -> None:
    assert aws_name(dotted, fifo=fifo) == name


@pytest.mark.parametrize("dotted", ["", "a b", "ü", "x" * 81, "a/b"])
def test_a_name_that_no_mapping_can_save_is_refused(dotted: str) -> None:
    with pytest.raises(TopologyError) as refused:
        aws_name(dotted)

    assert refused.value.codes == ("name-invalid",)


def stream(**settings: Any) -> Topology:
    return Topology("t", (StreamDecl("events", **settings),))


def rule(**settings: Any) -> Topology:
    resources = (
        BusDecl("bus"),
        QueueDecl(QueueSpec("orders")),
        RuleDecl("r", target="orders", target_id="o", **settings),
    )
    return Topology("t", resources)


@pytest.mark.parametrize(
    ("topology", "field"),
    [
        (stream(shards=0), "shards"),
        (stream(shards=1.5), "shards"),
        (stream(shards=True), "shards"),
        (stream(retention_hours=0), "retention_hours"),
        (stream(retention_hours=8_761), "retention_hours"),
        (rule(bus="bus"), "pattern"),
        (rule(bus="bus", pattern={}), "pattern"),
        (rule(bus="default", pattern={"a": ["b"]}, schedule="rate(1 minute)"), "pattern"),
        (rule(bus="bus", schedule="rate(1 minute)"), "schedule"),
        (rule(bus="bus", pattern={"a": ["b"]}, max_attempts=186), "max_attempts"),
        (rule(bus="bus", pattern={"a": ["b"]}, max_event_age=59), "max_event_age"),
        (Topology("t", (TableDecl("things", ""),)), "hash_key"),
        (Topology("t", (TableDecl("things", "id", "id"),)), "range_key"),
        (Topology("t", (TableDecl("things", "id", indexes=(IndexDecl("i", ""),)),)), "hash_key"),
        (Topology("t", (BucketDecl("blobs", expire_days=0),)), "expire_days"),
        (Topology("t", (FunctionDecl("f", "m.h", "c", timeout=901),), (Component("c"),)), "timeout"),
        (Topology("t", (FunctionDecl("f", "m.h", "c", memory=64),), (Component("c"),)), "memory"),
        (
            Topology(
                "t",
                (QueueDecl(QueueSpec("orders")), FunctionDecl("f", "m.h", "c", triggers=(TriggerDecl("orders", 0),))),
                (Component("c"),),
            ),
            "batch_size",
        ),
        *(
            (
                Topology(
                    "t",
                    (StreamDecl("s"), FunctionDecl("f", "m.h", "c", triggers=(TriggerDecl("s", max_attempts=most),))),
                    (Component("c"),),
                ),
                "max_attempts",
            )
            for most in (-2, 10_001)
        ),
        (Topology("t", (QueueDecl(QueueSpec("o")), AlarmDecl("a", "m", "o", float("nan")))), "threshold"),
        (Topology("t", (QueueDecl(QueueSpec("o")), AlarmDecl("a", "m", "o", 1, periods=0))), "periods"),
        (Topology("t", (QueueDecl(QueueSpec("o")), AlarmDecl("a", "m", "o", 1, comparison="=>"))), "comparison"),  # type: ignore[arg-type]  # what a slip gives
        (Topology("t", (QueueDecl(QueueSpec("o")), AlarmDecl("a", "m", "o", 1, missing="bad"))), "missing"),  # type: ignore[arg-type]  # what a slip gives
        (Topology("t", (TableDecl("things", "id", indexes=(IndexDecl("i", "n", projection="SOME"),)),)), "projection"),  # type: ignore[arg-type]  # what a slip gives
        (Topology("t", (TableDecl("things", "id", ""),)), "range_key"),
        (Topology("t", (QueueDecl(QueueSpec("o")),), (Component("c", sends="o"),)), "sends"),  # type: ignore[arg-type]  # what a slip gives
    ],
)
def test_a_setting_that_no_store_accepts_is_refused_by_its_name(topology: Topology, field: str) -> None:
    with pytest.raises(TopologyError, match=rf"{field}: ") as refused:
        render_cloudformation(topology)

    assert refused.value.field == field


def test_what_is_no_declaration_is_refused_by_its_place() -> None:
    with pytest.raises(TopologyError, match=r"resources\[1\]: is str"):
        Topology("t", (StreamDecl("a"), "b"))  # type: ignore[arg-type]  # what a slip gives


def test_a_p99_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="handler_p99"):
        lint(Topology("t", (QueueDecl(QueueSpec("orders")),)), handler_p99={"orders": "5s"})  # type: ignore[dict-item]  # what a slip gives
