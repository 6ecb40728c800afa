"""What people see: tables without lines, numbers to the right, and nothing that data could do to a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from postroad.cli.packages import queues, rich_cells, rich_padding, rich_table, rich_text, views
from postroad.cli.parameters import short_duration
from postroad.telemetry import counted, legible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

_SECONDS = {"visibility", "retention", "delay", "receive_wait", "auto_delete_after"}


def table(headings: Sequence[str], rows: Iterable[Iterable[Any]], nothing: str | None = None) -> RenderableType:
    """Return columns with two spaces between them, or `nothing` if there are no rows.

    Headings that begin with '>' align to the right. A cell is a `Text`, or any value; None is shown as '-'.
    """
    text = rich_text.Text
    cells = [
        [cell if isinstance(cell, text) else text(legible("-" if cell is None else cell)) for cell in row]
        for row in rows
    ]
    return _Table(headings, cells) if cells or nothing is None else rich_text.Text(nothing)


class _Table:
    """Rows below their headings; if the terminal is too narrow for the words, a block for each row."""

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[rich_text.Text]]) -> None:
        self._names = [heading.lstrip(">") for heading in headings]
        self._to_the_right = [heading.startswith(">") for heading in headings]
        self._rows = rows
        columns = ([row[index].plain for row in rows] for index in range(len(headings)))
        # What has no space is a name, an id or a number, which nobody could copy if it were broken.
        self._words = [[part for cell in cells for part in re.split("[ \\n]", cell)] for cells in columns]
        self._whole = [len(words) == len(rows) for words in self._words]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        # The words of a heading that is wider than its column stand below each other where that makes room.
        widths = (max(map(len, words), default=0) for words in self._words)
        stacked = [n if len(n) <= width else n.replace(" ", "\n") for n, width in zip(self._names, widths, strict=True)]
        headings = self._names if self._least_width(self._names) <= options.max_width else stacked
        fits = self._least_width(headings) <= options.max_width
        if fits or len(self._names) < 3:
            yield self._columns(headings, self._widths(headings, options.max_width) if fits else None)
        else:
            yield from self._blocks()

    def _least_width(self, headings: Sequence[str]) -> int:
        return 2 * (len(headings) - 1) + sum(self._least_widths(headings))

    def _least_widths(self, headings: Sequence[str]) -> list[int]:
        return [
            max(map(rich_cells.cell_len, (*words, *(name.splitlines() if whole else name.split()))))
            for name, words, whole in zip(headings, self._words, self._whole, strict=True)
        ]

    def _widths(self, headings: Sequence[str], most: int) -> list[int]:
        """Return the widths of columns that fit: no word is broken, and what is left goes to those that lack least."""
        widths = self._least_widths(headings)
        lacking = [
            max(
                rich_cells.cell_len(line)
                for text in (name, *(row[index].plain for row in self._rows))
                for line in text.split("\n")
            )
            - widths[index]
            for index, name in enumerate(headings)
        ]
        left = most - 2 * (len(widths) - 1) - sum(widths)
        for done, index in enumerate(sorted(range(len(widths)), key=lacking.__getitem__)):
            more = min(lacking[index], left // (len(widths) - done))
            widths[index] += more
            left -= more
        return widths

    def _columns(self, headings: Sequence[str], widths: Sequence[int] | None) -> RenderableType:
        found = _grid(header_style="dim")
        for index, (name, to_the_right) in enumerate(zip(headings, self._to_the_right, strict=True)):
            width = None if widths is None else widths[index]
            found.add_column(name, justify="right" if to_the_right else "left", width=width, overflow="fold")
        for row in self._rows:
            found.add_row(*row)
        return found

    def _blocks(self) -> Iterator[RenderableType]:
        for number, row in enumerate(self._rows):
            if number:
                yield ""
            block = _grid(show_header=False)
            block.add_column(style="dim", no_wrap=True)
            block.add_column(overflow="fold")
            for name, cell in zip(self._names, row, strict=True):
                if cell.plain:
                    block.add_row(name, cell)
            yield block


def _grid(**options: Any) -> rich_table.Table:
    return rich_table.Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, **options)


def queue_table(rows: Sequence[views.QueueRow], dead_letter_queues: Collection[str | None] = ()) -> RenderableType:
    """Return one line per queue; a dead-letter queue that holds something is red."""
    headings = ["QUEUE", ">VISIBLE", ">IN FLIGHT", ">DELAYED", ">OLDEST", "DEAD LETTERS TO"]
    cells = (_queue_cells(row, "red" if held(row) and row.name in dead_letter_queues else "") for row in rows)
    return table(headings, cells, "no queues; make one with: postroad queue create orders")


def _queue_cells(row: views.QueueRow, color: str) -> list[Any]:
    return [
        rich_text.Text(row.name, f"bold {color}".rstrip()),
        *(number(value, color) for value in (row.visible, row.in_flight, row.delayed)),
        rich_text.Text(short_duration(row.oldest_age_seconds), color),
        row.dead_letter,
    ]


def held(row: views.QueueRow) -> int:
    return row.visible + row.in_flight + row.delayed


def queue_card(document: views.QueueDetail) -> Iterator[RenderableType]:
    """Yield the numbers of one queue, then its settings."""
    yield queue_table([document], [document.name] if document.sources else [])
    yield ""
    settings = {key: value for key, value in document.settings.items() if key not in ("name", "dead_letter")}
    rows = [(key, _setting(key, value)) for key, value in settings.items() if value is not None]
    if document.sources:
        rows.append(("receives dead letters of", ", ".join(document.sources)))
    yield table(["SETTING", "VALUE"], rows)


def _setting(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return short_duration(value) if key in _SECONDS else f"{value:,}" if isinstance(value, int) else str(value)


def message_blocks(items: Sequence[views.PeekedRow], now: datetime) -> Iterator[RenderableType]:
    """Yield a headline for each message; below it why it is dead, its attributes and its body."""
    if not items:
        yield "no messages"
    for item in items:
        age = max(0.0, (now - item.sent_at).total_seconds())
        facts = [
            item.state.replace("_", " "),
            f"received {item.receive_count}x",
            f"{short_duration(age)} old",
            f"{item.size:,} B",
            *([] if item.group is None else [f"group {legible(item.group)}"]),
        ]
        yield rich_text.Text.assemble((item.message_id, "bold"), "  ", "  ".join(facts))
        for line in _details(item):
            yield rich_padding.Padding(line, (0, 0, 0, 4), expand=False)


def _details(item: views.PeekedRow) -> Iterator[rich_text.Text]:
    dead = queues.read_dead(item.attributes)
    if dead is not None:
        why = dead.error or dead.reason or "no error recorded"
        receives = counted(dead.receives, "receive")
        yield rich_text.Text(legible(f"dead letter of {dead.source} after {receives}: {why}"), "red")
    for name, value in sorted(item.attributes.items()):
        if dead is None or name != queues.DEAD_LETTER:
            yield rich_text.Text.assemble((f"{legible(name)}=", "dim"), legible(value))
    if isinstance(item.body, str):
        yield rich_text.Text(legible(item.body))


def group_table(items: Sequence[views.FailureGroupRow]) -> RenderableType:
    cells = (
        [
            rich_text.Text(item.fingerprint, "bold"),
            number(item.count),
            item.event_type,
            item.last_sent_at.strftime("%Y-%m-%d %H:%M:%S"),
            rich_text.Text(legible(item.error or "no error recorded"), "red"),
        ]
        for item in items
    )
    return table(["GROUP", ">COUNT", "TYPE", "LAST SENT", "ERROR"], cells, "no messages")


def number(value: int, color: str = "") -> rich_text.Text:
    """Return a number with separators; zero is dim."""
    return rich_text.Text(f"{value:,}", color if value else "dim")


def more(cursor: str | None, option: str = "--cursor") -> list[str]:
    """Return the line that says how to read on, if a list has more items."""
    return [] if cursor is None else [f"more: {option} {legible(cursor)}"]


def utc_text(milliseconds: int) -> str:
    """Return a time in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
