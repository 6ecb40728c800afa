"""Tables adapt to the terminal: texts wrap, names and ids stay whole, and what has no room becomes blocks."""

from __future__ import annotations

import io
import sys

import pytest
from rich.text import Text

from postroad.cli.display import table
from postroad.cli.output import console, render, wrapped

HEADINGS = ["QUEUE", ">HELD", "LAST SENT", "ERROR"]
ROWS = [
    ["orders--billing--dead", 12, "2026-11-17 16:28:51", "KeyError: there is no price for this"],
    ["shop", 0, None, Text("-", "red")],
]


def shown(width: int, headings: list[str] = HEADINGS, rows: list[list[object]] = ROWS) -> list[str]:
    page = console(io.StringIO(), color=False)
    page.width = width
    with page.capture() as captured:
        page.print(table(headings, rows))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_table_that_fits_has_one_line_for_each_row() -> None:
    assert shown(100) == [
        "QUEUE                  HELD  LAST SENT            ERROR",
        "orders--billing--dead    12  2026-11-17 16:28:51  KeyError: there is no price for this",
        "shop                      0  -                    -",
    ]


@pytest.mark.parametrize("width", range(56, 90))
def test_a_narrower_one_wraps_texts_and_never_a_name(width: int) -> None:
    lines = shown(width)

    assert max(map(len, lines)) <= width
    assert lines[0].startswith("QUEUE")
    assert "orders--billing--dead    12  2026-11-17" in lines[1]
    assert {"KeyError:", "price", "16:28:51"} <= set(" ".join(lines).split())


@pytest.mark.parametrize("width", range(70, 112))
def test_the_words_of_several_texts_stay_whole_beside_each_other(width: int) -> None:
    headings = ["SCHEDULE", "WHEN", "ZONE", "NEXT", "LAST", "LAST REQUEST ID"]
    rows: list[list[object]] = [
        ["nightly_report_of_everything", "0 3 * * *", "Europe/Athens", "2026-11-19 01:00:00Z", None, None],
        ["refresh", "every 10m", "UTC", "2026-11-18 21:20:00Z", None, None],
    ]

    lines = shown(width, headings, rows)

    assert max(map(len, lines)) <= width
    assert {"2026-11-19", "01:00:00Z", "every", "Europe/Athens"} <= set(" ".join(lines).split())


def test_headings_make_room_for_names_before_a_table_becomes_blocks() -> None:
    headings, rows = ["QUEUE", ">IN FLIGHT", "DEAD LETTERS TO"], [["orders--billing", 12, "orders--billing--dead"]]

    assert shown(49, headings, rows)[0] == "QUEUE            IN FLIGHT  DEAD LETTERS TO"
    assert shown(46, headings, rows) == [
        "                     IN",
        "QUEUE            FLIGHT  DEAD LETTERS TO",
        "orders--billing      12  orders--billing--dead",
    ]
    assert shown(45, headings, rows)[0] == "QUEUE            orders--billing"


@pytest.mark.parametrize("width", [24, 30, 36])
def test_one_without_room_for_its_names_becomes_a_block_for_each_row(width: int) -> None:
    lines = shown(
        width, ["QUEUE", ">HELD", "TO"], [["orders--billing", 12, "orders--billing--dead"], ["shop", 0, None]]
    )

    assert "HELD   12" in lines
    assert lines[-4:] == ["", "QUEUE  shop", "HELD   0", "TO     -"]
    assert "".join(lines).replace(" ", "").startswith("QUEUEorders--billingHELD12TOorders--billing--dead")


@pytest.mark.parametrize("width", [20, 40])
def test_two_columns_lose_nothing_however_narrow_the_terminal(width: int) -> None:
    lines = shown(width, ["SETTING", "VALUE"], [["url", "sqlite:////var/lib/postroad/postroad.db"]])

    assert max(map(len, lines)) <= width
    assert "".join("".join(lines[1:]).split()) == "urlsqlite:////var/lib/postroad/postroad.db"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "30")


def test_a_cursor_below_a_table_stays_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow_terminal(monkeypatch)
    told = f"more: --cursor {'x' * 60}"

    assert render(table(HEADINGS, ROWS), told, color=False).splitlines()[-1] == told


def test_lines_are_broken_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow_terminal(monkeypatch)
    lines = [f"dead  event {'e' * 36}: it is a dead letter", "    ValueError: no price for milk", ""]

    assert list(wrapped(lines)) == [
        "dead  event",
        f"    {'e' * 36}:",
        "    it is a dead letter",
        "    ValueError: no price for",
        "        milk",
        "",
    ]


def test_lines_in_a_pipe_stay_as_they_are() -> None:
    lines = ["word " * 50, ""]

    assert list(wrapped(lines)) == lines
