"""What people see: tables without lines, numbers to the right, and nothing that data could do to a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from postroad.cli.parameters import spoken
from postroad.queues import DEAD_LETTER, read_dead
from postroad.telemetry import legible

if TYPE_CHECKING:
    from postroad.views import FailureGroupRow, PeekedRow, QueueDetail, QueueRow, TokenRow

_SECONDS = {"visibility", "retention", "delay", "receive_wait", "auto_delete_after"}


def table(headings: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    """Columns with two spaces between them; headings that begin with '>' stand to the right."""
    found = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        found.add_column(heading.lstrip(">"), justify="right" if heading.startswith(">") else "left", overflow="fold")
    for row in rows:
        found.add_row(*row)
    return found


def queue_table(rows: Sequence[QueueRow]) -> Table | Text:
    """One line per queue."""
    if not rows:
        return Text("no queues; make one with: postroad queue create orders")
    headings = ["QUEUE", ">VISIBLE", ">IN FLIGHT", ">DELAYED", ">OLDEST", "DEAD LETTERS TO"]
    return table(headings, (_queue_cells(row) for row in rows))


def _queue_cells(row: QueueRow) -> list[Text]:
    numbers = [_number(value) for value in (row.visible, row.in_flight, row.delayed)]
    return [Text(row.name, "bold"), *numbers, Text(spoken(row.oldest_age_seconds)), Text(row.dead_letter or "-")]


def queue_card(document: QueueDetail) -> Iterator[Table | Text]:
    """One queue on a card: the numbers, then the settings."""
    yield queue_table([document])
    yield Text()
    settings = {key: value for key, value in document.settings.items() if key not in ("name", "dead_letter")}
    rows = [(key, _setting(key, value)) for key, value in settings.items() if value is not None]
    if document.sources:
        rows.append(("takes dead letters of", ", ".join(document.sources)))
    yield table(["SETTING", "VALUE"], ([Text(key), Text(value)] for key, value in rows))


def _setting(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return spoken(value) if key in _SECONDS else f"{value:,}" if isinstance(value, int) else str(value)


def message_blocks(items: Sequence[PeekedRow], now: datetime) -> Iterator[Text | Padding]:
    """One headline per message; why it is dead, its attributes and its body below it."""
    if not items:
        yield Text("no messages")
    for item in items:
        yield _headline(item, now)
        for line in _details(item):
            yield Padding(line, (0, 0, 0, 4), expand=False)


def _headline(item: PeekedRow, now: datetime) -> Text:
    age = max(0.0, (now - item.sent_at).total_seconds())
    facts = [
        item.state.replace("_", " "),
        f"received {item.receive_count}x",
        f"{spoken(age)} old",
        f"{item.size:,} B",
    ]
    if item.group is not None:
        facts.append(f"group {legible(item.group)}")
    return Text.assemble((item.message_id, "bold"), "  ", "  ".join(facts))


def _details(item: PeekedRow) -> Iterator[Text]:
    dead = read_dead(item.attributes)
    if dead is not None:
        why = dead.error or dead.reason or "no error recorded"
        times = "1 receive" if dead.receives == 1 else f"{dead.receives} receives"
        yield Text(legible(f"dead letter of {dead.source} after {times}: {why}"), "red")
    for name, value in sorted(item.attributes.items()):
        if dead is None or name != DEAD_LETTER:
            yield Text.assemble((f"{legible(name)}=", "dim"), legible(value))
    if isinstance(item.body, str):
        yield Text(legible(item.body))


def group_table(items: Sequence[FailureGroupRow]) -> Table | Text:
    """One line per failure group."""
    if not items:
        return Text("no messages")
    return table(["GROUP", ">COUNT", "TYPE", "LAST SENT", "ERROR"], (_group_cells(item) for item in items))


def _group_cells(item: FailureGroupRow) -> list[Text]:
    return [
        Text(item.fingerprint, "bold"),
        _number(item.count),
        Text(legible(item.event_type or "-")),
        Text(_short(item.last_sent_at)),
        Text(legible(item.error or "no error recorded"), "red"),
    ]


def token_table(rows: Sequence[TokenRow]) -> Table | Text:
    """One line per token."""
    if not rows:
        return Text("no tokens; make one with: postroad token create worker-1 --scope publish")
    headings = ["TOKEN", "SCOPE", "CREATED", "EXPIRES"]
    return table(headings, (_token_cells(row) for row in rows))


def _token_cells(row: TokenRow) -> list[Text]:
    times = [_short(row.created_at), "never" if row.expires_at is None else _short(row.expires_at)]
    return [Text(row.name, "bold"), Text(row.scope), *map(Text, times)]


def _short(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _number(value: int | None) -> Text:
    if value is None:
        return Text("-", "dim")
    return Text(f"{value:,}", "" if value else "dim")
