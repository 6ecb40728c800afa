"""`postroad doctor`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.terminal import Postroad

from postroad import QueueSpec
from postroad.wiring import connect


@pytest.fixture(autouse=True)
def _room_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=500_000_000, total=1_000_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)


@pytest.fixture(autouse=True)
def _queues() -> None:
    with connect("sqlite:///postroad.db") as backend:
        backend.create_queue(QueueSpec("orders-dlq", retention=1_209_600, redrive_allow=("orders",)))
        backend.create_queue(QueueSpec("orders", dead_letter="orders-dlq"))


def test_a_healthy_store_is_exit_0(postroad: Postroad) -> None:
    found = postroad("doctor", "--strict", "--json")

    assert (found.code, found.document) == (0, {"ok": True, "findings": []})
    assert postroad("doctor").out == "nothing found\n"


def test_a_warning_is_exit_1_only_when_strict(postroad: Postroad) -> None:
    lenient = postroad("doctor", "--p99", "orders=20s", "--json")
    strict = postroad("doctor", "--p99", "orders=20", "--strict", "--json")

    assert (lenient.code, lenient.document["ok"]) == (0, True)
    assert (strict.code, strict.document["ok"]) == (1, False)
    [finding] = strict.document["findings"]
    assert finding.keys() == {"code", "severity", "target", "message", "remedy"}
    assert (finding["code"], finding["severity"], finding["target"]) == ("visibility-below-p99", "warning", "orders")


def test_an_error_is_exit_1(postroad: Postroad) -> None:
    found = postroad("doctor", "--inbox-retention", "1d")

    assert found.code == 1
    _, first, second = found.out.splitlines()
    assert first.split()[:2] == ["error", "inbox-window"]
    assert second.strip().startswith("Give the inbox a retention of")


@pytest.mark.parametrize(("length", "found"), [(31, ["token-weak"]), (32, [])])
def test_a_token_that_can_be_guessed_is_found(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch, length: int, found: list[str]
) -> None:
    monkeypatch.setenv("POSTROAD_TOKEN", "t" * length)

    outcome = postroad("doctor", "--json")

    assert [each["code"] for each in outcome.document["findings"]] == found
    assert "t" * length not in outcome.out


def test_a_token_beside_the_data_that_can_be_guessed_is_found(postroad: Postroad) -> None:
    token = Path("postroad.db.token")
    token.write_text("guess-me\n")
    token.chmod(0o600)

    outcome = postroad("doctor", "--json")

    assert "token-weak" in [each["code"] for each in outcome.document["findings"]]
    assert "guess-me" not in outcome.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--p99 orders", "p99"),
        ("--p99 orders=soon", "soon"),
        ("--p99 ordres=1", 'did you mean "orders"?'),
        ("--dsn mysql://x", "dsn"),
        ("--inbox-retention x", "duration"),
    ],
)
def test_wrong_usage_is_exit_2(args: str, said: str, postroad: Postroad) -> None:
    outcome = postroad("doctor", *args.split())

    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_a_server_that_cannot_be_reached_is_exit_3(postroad: Postroad) -> None:
    assert postroad("doctor", "--dsn", "postgresql://nobody@127.0.0.1:1/none").code == 3
