"""Tasks take ordinary typed arguments, which travel by name and arrive as what they were."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.tasks import errands
from tests.tasks.benches import Bench, lines, working
from tests.tasks.errands import Owner, Page, Price, Store
from tests.waiting import eventually

import postroad
from postroad.errors import ConfigurationError, InvalidInput, InvalidTask, TaskRunFailed, UnknownTask
from postroad.tasks import Retryable, TaskContext, TaskRegistry, task
from postroad.tasks.signatures import Signature

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECONDS = 30.0


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One worker for all tests of this file."""
    path = tmp_path_factory.mktemp("arguments") / "tasks.db"
    with postroad.connect(f"sqlite:///{path}") as backend:
        with working(Bench(backend), imports=("tests.tasks.errands",)) as bench:
            yield bench


def test_arguments_and_the_result_arrive_as_what_they_were(bench: Bench) -> None:
    page, price = Page("https://x", NOON), Price(Decimal("1.10"))

    handle = bench.producer.submit(errands.scrape, "s1", pages=[page], price=price)

    assert handle.wait(SECONDS) == Store("s1", 2, [page], price)
    assert bench.last(handle.request_id, "Task Pending").properties["input"] == {
        "store_id": "s1",
        "pages": [{"url": "https://x", "seen_at": "2026-11-16T12:00:00Z"}],
        "price": {"amount": "1.10", "currency": "EUR"},
    }


def test_times_decimals_uuids_and_pydantic_models_travel(bench: Bench) -> None:
    owner, id = Owner(name="Ann", since=NOON), UUID(int=7)

    handle = bench.producer.submit(
        errands.take_everything, at=NOON, amount=Decimal("2.5"), id=id, owner=owner, owners=[owner]
    )

    assert handle.wait(SECONDS) == Owner(name=f"Ann 2.5 {id}", since=NOON)


def test_a_parameter_annotated_as_context_gets_the_context_wherever_it_stands(bench: Bench) -> None:
    first = bench.producer.submit(errands.with_context, store_id="s1")
    last = bench.producer.submit("late-context", {"store_id": "s2"})

    assert first.wait(SECONDS) == [first.request_id, 1, "s1"]
    assert last.wait(SECONDS) == ["late-context", "s2"]


def test_async_functions_untyped_ones_and_those_without_arguments_are_tasks(bench: Bench) -> None:
    assert bench.producer.submit(errands.slowly).wait(SECONDS) == "done"
    assert bench.producer.submit(errands.add, 1, b=2).wait(SECONDS) == 3
    assert bench.producer.submit(errands.no_arguments).wait(SECONDS) is None
    assert bench.producer.submit(errands.further, 1, second=2.5).wait(SECONDS) == {"first": 1, "second": 2.5}


def test_a_decorated_function_stays_a_plain_function() -> None:
    assert errands.scrape("s1", 3) == Store("s1", 3, [])


def test_a_name_with_an_input_calls_the_same_function_and_gives_the_same_result(bench: Bench) -> None:
    handle = bench.producer.submit("scrape", {"store_id": "s1", "depth": 7})

    assert handle.wait(SECONDS) == Store("s1", 7, [])


def test_a_function_of_input_and_context_gets_the_whole_input(bench: Bench) -> None:
    from tests.tasks import chores

    with working(bench):
        assert bench.producer.submit(chores.echo, {"storeId": 7}).wait(SECONDS) == {"storeId": 7}
        assert bench.producer.submit(chores.echo).wait(SECONDS) == {}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "store_id"),
        ({"store_id": 5}, "store_id"),
        ({"store_id": "s", "depht": 1}, "depht"),
        ({"store_id": "s", "depth": "deep"}, "depth"),
        ({"store_id": "s", "pages": [Page("u", object())]}, "pages[0].seen_at"),  # type: ignore[arg-type]
        ({"store_id": "s", "price": Price("x")}, "price.amount"),  # type: ignore[arg-type]
        ({"store_id": "\ud800"}, "input.store_id"),
    ],
)
def test_a_wrong_argument_is_refused_by_name_and_nothing_is_submitted(
    arguments: dict[str, Any], field: str, bench: Bench
) -> None:
    events = bench.backend.journal().query("PK", tenant="acme", limit=1000).events

    with pytest.raises(InvalidTask) as refused:
        bench.producer.submit(errands.scrape, **arguments)

    assert refused.value.field == field
    assert bench.backend.journal().query("PK", tenant="acme", limit=1000).events == events


def test_an_input_that_a_known_function_cannot_take_is_refused_when_it_is_submitted(bench: Bench) -> None:
    with pytest.raises(InvalidTask, match="has no such argument"):
        bench.producer.submit("scrape", {"store_id": "s", "depht": 1})


def test_an_input_that_only_the_worker_can_judge_fails_as_validation(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr("postroad.tasks.plans.Planner.find", lambda self, task: None)

    handle = bench.producer.submit("scrape", {"depth": 1})

    with pytest.raises(TaskRunFailed, match="store_id") as failed:
        handle.wait(SECONDS)
    assert failed.value.category == "validation"


def test_a_result_of_another_type_than_promised_fails_as_validation(bench: Bench) -> None:
    with pytest.raises(TaskRunFailed, match="result: Expected `int`, got `str`") as failed:
        bench.producer.submit(errands.other_result).wait(SECONDS)

    assert failed.value.category == "validation"


def test_a_function_that_is_no_task_is_refused_with_the_remedy(bench: Bench) -> None:
    with pytest.raises(UnknownTask, match="is not a task") as refused:
        bench.producer.submit(lines, path=Path("x"))

    assert "@task" in refused.value.remedy


def takes_socket(connection: socket.socket) -> None: ...
def takes_callback(call: Callable[[int], int]) -> None: ...
def takes_many(first: int, *args: int) -> None: ...
def takes_one_of(it: int | socket.socket) -> None: ...
def takes_nested(it: dict[str, list[socket.socket]]) -> None: ...
def takes_two_contexts(ctx: TaskContext, other: TaskContext | None = None) -> None: ...
def returns_iterator() -> Iterator[int]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "field"),
    [
        (takes_socket, "connection"),
        (takes_callback, "call"),
        (takes_many, "function"),
        (takes_one_of, "it"),
        (takes_nested, "it"),
        (takes_two_contexts, "other"),
        (returns_iterator, "return"),
    ],
)
def test_a_signature_that_cannot_travel_is_refused_at_registration(function: Any, field: str) -> None:
    registry = TaskRegistry()

    with pytest.raises(ConfigurationError) as refused:
        task(registry=registry)(function)

    assert refused.value.field == field
    assert refused.value.remedy
    assert registry.names() == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retry_on": (5,)}, "retry_on"),
        ({"retry_on": "ValueError"}, "retry_on"),
        ({"retry_on": (ValueError("x"),)}, "retry_on"),
        ({"never_retry": int}, "never_retry"),
        ({"retry_on": (BaseException,)}, "retry_on"),
        ({"retry_on": ValueError, "never_retry": [ValueError]}, "never_retry"),
        ({"timeout": "5x"}, "timeout"),
        ({"timeout": "0s"}, "timeout"),
        ({"queue": "a b"}, "queue"),
        ({"retry_base": -1}, "retry_base"),
        ({"retry_cap": "x"}, "retry_cap"),
    ],
)
def test_an_option_that_is_none_is_refused_at_registration(options: Any, field: str) -> None:
    registry = TaskRegistry()

    with pytest.raises(ConfigurationError) as refused:
        task("odd", registry=registry, **options)(errands.scrape)

    assert refused.value.field == field
    assert registry.names() == []


def test_durations_may_be_written_with_a_unit() -> None:
    registry = TaskRegistry()

    task("timed", timeout="5m", retry_base="1.5s", retry_cap="2h", registry=registry)(errands.scrape)

    found = registry.get("timed")
    assert (found.timeout, found.retry_base, found.retry_cap) == (300, 1.5, 7_200)


def test_a_type_that_follows_its_use_is_found() -> None:
    signature = Signature(uses_later, TaskContext)

    assert signature.bind((Later(1),), {}) == {"it": {"n": 1}}
    assert signature.read_result({"n": 2}) == Later(2)


def uses_later(it: Later) -> Later:
    return it


class Later(msgspec.Struct, frozen=True):
    """A type that is defined after the function that names it."""

    n: int


def hides_its_import(store_id: str, ctx: tasks.TaskContext) -> None:  # type: ignore[name-defined]  # noqa: F821
    """A function whose context is imported for type checkers only."""


def hides_what_is_optional(ctx: tasks.TaskContext | None = None) -> None:  # type: ignore[name-defined]  # noqa: F821
    """The same, if it is optional."""


def may_do_without(store_id: str, ctx: TaskContext | None = None) -> None:
    """A function that can be called without a context, as a test does."""


@pytest.mark.parametrize("function", [hides_its_import, hides_what_is_optional, may_do_without])
def test_a_context_that_is_optional_or_that_only_type_checkers_import_is_known(function: Any) -> None:
    assert Signature(function, TaskContext).context == "ctx"


def test_an_error_of_a_pydantic_model_names_the_field_and_not_its_value() -> None:
    signature = Signature(errands.take_everything, TaskContext)

    with pytest.raises(InvalidTask) as refused:
        signature.check(
            {
                "at": "2026-11-16T12:00:00Z",
                "amount": "1",
                "id": str(UUID(int=7)),
                "owner": {"name": {"secret": 1}},
                "owners": [],
            }
        )

    assert refused.value.field == "owner.name"
    assert "owner.name: " in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_decorator_that_passes_everything_on_does_not_hide_the_arguments() -> None:
    @functools.wraps(errands.scrape)
    def passing(*args: Any, **kwargs: Any) -> Store:
        return errands.scrape(*args, **kwargs)

    assert Signature(passing, TaskContext).bind(("s1",), {}) == {"store_id": "s1"}


@pytest.mark.parametrize(
    ("error", "attempts", "result"),
    [
        ("shaky", 2, 2),
        ("shakier", 1, "Shakier: shakier"),
        ("network", 1, "ConnectionError"),
        ("value", 1, "ValueError"),
        ("shaky+shaky", 2, 2),
        ("shaky+shakier", 1, "ExceptionGroup: several"),
        ("shaky+value", 1, "ExceptionGroup: several"),
    ],
)
def test_the_nearest_class_that_a_task_names_decides_about_another_attempt(
    error: str, attempts: int, result: int | str, bench: Bench, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    handle = bench.producer.submit(errands.choosy, notes=str(notes), error=error)

    if isinstance(result, int):
        assert handle.wait(SECONDS) == result
    else:
        with pytest.raises(TaskRunFailed, match=result):
            handle.wait(SECONDS)

    assert len(lines(notes)) == attempts


def test_what_code_decides_itself_counts_before_the_lists(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(TaskRunFailed, match="never"):
        bench.producer.submit(errands.decided, notes=str(tmp_path / "notes")).wait(SECONDS)

    assert len(lines(tmp_path / "notes")) == 1


def test_a_retryable_error_says_when_the_next_attempt_is_made(bench: Bench, tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    assert bench.producer.submit(errands.asks_for_time, notes=str(notes), after=0.7).wait(SECONDS) == 2

    first, second = map(datetime.fromisoformat, lines(notes))
    assert 0.7 <= (second - first).total_seconds() < 5


def test_an_error_that_was_caused_by_a_retryable_one_waits_as_long(bench: Bench, tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    assert bench.producer.submit(errands.asks_in_between, notes=str(notes), after=0.7).wait(SECONDS) == 2

    first, second = map(datetime.fromisoformat, lines(notes))
    assert 0.7 <= (second - first).total_seconds() < 5


@pytest.mark.parametrize("after", [-1, 43_201, float("nan"), "60", True])
def test_a_time_that_is_none_is_refused_where_it_is_raised(after: Any) -> None:
    with pytest.raises(InvalidInput, match="after"):
        Retryable("x", after=after)


def test_the_pauses_of_a_task_count_before_those_of_its_worker(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    handle = bench.producer.submit(errands.paced)

    eventually(lambda: "retry_in_seconds=4" in caplog.text)

    failed = bench.last(handle.request_id, "Task Processing Failed")
    assert 39_000 < failed.properties["retryAt"] - failed.timestamp < 42_000
    assert handle.cancel()


def test_a_task_with_a_queue_of_its_own_is_sent_there_and_retried_there(bench: Bench) -> None:
    handle = bench.producer.submit(errands.elsewhere, 4)

    assert bench.backend.queue("slow").stats().visible == 1
    bench.producer.cancel(handle.request_id)
    again = bench.producer.retry(handle.request_id)
    assert bench.backend.queue("slow").stats().visible == 2
    with working(bench, imports=("tests.tasks.errands",), queue="slow"):
        assert again.wait(SECONDS) == 8
