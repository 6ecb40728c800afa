"""Pages of the dashboard: what they read from the file does not grow with what it holds."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import apsw
import pytest
from tests.http.api import Api, Serve
from tests.operations.dead_letters import bury

from postroad.queues import OutgoingMessage, QueueSpec

MOST = 200
QUEUES = 12


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every row that a connection returns from now on."""
    read: list[object] = []

    def keep(_: object, row: Any) -> Any:
        read.append(row)
        return row

    def trace(connection: apsw.Connection) -> None:
        connection.row_trace = keep

    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, trace])
    return read


@pytest.fixture
def full(rows: list[object], serve: Serve) -> Api:
    """A server whose queues hold dead letters, each with a cause and a traceback of its own."""
    api = serve()
    for number in range(QUEUES):
        api.backend.create_queue(QueueSpec(f"dead{number}"))
        api.backend.create_queue(QueueSpec(f"jobs{number}", dead_letter=f"dead{number}"))
        _fail(api, number, 30)
    _fail(api, 0, 300)
    return api


def _fail(api: Api, queue: int, count: int) -> None:
    jobs = api.backend.queue(f"jobs{queue}")
    for number in range(count):
        error = f"{_class(number)}: no\nTraceback (most recent call last):\n  File 'x.py', line {number}\nE: no"
        bury(jobs, str(number), error=error)


def _class(number: int) -> str:
    return "E" + "".join(chr(ord("a") + int(digit)) for digit in str(number))


def _read(api: Api, rows: list[object], path: str) -> str:
    """Return the page, which has read no more rows than it may."""
    api.client.get(path)
    # What all pages share, and is measured once a second at most, was read by the first request.
    rows.clear()
    answer = api.client.get(path)
    assert answer.status_code == 200
    assert len(rows) <= MOST
    return answer.text


def test_the_causes_of_many_queues_are_a_page_of_few_rows(full: Api, rows: list[object]) -> None:
    text = _read(full, rows, "/ui/dead-letters")

    assert text.count("data-queue=") == 10
    assert "Only this queue" in text
    assert len(rows) > 100


def test_all_dead_letters_of_a_queue_are_examined_page_by_page(full: Api, rows: list[object]) -> None:
    path, groups, pages = "/ui/dead-letters?queue=dead0", list[str](), 0
    while path:
        text = _read(full, rows, path)
        groups += re.findall(r"<h3>(\w+)</h3>", text)
        following = re.search(r'href="([^"]*)">Examine the next', text)
        path, pages = unescape(following[1]) if following else "", pages + 1

    assert pages == 3
    assert set(groups) == {_class(number) for number in range(300)}
    assert "Begin again" in text
    assert "221 to 330 of 330 were examined" in text


def test_a_dry_run_stays_on_its_page(full: Api) -> None:
    first = full.client.get("/ui/dead-letters?queue=dead0").text
    cursor = re.search(r"cursor=([\w%-]+)", first)
    assert cursor is not None
    second = full.client.get(f"/ui/dead-letters?queue=dead0&cursor={cursor[1]}").text
    fingerprint = re.search(r'data-group="(\w+)"', second)
    assert fingerprint is not None

    form = {"fingerprint": fingerprint[1], "cursor": cursor[1], "dry_run": "1"}
    answer = full.client.post("/ui/dead-letters/dead0/redrive", data=form)

    assert "data-result" in answer.text
    assert full.client.get("/ui/dead-letters?queue=dead1&cursor=" + cursor[1]).status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/ui/queues",
        "/ui/queues/dead0",
        "/ui/queues/many",
        "/ui/",
        "/ui/map",
        "/ui/health",
        "/ui/agents",
        "/ui/agents?agent=a1",
    ],
)
def test_a_page_reads_few_rows(full: Api, rows: list[object], path: str) -> None:
    full.backend.create_queue(QueueSpec("many")).send([OutgoingMessage("x")] * 1_000)
    for number in range(60):
        full.context.agent_access.agents.register(f"a{number}", accept="all")
    for number in range(60):
        for other in range(1, 6):
            full.context.agent_access.agents.subscribe(f"a{number}", f"a{(number + other) % 60}")

    _read(full, rows, path)


def test_a_list_goes_on_behind_a_message_that_is_gone_and_reads_few_rows(full: Api, rows: list[object]) -> None:
    queue, path = full.backend.queue("dead0"), "/queues/dead0/messages"
    ids = [message.message_id for message in queue.peek(limit=150)]
    cursor = full.client.get(path, params={"limit": 50}).json()["next_cursor"]
    queue.ack(queue.receive(max_messages=50))
    rows.clear()

    following = full.client.get(path, params={"limit": 100, "cursor": cursor}).json()

    assert [message["message_id"] for message in following["items"]] == ids[50:]
    assert 100 <= len(rows) <= MOST
