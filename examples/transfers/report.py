"""What a run has come to, read from the database and the queues."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

from examples.transfers.bus import held
from examples.transfers.database import run, transaction
from examples.transfers.names import OUTBOXES, QUEUES, TRANSFER_EVENTS, dead_letters_of

from postroad import Backend
from postroad.outbox import Outbox

Report = dict[str, Any]


def read(dsn: str, backend: Backend) -> Report:
    """The figures of the run so far."""
    with transaction(dsn) as connection:
        entries = _rows(connection, "SELECT type, amount FROM ledger_entries")
        timeline = _rows(connection, "SELECT transfer_id, type FROM timeline ORDER BY seq")
        figures = {
            "transfers": _number(connection, "SELECT count(*) FROM transfers"),
            "states": dict(_rows(connection, "SELECT state, count(*) FROM transfers GROUP BY state")),
            "rail_submissions": _number(connection, "SELECT count(DISTINCT idempotency_key) FROM rail_calls"),
            "rail_calls": _number(connection, "SELECT count(*) FROM rail_calls"),
            "ledger_entries": len(entries),
            "ledger_debits": _sum(entries, "debit"),
            "ledger_credits": _sum(entries, "credit"),
            "timeline_events": len(timeline),
            "order_violations": _number(connection, "SELECT count(*) FROM violations") + _out_of_order(timeline),
            "route_invalidations": _number(connection, "SELECT coalesce(sum(invalidations), 0) FROM route_cache"),
        }
        suppressed = _number(connection, "SELECT coalesce(sum(duplicates), 0) FROM suppressed")
    letters = sum(held(backend.queue(dead_letters_of(name))) for name in QUEUES.values())
    return {**figures, "outbox": _outboxes(dsn), "dead_letters": letters, "duplicates_suppressed": suppressed}


def is_settled(report: Report, backend: Backend, *, transfers: int, routes: int) -> bool:
    """Whether all has come to rest."""
    return (
        report["states"] == ({"SETTLED": transfers} if transfers else {})
        and report["ledger_entries"] == 2 * transfers
        and report["timeline_events"] == 3 * transfers
        and report["route_invalidations"] == routes
        and report["outbox"]["pending"] == 0
        and all(held(backend.queue(name)) == 0 for name in QUEUES.values())
    )


def _outboxes(dsn: str) -> dict[str, int]:
    totals: Counter[str] = Counter(pending=0, sent=0, failed=0)
    for table in OUTBOXES:
        outbox = Outbox.open(dsn, table=table)
        status = outbox.status()
        outbox.close()
        totals.update(pending=status.pending, sent=status.sent, failed=status.failed)
    return dict(totals)


def _out_of_order(timeline: list[tuple[str, str]]) -> int:
    """Events that came before one that should precede them, or that came twice."""
    seen: Counter[str] = Counter()
    violations = 0
    for transfer, type in timeline:
        violations += TRANSFER_EVENTS.index(type) != seen[transfer]
        seen[transfer] += 1
    return violations


def _sum(entries: list[tuple[str, str]], type: str) -> str:
    return str(sum((Decimal(amount) for kind, amount in entries if kind == type), Decimal("0.00")))


def _rows(connection: Any, statement: str) -> list[Any]:
    return list(run(connection, statement).fetchall())


def _number(connection: Any, statement: str) -> int:
    return int(_rows(connection, statement)[0][0])
