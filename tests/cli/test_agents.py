"""`postroad agent` and `postroad plan agents`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.cli.terminal import Postroad

from postroad.cli import agents


@pytest.fixture
def village(postroad: Postroad) -> Postroad:
    """Two agents, `bob` listens to `ann`."""
    postroad("agent", "create", "ann")
    postroad("agent", "create", "bob", "--order", "total")
    postroad("agent", "subscribe", "bob", "ann")
    return postroad


def test_create_prints_the_token_once(postroad: Postroad) -> None:
    outcome = postroad("agent", "create", "--accept", "all", "--json")

    assert outcome.code == 0
    assert sorted(outcome.document) == ["agentId", "createdAt", "token"]
    assert postroad("agent", "show", outcome.document["agentId"], "--json").document["accept"] == "all"


def test_agents_are_listed_and_shown(village: Postroad) -> None:
    listed = village("agent", "list", "--json").document
    shown = village("agent", "show", "bob", "--json").document
    people = village("agent", "list")

    assert [row["agentId"] for row in listed["items"]] == ["ann", "bob"]
    assert listed["next_cursor"] is None
    assert shown["subscriptions"][0]["producerId"] == "ann"
    assert "total" in people.out


def test_a_missing_age_is_shown_as_a_dash(village: Postroad) -> None:
    shown = village("agent", "show", "bob")

    assert "oldest age seconds: -\n" in shown.out
    assert "None" not in shown.out


def test_an_event_is_published_moved_and_tailed(village: Postroad) -> None:
    published = village("agent", "publish", "ann", "placed", '{"n": 1}', "--event-id", "e1", "--json")
    moved = village("agent", "run", "--once", "--json")
    peeked = village("agent", "tail", "bob", "--max", "1", "--wait", "1", "--no-ack", "--json")
    tailed = village("agent", "tail", "bob", "--wait", "0", "--json")
    empty = village("agent", "tail", "bob", "--wait", "0", "--json")

    assert sorted(published.document) == ["eventId", "sequenceNumber", "shardId"]
    assert moved.document == {"read": 1, "written": 1, "released": 1, "rejected": 0}
    assert json.loads(peeked.out)["eventId"] == json.loads(tailed.out)["eventId"] == "e1"
    assert json.loads(tailed.out)["receiveCount"] == 1
    assert empty.out == ""


def test_a_tail_goes_on_until_the_silence_is_over(village: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_SLICE_SECONDS", 0.01)
    began = time.monotonic()

    outcome = village("agent", "tail", "bob", "--wait", "0.3")

    assert (outcome.code, outcome.out) == (0, "")
    assert time.monotonic() - began >= 0.3


def test_a_file_is_published_until_the_first_bad_line(village: Postroad, tmp_path: Path) -> None:
    lines = [json.dumps({"agentId": "ann", "eventType": "x", "data": {"n": n}}) for n in range(3)]
    (tmp_path / "events").write_text("\n".join([*lines[:2], '{"agentId": "ann"}', lines[2]]))

    outcome = village("agent", "publish", "--file", "events", "--json")
    from_stdin = village("agent", "publish", "--file", "-", stdin=lines[2])

    assert outcome.code == 2
    assert "line 3" in outcome.problem["detail"]
    assert len(outcome.out.splitlines()) == 2
    assert from_stdin.out == "published 1 event\n"
    assert village("agent", "run", "--once", "--json").document["read"] == 3


def test_pausing_resuming_and_replaying(village: Postroad) -> None:
    village("agent", "publish", "ann", "placed", "{}")
    village("agent", "run", "--once")

    assert village("agent", "pause", "bob", "ann", "--json").document == {"state": "paused"}
    assert village("agent", "tail", "bob", "--wait", "0").out == ""
    assert village("agent", "resume", "bob", "ann", "--json").document == {"state": "active"}
    assert village("agent", "replay", "bob", "ann", "--json").document == {"replayed": 1}
    assert village("agent", "grant", "ann", "bob").code == 0
    assert village("agent", "unsubscribe", "bob", "ann", "--discard", "--json").document == {"unsubscribed": True}
    assert village("agent", "dead", "bob", "--json").document == {"items": []}
    assert village("agent", "redrive", "bob", "--json").document == {"redriven": 0}
    assert village("agent", "provision").code == 0


def test_a_redrive_is_recorded_before_and_after(village: Postroad) -> None:
    village("agent", "redrive", "bob", "--limit", "5")
    unknown = village("agent", "redrive", "eve")

    started, ended = village("audit", "list", "--json").document["items"]
    assert (started["action"], started["target"], started["detail"]) == ("agent.redrive.start", "bob", {"limit": 5})
    assert (ended["action"], ended["detail"]) == ("agent.redrive.end", {"redriven": 0})
    assert unknown.code == 1


def test_nothing_is_redriven_without_a_record(village: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", "no/such/directory/audit.jsonl")

    outcome = village("agent", "redrive", "bob")

    assert (outcome.code, outcome.out) == (2, "")
    assert "POSTROAD_AUDIT_LOG" in outcome.err


def test_deleting_asks_first(village: Postroad) -> None:
    refused = village("agent", "delete", "ann")
    done = village("agent", "delete", "ann", "--yes", "--json")

    assert refused.code == 2
    assert done.document == {"discarded": 0, "subscriptions": 0, "subscribers": 1}
    assert village("agent", "show", "ann").code == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("show", "nobody"), 1),
        (("create", "a#b"), 2),
        (("create", "ann"), 1),
        (("create", "--order", "newest"), 2),
        (("publish", "ann", "x", "[1]"), 2),
        (("publish", "ann", "x", "{"), 2),
        (("publish", "nobody", "x", "{}"), 1),
        (("publish", "ann"), 2),
        (("publish", "--file", "missing"), 2),
        (("pause", "ann", "bob"), 1),
        (("replay", "bob", "ann", "--since", "yesterday"), 2),
        (("tail", "nobody"), 1),
    ],
)
def test_refusals_have_their_exit_codes(village: Postroad, words: tuple[str, ...], code: int) -> None:
    outcome = village("agent", *words)

    assert outcome.code == code
    assert len(outcome.err.splitlines()) <= 3


def test_the_plan_keeps_to_its_formulas(postroad: Postroad) -> None:
    document = postroad("plan", "agents", "--json").document

    assert document["deliveries_per_second"] == 1_000_000
    assert document["kinesis"] == {"shards": 125, "hot_producer_events_per_second": 1_000}
    assert document["dynamodb"]["partitions"] == 2_000
    assert document["dynamodb"]["storage_gb"] == pytest.approx(774_144)
    assert document["sqs"]["messages_per_call"] == 1
    assert document["lambda"]["invocations_per_second"] == 2_125
    assert document["sns_sqs"]["feasible"] is False
    assert [quota["name"] for quota in document["quotas"] if quota["exceeded"]] == [
        "dynamodb_table_write_units",
        "lambda_concurrency",
        "sns_fifo_topics",
    ]
    cost = document["cost_per_month"]
    assert cost["total"] == pytest.approx(cost["kinesis"] + cost["dynamodb"] + cost["sqs"] + cost["lambda"])
    assert document["cost_per_million_deliveries"] == pytest.approx(cost["total"] / 2_592_000)


def test_the_plan_of_other_numbers_is_what_one_reckons_by_hand(postroad: Postroad) -> None:
    words = "--agents 500 --events-per-second 2000 --subscribers 40 --event-bytes 3000 --window-seconds 2"
    more = "--retention-hours 24 --poll-seconds 10 --headroom 1.5"

    document = postroad("plan", "agents", *words.split(), *more.split(), "--json").document

    assert document["deliveries_per_second"] == 80_000
    assert document["kinesis"] == {"shards": 9, "hot_producer_events_per_second": 349}
    assert {**document["dynamodb"], "storage_gb": None} == {
        "row_bytes": 3_256,
        "write_units_per_row": 4,
        "write_units_per_second": 320_000,
        "partitions": 320,
        "read_units_per_second": 4_000,
        "batch_write_calls_per_second": 3_200,
        "storage_gb": None,
        "hot_subscriber_events_per_second": 250,
    }
    assert document["dynamodb"]["storage_gb"] == pytest.approx(80_000 * 3_256 * 86_400 / 1e9)
    assert document["sqs"] == {
        "queues": 500,
        "messages_per_call": 10,
        "send_calls_per_second": 8_000,
        "receive_calls_per_second": 8_000,
        "delete_calls_per_second": 8_000,
    }
    assert document["lambda"] == {
        "aggregator_concurrency": 9,
        "publisher_concurrency": 320,
        "invocations_per_second": 165,
    }
    assert document["sns_sqs"] == {"topics": 500, "publish_calls_per_second": 2_000, "feasible": True}
    assert document["cost_per_month"]["kinesis"] == pytest.approx(9 * 720 * 0.015 + 2_000 * 2.592 * 0.014)
    assert document["cost_per_month"]["dynamodb"] == pytest.approx(
        (320_000 * 0.625 + 4_000 * 0.125) * 2.592 + document["dynamodb"]["storage_gb"] * 0.25
    )
    assert document["cost_per_month"]["sqs"] == pytest.approx(24_000 * 2.592 * 0.5)
    assert document["cost_per_month"]["lambda"] == pytest.approx(165 * (2.592 * 0.2 + 0.1 * 2_592_000 * 0.0000166667))


def test_prices_of_ones_own_count(postroad: Postroad, tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text('{"sqs_fifo_million": 1}')

    ours = postroad("plan", "agents", "--prices", "prices.json", "--json").document
    people = postroad("plan", "agents")

    assert ours["prices"]["sqs_fifo_million"] == 1
    assert "ask AWS first: dynamodb_table_write_units" in people.out
    assert "cheapest change" in people.out
    assert f"us-east-1 of {ours['prices_as_of']} unless given with --prices" in people.out


@pytest.mark.parametrize(
    "words", [("--agents", "0"), ("--subscribers", "-1"), ("--headroom", "nan"), ("--prices", "missing")]
)
def test_a_plan_of_nothing_is_refused(postroad: Postroad, words: tuple[str, ...]) -> None:
    assert postroad("plan", "agents", *words).code == 2


def test_token_gives_another_one_and_voids_the_former_at_once_with_an_overlap_of_0(village: Postroad) -> None:
    outcome = village("agent", "token", "ann", "--overlap", "0", "--json")
    kept = village("agent", "token", "ann", "--overlap", "1d", "--json")
    unknown = village("agent", "token", "nobody")
    too_long = village("agent", "token", "ann", "--overlap", "2d")

    assert outcome.code == 0
    assert sorted(outcome.document) == ["previousValidUntil", "token"]
    assert kept.document["previousValidUntil"] > outcome.document["previousValidUntil"]
    assert (unknown.code, too_long.code) == (1, 2)
    assert "overlap" in too_long.err


def test_a_subscription_to_some_types_is_made_and_shown(village: Postroad) -> None:
    made = village("agent", "subscribe", "bob", "ann", "--type", "order.*", "--type", "paid")
    refused = village("agent", "subscribe", "bob", "ann", "--type", "order*")
    shown = village("agent", "show", "bob")

    assert made.out.strip() == "bob already listens to ann (order.*, paid)"
    assert (refused.code, "event_types[0]" in refused.err) == (2, True)
    assert shown.out.splitlines()[-1] == "listens to ann (active): order.*, paid"
    assert village("agent", "show", "bob", "--json").document["subscriptions"][0]["eventTypes"] == ["order.*", "paid"]
