"""Every help page: whole sentences at any width, four panels, an example that works, colour only where it is wanted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.terminal import Postroad

from postroad.cli.app import program
from postroad.cli.call import Verb
from postroad.cli.help import PANELS, first_sentence

WIDTHS = (40, 60, 80, 120, 200)


def _every(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every noun and verb by its words, the program itself included."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _every(each, (*path, name))


PAGES = dict(_every(program()))
VERBS = {path: command for path, command in PAGES.items() if not hasattr(command, "commands")}


def _named(paths: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: " ".join(path) or "postroad")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _texts(command: Any) -> Iterator[str]:
    """Every text of a help page that a person wrote."""
    yield _flat(command.help)
    yield from (_flat(param.help) for param in command.params if not param.hidden)


@_named(PAGES)
def test_a_help_page_is_whole_at_every_width(
    path: tuple[str, ...], postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = PAGES[path]
    below = [first_sentence(each.help) for each in getattr(command, "commands", {}).values()]
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))

        page = postroad(*path, "--help").out

        # A word of an example that is longer than the line is not broken: it could not be copied.
        shown = page.partition("Example\n")[0] if width < 60 else page
        assert max(map(len, shown.splitlines())) <= min(width, 120)
        assert "..." not in page.replace("NAME...", "")
        assert "…" not in page
        # Wrapping changes spaces only; a note in parentheses stands before the last period.
        for text in (*_texts(command), *below):
            assert text.rstrip(".") in _flat(page)


@_named(PAGES)
def test_every_text_of_a_help_page_is_a_sentence(path: tuple[str, ...]) -> None:
    for text in _texts(PAGES[path]):
        assert re.match(r"[A-Z0-9]", text), text
        assert text.endswith("."), text
        assert len(text.split()) > 1, text


@_named(PAGES)
def test_every_command_is_summed_up_in_one_sentence_that_begins_with_a_verb(path: tuple[str, ...]) -> None:
    summary = first_sentence(PAGES[path].help)

    assert summary[0].isupper()
    assert summary.endswith(".")
    assert summary.count(". ") == 0


@_named(VERBS)
def test_every_verb_has_an_example_that_its_own_parser_takes(path: tuple[str, ...]) -> None:
    declared: Verb = VERBS[path].callback.verb
    words = shlex.split(declared.example)

    assert words[: len(path) + 1] == ["postroad", *path]
    assert len(words) > len(path) + 1, "an example shows how the command is used"
    with VERBS[path].make_context(" ".join(path), words[len(path) + 1 :]) as ctx:
        assert not ctx.args


def test_a_long_example_goes_on_in_the_next_line_as_a_shell_reads_it(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    page = postroad("queue", "redrive", "--help").out

    example = page.partition("Example\n")[2].replace("\\\n", "")
    assert shlex.split(example) == shlex.split(VERBS["queue", "redrive"].callback.verb.example)
    assert "\\\n" in page


def test_the_program_shows_its_commands_in_four_panels(postroad: Postroad) -> None:
    lines = postroad("--help").out.splitlines()

    assert [line for line in lines if line in PANELS] == ["Run", "Look", "Repair", "Set up"]
    up = "  up             Run Postroad here, with its API and dashboard, until Ctrl-C."
    assert lines.index("Run") < lines.index(up)
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in program().commands)


def test_every_command_stands_in_a_panel_that_was_chosen_for_it() -> None:
    chosen = {words for all_words in PANELS.values() for words in all_words}

    assert [" ".join(path) for path in PAGES if path and not {" ".join(path), path[-1]} & chosen] == []
    assert sum(map(len, PANELS.values())) == len(chosen)


def test_defaults_and_ranges_are_told_in_parentheses(postroad: Postroad) -> None:
    peek, token, grants = (
        postroad(*path.split(), "--help").out for path in ("queue peek", "agent token", "outbox grants")
    )

    assert "At most this many (10, 1 to 1,000)." in peek
    assert "(10m)." in _flat(token)
    assert "(required)." in grants


def test_a_command_that_is_added_without_a_panel_is_shown_all_the_same() -> None:
    from postroad.cli.help import panel_of

    assert panel_of("queue something-new") == "Run"
    assert (panel_of("agent tail"), panel_of("bus tail")) == ("Run", "Look")
