"""`postroad config`: what the settings are, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.terminal import Postroad


def test_show_tells_value_source_and_variable_of_every_key(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("postroad.toml").write_text("concurrency = 7\n")
    monkeypatch.setenv("POSTROAD_STAGE", "prod")

    items = {item["key"]: item for item in postroad("config", "show", "--json").document["items"]}

    assert items["concurrency"] == {"key": "concurrency", "value": 7, "source": "file", "env": "POSTROAD_CONCURRENCY"}
    assert items["stage"] == {"key": "stage", "value": "prod", "source": "env", "env": "POSTROAD_STAGE"}
    assert items["port"]["source"] == "default"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_show_stars_secrets(flags: tuple[str, ...], postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_TOKEN", "pr_very_secret")

    outcome = postroad("config", "show", *flags)

    assert "***" in outcome.out
    assert "pr_very_secret" not in outcome.out


@pytest.mark.parametrize(
    ("text", "said", "meant"),
    [
        ('port = "abc"', "port: 'abc' from file postroad.toml is not a whole number from 0 to 65535", None),
        ("prot = 1", "prot: not a setting (file postroad.toml)", "port"),
        ("\tprot\t=\t1", "prot: not a setting (file postroad.toml)", "port"),
        ("port = ", "file postroad.toml is not TOML: Invalid value (at end of document)", None),
        ('token = "pr_secret"', "token: not accepted in file postroad.toml, where others may read it", None),
    ],
)
def test_check_names_what_is_wrong_in_the_file(text: str, said: str, meant: str | None, postroad: Postroad) -> None:
    Path("postroad.toml").write_text(text)

    outcome = postroad("config", "check")

    first, *rest = outcome.err.splitlines()
    assert outcome.code == 2
    assert first == f"error: {said}"
    assert (f'did you mean "{meant}"?' in rest) is (meant is not None)
    assert "pr_secret" not in outcome.err


def test_check_names_what_is_wrong_in_the_environment(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_PORT", "70000")

    outcome = postroad("config", "check")

    assert outcome.code == 2
    assert outcome.err.splitlines() == [
        "error: port: '70000' from variable POSTROAD_PORT is not a whole number from 0 to 65535",
        "Give a whole number from 0 to 65535.",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "form"),
    [
        ("POSTROAD_AGENT_RATE", "fast", "a whole number from 0"),
        ("POSTROAD_AGENT_POLLS", "lots", "a whole number from 0"),
        ("POSTROAD_ALERTS_ALLOW_LOOPBACK", "maybe", "true or false"),
        ("POSTROAD_TASK_EVENTS", "maybe", "true or false"),
        ("POSTROAD_SQS_POLL_INTERVAL", "30s", "a number"),
        ("POSTROAD_SQS_VISIBILITY_TIMEOUT", "43201", "from 0 to 43200"),
        ("POSTROAD_SQS_QUEUE_URL", "orders", "the URL of a queue"),
        ("POSTROAD_FAILPOINTS", "queue.send", "the form is name=action"),
    ],
)
def test_check_names_a_bad_variable_its_value_and_the_accepted_form(
    variable: str, value: str, form: str, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    outcome = postroad("config", "check")

    assert outcome.code == 2
    assert all(part in outcome.err for part in (variable, repr(value), form))


def test_check_names_the_variable_of_a_bad_address_of_the_outbox_and_hides_its_value(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_OUTBOX_DSN", "host=db password=hunter2")

    outcome = postroad("config", "check")

    assert outcome.code == 2
    assert "POSTROAD_OUTBOX_DSN is not postgresql://" in outcome.err
    assert "hunter2" not in outcome.err


def test_check_names_the_variable_of_the_bus_that_was_probably_meant(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_SQS_POLL_INTERVALL", "1")

    outcome = postroad("config", "check")

    assert outcome.code == 2
    assert 'did you mean "POSTROAD_SQS_POLL_INTERVAL"?' in outcome.err


def test_check_starts_and_makes_nothing(postroad: Postroad, tmp_path: Path) -> None:
    assert postroad("config", "check").code == 0

    assert list(tmp_path.iterdir()) == []
