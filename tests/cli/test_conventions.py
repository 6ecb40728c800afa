"""What holds for every command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.terminal import Postroad

from postroad.cli.app import program, run


def leaves(group: Any, before: str = "") -> Iterator[str]:
    """Every command below a noun, by its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


NOUNS = {name: command for name, command in program().commands.items() if hasattr(command, "commands")}
LEAVES = list(leaves(program()))


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_has_help_with_an_example_and_the_shared_options(path: str, postroad: Postroad) -> None:
    help = postroad(*path.split(), "--help")

    assert help.code == 0
    assert f"  postroad {path}" in help.out
    assert all(option in help.out for option in ("--json", "--url", "--config", "--no-color"))


def test_commands_lists_every_leaf_and_marks_what_destroys(postroad: Postroad) -> None:
    items = postroad("commands", "--json").document["items"]

    assert sorted(item["command"] for item in items) == sorted(LEAVES)
    assert all(item["summary"] for item in items)
    assert {item["command"] for item in items if item["destructive"]} == {
        "agent delete",
        "job cancel",
        "queue delete",
        "queue purge",
        "queue redrive",
        "task cancel",
        "token revoke",
        "topology apply",
    }


def test_the_version_is_that_of_the_package(postroad: Postroad) -> None:
    from postroad import __version__

    assert postroad("version", "--json").document == {"version": __version__}
    assert postroad("version").out == f"postroad {__version__}\n"


def test_shared_options_stand_before_or_after_the_verb(postroad: Postroad) -> None:
    before = postroad("--json", "--url", "sqlite:///before.db", "config", "show").document
    after = postroad("config", "show", "--url", "sqlite:///after.db", "--json").document
    both = postroad("--url", "sqlite:///before.db", "config", "show", "--json", "--url", "sqlite:///after.db").document

    assert [doc["items"][0]["value"] for doc in (before, after, both)] == [
        "sqlite:///before.db",
        "sqlite:///after.db",
        "sqlite:///after.db",
    ]


@pytest.mark.parametrize(
    ("args", "said", "meant"),
    [
        ("quue list", 'error: "postroad quue" is not a command', 'did you mean "queue"?'),
        ("queue lsit", 'error: "postroad queue lsit" is not a command', 'did you mean "list"?'),
        ("queue list --prefx o", "error: no such option: --prefx", 'did you mean "--prefix"?'),
    ],
)
def test_a_misspelt_command_or_option_is_answered_with_the_nearest(
    args: str, said: str, meant: str, postroad: Postroad
) -> None:
    outcome = postroad(*args.split())

    assert outcome.code == 2
    assert outcome.err.splitlines()[:2] == [said, meant]
    assert outcome.out == ""


@pytest.mark.parametrize(
    "args",
    [
        "nonsense",
        "queue show",
        "queue peek q --limit 0",
        "queue peek q --limit abc",
        "queue create q --visibility 5x",
        "queue send q --body x --attr nothing",
        "queue send q --body x --delay -1",
        "config show --url foo://x",
        "config show --config missing.toml",
        "queue create a.b",
        "queue create q --fifo",
        "up --port abc",
    ],
)
def test_wrong_usage_is_exit_2_in_at_most_three_lines(args: str, postroad: Postroad) -> None:
    outcome = postroad(*args.split())

    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert 2 <= len(outcome.err.splitlines()) <= 3
    assert "Traceback" not in outcome.err


def test_an_error_with_json_is_a_problem_object_on_stderr(postroad: Postroad) -> None:
    outcome = postroad("queue", "peek", "orders", "--limit", "0", "--json")

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problem["type"] == "/errors/invalid-input"
    assert outcome.problem["field"] == "limit"
    assert {"title", "status", "detail", "remedy"} <= outcome.problem.keys()


def test_a_noun_without_a_verb_shows_its_help(postroad: Postroad) -> None:
    outcome = postroad("queue")

    assert outcome.code == 2
    assert "Repair\n  redrive" in outcome.err


def test_what_nobody_foresaw_is_told_without_a_traceback(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("postroad.settings.settings.KEYS", None)

    outcome = postroad("config", "show")

    assert outcome.code == 1
    assert outcome.err.splitlines()[0] == "error: unexpected TypeError"
    assert "Traceback" not in outcome.err


def test_a_traceback_is_shown_to_who_asks_for_it(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_DEBUG", "1")

    outcome = postroad("config", "show", "--url", "foo://x")

    assert outcome.code == 2
    assert "Traceback" in outcome.err


def test_an_interruption_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("postroad.cli.call.load", interrupted)

    assert run(["config", "show"]) == 130


def test_a_variable_that_is_no_setting_is_one_warning(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_SERVICE_HOST", "10.0.0.1")

    outcome = postroad("config", "check", "--json")

    assert outcome.code == 0
    assert json.loads(outcome.out) == {"ok": True}
    assert outcome.err == "warning: variable POSTROAD_SERVICE_HOST is not a setting of Postroad; it is ignored\n"


def test_a_verb_that_asks_for_its_settings_twice_warns_once(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_SERVICE_HOST", "10.0.0.1")

    outcome = postroad("task", "submit", "double", "--input", '{"n": 1}')

    assert outcome.code == 0
    assert outcome.err.count("warning: variable POSTROAD_SERVICE_HOST") == 1
