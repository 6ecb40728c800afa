"""PostgreSQL finds claimed rows by their ids, whatever its statistics say about the backlog."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from benchmarks.outbox_load import fill, fill_sent
from tests.outbox.fixtures import OutboxFixture

from postroad.outbox.dispatching import postgres_statements as sql

LEASE = {"owner": "x", "lease": 30.0}
MINE = {"ids": "{}", "tokens": "{}", "states": "{}", "counts": "{}", "errors": [], "delays": "{}"}
CLAIM = {"limit": 50, "leaving": 0, "tenant": "", "lane": "", "deep": True, "skip": False}


@pytest.mark.parametrize(
    ("statement", "values"), [(sql.CLAIM, CLAIM | LEASE), (sql.SETTLE, MINE | LEASE), (sql.RENEW, MINE | LEASE)]
)
def test_statistics_of_a_quiet_moment_do_not_make_it_walk_the_whole_backlog(
    on_postgres: OutboxFixture, statement: str, values: dict[str, Any]
) -> None:
    fill_sent(on_postgres.dsn, 20_000)
    fill(on_postgres.dsn, 2_000)
    text = on_postgres.outbox.tables.with_phrases(sql.PHRASES)(statement)

    with psycopg.connect(on_postgres.dsn) as connection:
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {text}", values))

    assert "using outbox_pkey" in plan
    assert "Hash" not in plan
    assert "Seq Scan on outbox" not in plan
