"""`postroad queue peek|send`."""

from __future__ import annotations

import json

import pytest
from tests.aws.endpoint import Answer, endpoint
from tests.cli.terminal import Postroad

from postroad.queues import OutgoingMessage
from postroad.wiring import connect


def test_send_prints_the_id_of_the_message(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")

    sent = postroad("queue", "send", "orders", "--body", "x", "--json").document

    [item] = postroad("queue", "peek", "orders", "--json").document["items"]
    assert sent == {"message_id": item["message_id"]}


def test_send_takes_attributes_group_and_a_body_from_stdin(postroad: Postroad) -> None:
    postroad("queue", "create", "orders.fifo", "--fifo")

    postroad(
        *("queue", "send", "orders.fifo", "--body", "-", "--attr", "EventType=a=b", "--group", "g", "--dedup-id", "d"),
        stdin="hello\n",
    )

    [item] = postroad("queue", "peek", "orders.fifo", "--body", "--json").document["items"]
    assert (item["body"], item["attributes"], item["group"]) == ("hello\n", {"EventType": "a=b"}, "g")


def test_a_delayed_message_is_shown_as_such(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")

    postroad("queue", "send", "orders", "--body", "x", "--delay", "5m")

    [item] = postroad("queue", "peek", "orders", "--json").document["items"]
    assert item["state"] == "delayed"


@pytest.mark.parametrize("extra", [("--group", "a b"), ("--dedup-id", "d"), ("--delay", "20m"), ("--body", "")])
def test_a_message_that_breaks_a_limit_is_exit_2_and_not_sent(extra: tuple[str, str], postroad: Postroad) -> None:
    postroad("queue", "create", "orders")

    outcome = postroad("queue", "send", "orders", "--body", "x", *extra)

    assert outcome.code == 2
    assert postroad("queue", "peek", "orders", "--json").document == {"items": [], "next_cursor": None}


def test_peek_says_how_to_read_on(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    for body in "ab":
        postroad("queue", "send", "orders", "--body", body)

    first = postroad("queue", "peek", "orders", "--limit", "1")
    told = first.out.splitlines()[-1]
    second = postroad("queue", "peek", "orders", *told.removeprefix("more: ").split())

    assert told == f"more: --after {first.out.split()[0]}"
    assert len(second.out.splitlines()) == 1


def test_peek_shows_bodies_only_when_asked_and_touches_nothing(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    postroad("queue", "send", "orders", "--body", "secret")

    hidden = [postroad("queue", "peek", "orders", "--json") for _ in range(5)][-1]
    shown = postroad("queue", "peek", "orders", "--body", "--json")

    assert "secret" not in hidden.out
    assert hidden.document["items"][0].keys() == {
        *("message_id", "attributes", "group", "receive_count", "sent_at", "state", "size")
    }
    assert shown.document["items"][0]["body"] == "secret"
    assert shown.document["items"][0]["receive_count"] == 0


def test_peek_walks_the_queue_page_by_page(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    with connect("sqlite:///postroad.db") as backend:
        backend.queue("orders").send([OutgoingMessage(str(number)) for number in range(5)])

    seen, after = [], None
    while True:
        page = postroad(
            *("queue", "peek", "orders", "--limit", "2", "--body", "--json"), *(("--after", after) if after else ())
        )
        seen += [item["body"] for item in page.document["items"]]
        after = page.document["next_cursor"]
        if after is None:
            break

    assert seen == ["0", "1", "2", "3", "4"]


def test_what_data_says_cannot_drive_the_terminal(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    evil = "\u202e<script>[red]"
    postroad("queue", "send", "orders", "--body", evil, "--attr", f"Note={evil}")

    text = postroad("queue", "peek", "orders", "--body").out

    assert "\u202e" not in text
    assert text.count(r"\u202e<script>[red]") == 2


def test_a_dead_letter_says_why_it_is_one(postroad: Postroad) -> None:
    postroad("queue", "create", "orders-dlq")
    postroad("queue", "create", "orders", "--dead-letter", "orders-dlq")
    postroad("queue", "send", "orders", "--body", "x")
    with connect("sqlite:///postroad.db") as backend:
        queue = backend.queue("orders")
        queue.reject(queue.receive(), reason="poison", error="ValueError: bad amount")

    text = postroad("queue", "peek", "orders-dlq").out

    assert "dead letter of orders after 1 receive: ValueError: bad amount" in text


def test_a_send_and_a_forced_look_are_in_the_audit_without_the_body(postroad: Postroad) -> None:
    postroad("queue", "create", "orders")
    sent = postroad("queue", "send", "orders", "--body", "secret", "--json").document
    postroad("queue", "peek", "orders")
    postroad("queue", "peek", "orders", "--force")

    outcome = postroad("audit", "list", "--json")
    items = outcome.document["items"]
    assert [(item["action"], item["target"]) for item in items] == [
        ("queue.send.start", "orders"),
        ("queue.send.end", "orders"),
        ("queue.peek.start", "orders"),
        ("queue.peek.end", "orders"),
    ]
    assert (items[1]["detail"], items[3]["detail"]) == (sent, {"seen": 1})
    assert "secret" not in outcome.out


@pytest.mark.parametrize("args", ["send orders --body x", "peek orders --force"])
def test_without_an_audit_nothing_is_sent_and_no_look_is_forced(
    args: str, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    postroad("queue", "create", "orders")
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", "missing/audit.jsonl")

    outcome = postroad("queue", *args.split())

    assert outcome.code == 2
    assert "POSTROAD_AUDIT_LOG" in outcome.err
    assert postroad("queue", "peek", "orders", "--json").document["items"] == []


def test_on_sqs_a_queue_with_dead_letters_is_looked_at_by_force_only(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    policy = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:orders-dlq", "maxReceiveCount": 3}
    message = {"MessageId": "m", "ReceiptHandle": "r", "Body": "x"}
    with endpoint() as sqs:
        sqs.on("GetQueueUrl", lambda call: Answer({"QueueUrl": f"{sqs.url}/123456789012/{call['QueueName']}"}))
        sqs.on(
            "GetQueueAttributes",
            lambda call: Answer(
                {"Attributes": {} if call["QueueUrl"].endswith("dlq") else {"RedrivePolicy": json.dumps(policy)}}
            ),
        )
        sqs.on("ReceiveMessage", Answer({"Messages": [message]}))
        url = f"aws://us-east-1?endpoint_url={sqs.url}"

        refused = postroad("queue", "peek", "orders", "--url", url)
        unseen = sqs.calls("ReceiveMessage")
        forced = postroad("queue", "peek", "orders", "--force", "--json", "--url", url)
        letters = postroad("queue", "peek", "orders-dlq", "--json", "--url", url)

        looks = {call["VisibilityTimeout"] for call in sqs.calls("ReceiveMessage")}
    assert (refused.code, unseen) == (2, [])
    assert "--force" in refused.err
    assert (forced.code, len(forced.document["items"])) == (0, 1)
    assert (letters.code, len(letters.document["items"])) == (0, 1)
    assert "sample" in letters.err
    assert looks == {0}
    actions = [item["action"] for item in postroad("audit", "list", "--json").document["items"]]
    assert actions == ["queue.peek.start", "queue.peek.end"]
