"""Tasks are registered by name, with their limits."""

from __future__ import annotations

import functools
import sys
from typing import Any, cast

import pytest

from postroad.errors import ConfigurationError, InvalidTask, UnknownTask
from postroad.tasks import TaskRegistry, TaskWorker, default_tasks, task
from postroad.wiring import connect


def scrape(input: dict[str, Any], ctx: Any) -> None:
    """A task of these tests."""


def test_a_decorated_function_stays_a_function_and_is_found_by_its_name() -> None:
    registry = TaskRegistry()

    decorated = task("scrape-store", timeout=5, pass_env=["TZ"], registry=registry)(scrape)

    assert decorated is scrape
    assert registry.names() == ["scrape-store"]
    assert registry.get("scrape-store").function is scrape
    assert registry.get("scrape-store").timeout == 5
    assert registry.get("scrape-store").pass_env == ("TZ",)


def test_a_bare_decorator_takes_the_functions_own_name() -> None:
    registry = TaskRegistry()

    task(registry=registry)(scrape)

    assert registry.names() == ["scrape"]


def test_the_default_registry_is_where_the_decorator_puts_tasks() -> None:
    from tests.tasks import chores

    assert default_tasks.get("echo").function is chores.echo


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    registry = TaskRegistry()
    registry.register(scrape, "scrape-store")

    with pytest.raises(UnknownTask) as refused:
        registry.get("scrape-stor")

    assert refused.value.nearest == "scrape-store"


class Callable:
    async def __call__(self, input: Any, ctx: Any) -> None: ...


async def a_coroutine(input: Any, ctx: Any) -> None: ...


def a_generator(input: Any, ctx: Any) -> Any:
    yield 1


async def an_async_generator(input: Any, ctx: Any) -> Any:
    yield 1


@pytest.mark.parametrize("function", [a_coroutine, functools.partial(a_coroutine), Callable()])
def test_an_async_function_is_a_task(function: Any) -> None:
    registry = TaskRegistry()

    task("later", registry=registry)(function)

    assert registry.names() == ["later"]


@pytest.mark.parametrize("function", [a_generator, an_async_generator])
def test_a_generator_is_refused_with_the_remedy(function: Any) -> None:
    registry = TaskRegistry()

    with pytest.raises(ConfigurationError, match="is a generator") as refused:
        registry.register(function, "later")

    assert "Return the result" in refused.value.remedy
    assert registry.names() == []


@pytest.mark.parametrize(
    "function",
    [
        lambda input, ctx, more: None,
        lambda input, ctx, *, more: None,
        lambda *, input, ctx: None,
        lambda *arguments: None,
        lambda store_id, *more: None,
        lambda store_id, /: None,
        7,
    ],
)
def test_a_function_that_cannot_be_called_by_names_nor_with_an_input_is_refused(function: Any) -> None:
    registry = TaskRegistry()

    with pytest.raises(ConfigurationError) as refused:
        registry.register(function, "odd")

    assert refused.value.field == "function"
    assert registry.names() == []


def test_what_is_no_function_is_refused_before_its_name_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="function: 7 is not a function"):
        TaskRegistry().register(cast(Any, 7))


@pytest.mark.parametrize(
    ("options", "field", "text"),
    [
        ({"retry_on": "ValueError"}, "retry_on", "retry_on: 'ValueError' is not an exception class"),
        ({"retry_on": (3,)}, "retry_on", "retry_on: 3 is not an exception class"),
        ({"never_retry": KeyboardInterrupt}, "never_retry", "is not an exception class"),
        ({"pass_env": "HOME"}, "pass_env", "pass_env: 'HOME' is not a list of names"),
        ({"pass_env": 3}, "pass_env", "pass_env: 3 is not a list of names"),
        ({"timeout": "5 minutes"}, "timeout", "timeout: '5 minutes' is not a duration"),
        ({"max_attempt": 3}, "max_attempt", "max_attempt: is not an option of a task"),
    ],
)
def test_an_option_that_is_not_valid_is_refused_and_nothing_is_registered(
    options: dict[str, Any], field: str, text: str
) -> None:
    registry = TaskRegistry()

    with pytest.raises(ConfigurationError) as refused:
        task(registry=registry, **options)(scrape)

    assert (refused.value.field, text in str(refused.value)) == (field, True)
    assert refused.value.remedy
    assert registry.names() == []


def decorated(function: Any) -> Any:
    """A decorator that passes the input only, and says so to nobody."""

    @functools.wraps(function)
    def call(input: Any, ctx: Any) -> Any:
        return function(input)

    return call


@pytest.mark.parametrize(
    "function",
    [
        lambda input, ctx: None,
        lambda input, ctx, more=1: None,
        lambda a, /, b, **more: None,
        functools.partial(lambda extra, input, ctx: None, 1),
        decorated(lambda input: None),
        dict.get,
    ],
)
def test_a_function_that_takes_input_and_context_in_any_way_is_a_task(function: Any) -> None:
    registry = TaskRegistry()

    registry.register(function, "fine")

    assert registry.names() == ["fine"]


def test_two_functions_of_one_name_are_refused_and_the_same_one_twice_is_not() -> None:
    registry = TaskRegistry()
    registry.register(scrape, "scrape")
    registry.register(scrape, "scrape", timeout=9)

    with pytest.raises(ConfigurationError, match="already"):
        registry.command("scrape", ["true"])

    assert registry.get("scrape").timeout == 9


@pytest.mark.parametrize("name", ["os:system", "a/b", "x" * 65, "", "a b", "a.b", "ä"])
def test_a_name_that_is_none_is_refused_and_nothing_is_imported(name: str) -> None:
    before = set(sys.modules)

    with pytest.raises(InvalidTask) as refused:
        TaskRegistry().command(name, ["true"])

    assert refused.value.field == "name"
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("timeout", value) for value in (0, -1, 43_201, float("nan"), True, "5")),
        *(("max_attempts", value) for value in (0, -1, 1.5, True)),
        *(("memory_limit", value) for value in (0, -5, "1G")),
        *(("pass_env", value) for value in ("PATH", ("A B",), ("",), (1,), ("*",), ("A*B",), ("A**",))),
    ],
)
def test_a_limit_that_is_none_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TaskRegistry().register(scrape, **{option: value})

    assert refused.value.field == option


@pytest.mark.parametrize("command", ["ls -l", [], [""], ["ls", 1], None])
def test_a_command_is_a_list_of_words(command: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TaskRegistry().command("list", command)

    assert refused.value.field == "command"


def test_a_function_that_children_cannot_find_is_refused_before_anything_runs() -> None:
    registry = TaskRegistry()
    registry.register(lambda input, ctx: None, "nameless")

    with connect("memory://") as backend, pytest.raises(ConfigurationError, match="cannot be found"):
        TaskWorker(backend, registry=registry)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("timeout", value) for value in (0, -1, 43_201, float("nan"))),
        ("concurrency", 0),
        ("max_attempts", 0),
        ("child_reuse", 0),
        ("child_reuse", 1_001),
        ("max_output_bytes", 0),
        ("wait", -0.1),
        ("wait", 20.1),
        ("wait", float("nan")),
        ("kill_grace", -1),
        ("drain_timeout", "x"),
        ("visibility_extension", 20.0),
        ("visibility_extension", 40_000),
        ("extension_interval", 30.0),
        ("pass_env", "PATH"),
        ("worker_id", "a b"),
        ("worker_id", ""),
    ],
)
def test_a_worker_that_cannot_work_is_refused(option: str, value: Any) -> None:
    with connect("memory://") as backend, pytest.raises(ConfigurationError):
        TaskWorker(backend, **{option: value})


def test_a_module_that_cannot_be_imported_in_a_child_is_named() -> None:
    with connect("memory://") as backend, pytest.raises(ConfigurationError, match="no_such_module"):
        TaskWorker(backend, imports=["no_such_module"]).run(until_idle=True)


def test_the_name_of_a_task_may_be_given_by_keyword() -> None:
    registry = TaskRegistry()

    task(name="resize", registry=registry, timeout="5m")(a_coroutine)

    assert registry.get("resize").timeout == 300
