"""What a person sees: red dead letters, live displays, what long work waits for, right plurals, no inner names."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import Postroad, on_a_terminal
from tests.waiting import eventually

from postroad.cli import output, topology
from postroad.cli.display import queue_table
from postroad.cli.output import progress_line, render
from postroad.errors import PostroadError
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.telemetry import counted
from postroad.topology import Action, Drift
from postroad.views import QueueRow
from postroad.wiring import Backend, connect

SOURCE = Path(output.__file__).parent.parent
RED = re.compile("\x1b\\[(?:1;)?31m([^\x1b]*)\x1b")


@pytest.fixture
def shop() -> Iterator[Backend]:
    """A queue with its dead-letter queue, which holds one message; two more of the kind hold nothing."""
    with connect("sqlite:///postroad.db") as backend:
        for name in ("orders", "payments"):
            backend.create_queue(QueueSpec(f"{name}-dlq"))
            backend.create_queue(QueueSpec(name, dead_letter=f"{name}-dlq"))
        orders = backend.queue("orders")
        orders.send([OutgoingMessage("x")])
        orders.reject(orders.receive(), reason="poison", error="ValueError: bad amount")
        orders.send([OutgoingMessage("y")])
        yield backend


@pytest.mark.slow
@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    "words",
    [
        ("queue", "list"),
        ("queue", "list", "--prefix", "orders-"),
        ("queue", "show", "orders-dlq"),
        ("queue", "watch", "orders", "orders-dlq", "payments-dlq", "--count", "1"),
    ],
    ids=" ".join,
)
def test_a_dead_letter_queue_that_holds_something_is_red(words: tuple[str, ...]) -> None:
    code, text = on_a_terminal(*words)
    _, plain = on_a_terminal(*words, "--no-color")

    red = [part.strip() for part in RED.findall(text)]
    assert code == 0
    assert red[0] == "orders-dlq"
    assert "1" in red
    assert not {"orders", "payments-dlq", "payments", "0"} & set(red)
    assert "\x1b[31m" not in plain
    assert "orders-dlq" in plain


def test_what_holds_nothing_or_is_no_dead_letter_queue_is_not_red() -> None:
    def row(name: str, visible: int) -> QueueRow:
        return QueueRow(name, False, visible, 0, 0, None, None)

    shown = render(queue_table([row("empty-dlq", 0), row("orders", 3)], {"empty-dlq"}), color=True)

    assert "\x1b[" not in shown


@pytest.mark.slow
@pytest.mark.usefixtures("shop")
def test_a_watched_queue_is_drawn_anew_in_place_on_a_terminal() -> None:
    code, text = on_a_terminal("queue", "watch", "orders", "--interval", "0.1s", "--count", "3")

    assert code == 0
    assert text.count("VISIBLE") >= 3
    assert "\x1b[1A" in text, "the cursor goes up to draw over the table before"


def test_a_watched_queue_is_a_line_for_each_look_in_a_pipe(shop: Backend, postroad: Postroad) -> None:
    out = postroad("queue", "watch", "orders", "--interval", "0.01s", "--count", "2").out

    assert [re.sub(r"oldest .*", "oldest", line.partition("  ")[2]) for line in out.splitlines()] == [
        "orders  1 visible, 0 in flight, 0 delayed, oldest"
    ] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("shop")
def test_long_work_is_a_live_line_on_a_terminal_that_leaves_nothing_behind() -> None:
    code, text = on_a_terminal(
        "queue", "redrive", "orders-dlq", "--yes", "--canary", "1", "--canary-wait", "1.5s", "--no-color"
    )

    screen = text.replace("\x1b[?25l", "").replace("\x1b[?25h", "")
    assert code == 1
    assert "waiting at most 1.5s for orders to handle the canary of 1 message" in screen
    assert "0:00:01" in screen, "the time goes on while nothing is reported"
    assert screen.splitlines()[-1].endswith("find out why before you go on")


@pytest.mark.slow
@pytest.mark.usefixtures("shop")
def test_a_live_line_wraps_on_a_narrow_terminal_and_keeps_its_time() -> None:
    arguments = ("queue", "redrive", "orders-dlq", "--yes", "--canary", "1", "--canary-wait", "0.5s", "--no-color")

    _, screen = on_a_terminal(*arguments, columns=40)

    assert "…" not in screen
    assert "message" in screen
    assert "0:00:00" in screen


def test_a_canary_in_a_pipe_tells_again_and_again_what_it_waits_for(
    shop: Backend, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert output.TELL_EVERY_SECONDS == 10.0
    monkeypatch.setattr(output, "TELL_EVERY_SECONDS", 0.05)

    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--canary", "1", "--canary-wait", "0.5s")

    lines = outcome.err.splitlines()
    assert len(lines) >= 3
    assert all(
        re.fullmatch(r"waiting at most 0.5s for orders to handle the canary of 1 message \(0\.?\d*s so far\)", line)
        for line in lines[1:]
    ), lines
    assert outcome.code == 1


def test_a_canary_says_nothing_besides_its_document(
    shop: Backend, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "TELL_EVERY_SECONDS", 0.01)

    outcome = postroad("queue", "redrive", "orders-dlq", "--yes", "--json", "--canary", "1", "--canary-wait", "0.1s")

    assert outcome.err == ""
    assert outcome.document["status"] == "canary_failed"


def test_work_that_counts_tells_each_step_in_a_pipe_once(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line(lambda so_far: f"{so_far:,} published", quiet=False, step=1_000) as progress:
        for number in range(1, 2_501):
            progress(number)

    assert capsys.readouterr().err == "1,000 published\n2,000 published\n"


def test_nothing_tells_after_the_work_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "TELL_EVERY_SECONDS", 0.01)
    told: list[str] = []

    with progress_line(str, quiet=False, start="waiting"):

        def has_told() -> bool:
            told.append(capsys.readouterr().err)
            return "waiting (0" in "".join(told)

        eventually(has_told)

    assert not [thread for thread in threading.enumerate() if thread.name == "postroad-progress"]


def test_a_redrive_of_nothing_says_so_and_asks_nothing(postroad: Postroad) -> None:
    postroad("queue", "create", "orders-dlq")
    postroad("queue", "create", "orders", "--dead-letter", "orders-dlq")

    for words, why in {
        (): "no messages",
        ("--yes",): "no messages",
        ("--dry-run",): "no messages",
        ("--type", "orders.placed"): "no message that matches",
    }.items():
        outcome = postroad("queue", "redrive", "orders-dlq", *words)

        assert (outcome.code, outcome.out, outcome.err) == (0, f"nothing to redrive: orders-dlq holds {why}\n", "")


def test_a_redrive_that_matches_nothing_asks_nothing_and_moves_nothing(shop: Backend, postroad: Postroad) -> None:
    outcome = postroad("queue", "redrive", "orders-dlq", "--type", "no.such.type")
    asked = postroad("queue", "redrive", "orders-dlq")

    assert (outcome.code, outcome.err) == (0, "")
    assert "nothing to redrive" in outcome.out
    assert (asked.code, shop.queue("orders-dlq").stats().visible) == (2, 1)


@pytest.mark.slow
def test_a_person_at_the_terminal_is_not_asked_about_nothing() -> None:
    with connect("sqlite:///postroad.db") as backend:
        backend.create_queue(QueueSpec("orders-dlq"))
        backend.create_queue(QueueSpec("orders", dead_letter="orders-dlq"))

    code, text = on_a_terminal("queue", "redrive", "orders-dlq")

    assert (code, "Go on?" in text) == (0, False)
    assert "nothing to redrive" in text


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (0, ("message",), "0 messages"),
        (1, ("message",), "1 message"),
        (2, ("message",), "2 messages"),
        (12_000, ("delivery", "deliveries"), "12,000 deliveries"),
        (1, ("delivery", "deliveries"), "1 delivery"),
    ],
)
def test_a_number_is_told_with_its_word_in_the_right_form(number: int, words: tuple[str, ...], text: str) -> None:
    assert counted(number, *words) == text


_INNER = re.compile(r"\bPK\b|\bSK\b|GSI\d|KeySchema")
_SQL = re.compile(r"SELECT|UPDATE|INSERT|DELETE|^\w+ \(")
_PYTHON = re.compile(r"\b[a-z_]+\.[a-z_]+\(|\b[a-z_]{3,}\(\)")


def _texts(file: Path) -> Iterator[str]:
    """The texts of a module that are not documentation."""
    tree = ast.parse(file.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


@pytest.fixture(scope="module")
def functions() -> set[str]:
    """The names of functions that cannot be ordinary words, nor the names of parameters and settings."""
    nodes = [node for file in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    others = {node.arg for node in nodes if isinstance(node, ast.arg)}
    others |= {
        node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    found = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)} - others
    return {name for name in found if re.fullmatch(r"[a-z]+(_[a-z]+)+", name)}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["cli", "operations", "settings", "topology", "up", "queues/sqs", "agents"])
def test_no_text_for_operators_names_a_function_or_a_storage_key(folder: str, functions: set[str]) -> None:
    sentences = [
        text
        for file in (SOURCE / folder).rglob("*.py")
        if file.name != "__init__.py"  # It lists the names that are imported when they are needed.
        for text in _texts(file)
        if " " in text and "\n" not in text
    ]
    in_words = [text for text in sentences if functions & set(re.findall(r"\w+", text)) and not _SQL.search(text)]

    assert [text for text in sentences if _PYTHON.search(text) or _INNER.search(text)] == []
    assert in_words == []


def test_the_remedies_of_errors_that_a_command_meets_name_no_function() -> None:
    def kinds(cls: type[PostroadError]) -> Iterator[type[PostroadError]]:
        yield cls
        for each in cls.__subclasses__():
            yield from kinds(each)

    # A snapshot of a session exists in programs only.
    named = {each.__name__ for each in kinds(PostroadError) if _PYTHON.search(each.remedy)} - {"InvalidSnapshot"}

    assert named == set()


def test_no_command_for_people_prints_storage_keys(postroad: Postroad) -> None:
    postroad("task", "submit", "echo", "--request-id", "req-1")

    shown = [
        postroad(*words.split()).out
        for words in ("journal query", "journal verify", "task status req-1", "task history req-1", "why req-1")
    ]

    assert all(shown)
    assert not any(_INNER.search(text) for text in shown)


def test_other_keys_of_a_table_are_told_without_their_names() -> None:
    changes = {"keys": (["id"], ["PK", "SK"]), "ttl": (None, "ttl")}

    [line] = topology._lines([Action("replace", "table", "events", changes)])
    drift = topology._drift_line(Drift("table", "events", "keys", ["PK", "SK"], ["id"]))

    assert line.endswith('other keys, ttl: null -> "ttl"')
    assert drift == "table events: has other keys"


_PLURALS = (
    "messages|events|tasks|jobs|queues|rows|keys|records|agents|tokens|workers|letters|settings|differences|duplicates|"
    "requests|deliveries|files|lines"
)


def test_every_number_with_a_word_is_told_by_the_one_function() -> None:
    """A number before a word in the plural is wrong for 1."""
    wrong = []
    for file in (SOURCE / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                shape = "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
                wrong += [shape] if re.search(rf"\{{\}} (\w+ )?({_PLURALS})\b", shape) else []

    assert wrong == []
