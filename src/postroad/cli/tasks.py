"""`postroad task init|submit|status|history|retry|cancel`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import ANSWER_IS_NO, confirm_name
from postroad.errors import InvalidTask, NotFound

if TYPE_CHECKING:
    from postroad.journal import TaskState
    from postroad.tasks import TaskProducer
    from postroad.views import TaskShown
    from postroad.wiring import Backend

RequestId = Annotated[str, typer.Argument(metavar="ID", help="The request id that `task submit` printed.")]
QueueOption = Annotated[str, typer.Option("--queue", metavar="Q", help="The queue of tasks.")]


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad task`."""
    add_verb(app, "init", init, example="postroad task init --url aws://eu-central-1")
    add_verb(app, "submit", submit, example="""postroad task submit scrape-store --input '{"storeId": 7}'""")
    add_verb(app, "status", status, example="postroad task status req-123")
    add_verb(app, "history", history, example="postroad task history req-123 --json")
    add_verb(app, "retry", retry, example="postroad task retry req-123")
    add_verb(app, "cancel", cancel, example="postroad task cancel req-123 --confirm req-123", destructive=True)


def init(call: Call, queue: QueueOption = "tasks") -> None:
    """Make the queues of tasks, or say how what is there differs from what is needed."""
    from postroad.tasks import ensure_queues
    from postroad.tasks.messages import queue_specs

    with call.backend() as backend:
        ensure_queues(backend, queue)
        names = [spec.name for spec in queue_specs(backend.stage_prefix + queue)]
    call.show({"ready": True, "queues": names}, f"ready: {', '.join(names)}")


def submit(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The task.")],
    input: Annotated[
        str, typer.Option("--input", metavar="JSON", help="Its input, a JSON object; @file or - for stdin.")
    ] = "{}",
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The same id with the same input is the same run.")
    ] = None,
    queue: QueueOption = "tasks",
) -> None:
    """Submit a task and print its request id."""
    from postroad.views import submitted

    given = _object(input)
    with call.backend() as backend:
        producer = _producer(call, backend, queue)
        handle = producer.submit(name, given, request_id=request_id)
        state = None if handle.created else producer.status(handle.request_id)
    call.show(submitted(handle, "pending" if state is None else state.state), handle.request_id)


def status(
    call: Call,
    request_id: RequestId,
    at: Annotated[int | None, typer.Option(metavar="MS", help="As it was at this moment, in milliseconds.")] = None,
) -> None:
    """Tell how a task stands."""
    from postroad.views import task_shown

    with call.backend() as backend:
        document = task_shown(_state(call, backend, request_id, at))
    call.show(document, *_lines(document))


def history(call: Call, request_id: RequestId) -> None:
    """Print every event of a task, in order."""
    from postroad.arguments import check
    from postroad.journal import task_history
    from postroad.tasks.messages import AnyRequestId
    from postroad.telemetry import legible
    from postroad.views import EventPage, event_item

    check(request_id, AnyRequestId, "requestId", InvalidTask)
    with call.backend() as backend:
        events = task_history(backend.journal(), call.settings().tenant, request_id)
    if not events:
        raise NotFound(f'there is no task "{request_id}"')
    lines = [
        line
        for event in events
        for line in (
            f"{_when(event.timestamp)}  {legible(event.event_type)}{_detail(event.properties)}",
            *_printed(event.properties),
        )
    ]
    call.show(EventPage([event_item(event) for event in events], None), *lines)


def retry(call: Call, request_id: RequestId, queue: QueueOption = "tasks") -> None:
    """Run a failed or cancelled task again."""
    from postroad.views import submitted

    with call.backend() as backend:
        handle = _producer(call, backend, queue).retry(request_id)
    call.show(submitted(handle, "pending"), f"{handle.request_id} run {handle.run}")


def cancel(
    call: Call,
    request_id: RequestId,
    confirm: Annotated[str | None, typer.Option(metavar="ID", help="The id again, instead of the question.")] = None,
) -> None:
    """Let a task not run, or be killed where it runs; exit 1 when it had ended already."""
    from postroad.arguments import check
    from postroad.tasks.messages import AnyRequestId
    from postroad.tasks.producer import name_in_job
    from postroad.views import TaskCancelled

    check(request_id, AnyRequestId, "requestId", InvalidTask)
    with call.backend() as backend:
        # A task of a job that waits for others has no state of its own yet.
        if name_in_job(backend.journal(), call.settings().tenant, request_id) is None:
            _state(call, backend, request_id)
        confirm_name(request_id, confirm, f'cancels task "{request_id}"')
        cancelled = _producer(call, backend).cancel(request_id)
    call.show(TaskCancelled(request_id, cancelled), "cancelled" if cancelled else "it had ended already")
    if not cancelled:
        raise typer.Exit(ANSWER_IS_NO)


def _state(call: Call, backend: Backend, request_id: str, at: int | None = None) -> TaskState:
    """How the task stands or stood. Looking makes no queue, so that it needs no producer."""
    from postroad.arguments import check
    from postroad.journal import task_state
    from postroad.tasks.messages import AnyRequestId

    check(request_id, AnyRequestId, "requestId", InvalidTask)
    state = task_state(backend.journal(), call.settings().tenant, request_id, at)
    if state is None:
        raise NotFound(f'there is no task "{request_id}"')
    return state


def _producer(call: Call, backend: Backend, queue: str = "tasks") -> TaskProducer:
    from postroad.tasks import TaskProducer

    settings = call.settings()
    return TaskProducer(backend, queue=queue, tenant_id=settings.tenant, app=settings.app)


def _object(text: str) -> dict[str, Any]:
    import msgspec

    try:
        found = msgspec.json.decode(_read(text))
    except OSError as error:
        raise InvalidTask(f"input: {text[1:]} cannot be read: {error.strerror}", field="input") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidTask(f"input: is broken JSON ({error})", field="input") from error
    if not isinstance(found, dict):
        raise InvalidTask(f"input: is a JSON {type(found).__name__}, not an object", field="input")
    return found


def _read(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    return Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()


def _lines(task: TaskShown) -> list[str]:
    import json

    from postroad.telemetry import legible

    shown = [f"{task.request_id}  {task.state}  run {task.run}, attempt {task.attempt}"]
    shown.append(f"{_when(task.last_event_at)}  {legible(task.last_event_type)}")
    if task.error is not None:
        shown.append(f"{legible(task.error_category)}: {legible(task.error)}")
    if task.output is not None:
        # Plain ASCII, so that no output drives the terminal.
        shown.append(json.dumps(task.output))
    return shown


def _detail(properties: dict[str, Any]) -> str:
    from postroad.telemetry import legible

    told = [f"{name} {properties[name]}" for name in ("run", "attemptNumber", "errorCategory") if name in properties]
    error = [legible(properties["error"])] if "error" in properties else []
    return "  " + ", ".join([*map(legible, told), *error]) if told or error else ""


def _printed(properties: dict[str, Any]) -> list[str]:
    """What a failed attempt raised and printed last, indented."""
    from postroad.telemetry import legible

    return [f"    {legible(line)}" for name in ("traceback", "lastLines") for line in properties.get(name) or ()]


def _when(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
