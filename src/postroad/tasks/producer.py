"""The producer of tasks: it submits them once, retries and cancels them, and reports their states."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

import msgspec

from postroad.arguments import check
from postroad.errors import ConfigurationError, Conflict, InvalidTask, NotFound, PostroadError
from postroad.journal import Appends, Journal, JournalEvent, TaskState, task_history
from postroad.ports import Store
from postroad.tasks.handles import TaskHandle, TaskRuns
from postroad.tasks.leases import Lease, TaskRecords, current_state, first_lease_in_job
from postroad.tasks.messages import AnyRequestId, EventFactory, tenant_and_app
from postroad.tasks.outbox_rows import TaskRows
from postroad.tasks.plans import Options, Plan, Planner
from postroad.tasks.registry import TaskContext, TaskDefinition, TaskRegistry
from postroad.tasks.submissions import Begun, Submission, Submissions, last_pending, message_of

if TYPE_CHECKING:
    from postroad.outbox import Outbox

P = ParamSpec("P")
R = TypeVar("R")
Input = dict[str, Any]
Call = tuple[str | Callable[..., Any], Mapping[str, Any]] | tuple[str | Callable[..., Any], Mapping[str, Any], str]
"""A task, its input, and perhaps its request id."""
# So many tasks share a commit; other writers of the file wait meanwhile.
_MOST_TOGETHER = 500


class TaskProducer:
    """Submits tasks.

    Args:
        backend: The store, as `connect()` returns it.
        queue: The name of the queue for tasks that name none; on AWS without the stage.
        tenant_id: The tenant of the tasks; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.
        registry: If given, only tasks of this registry can be submitted; pass it where all tasks are known. By default
            functions are looked up among those of `@task`.
        journal: Where events go instead of the backend's journal, such as an `EventBridgeSender`.
        outbox: The outbox of `options(within=connection)`. The dispatcher of this outbox submits what it holds, so the
            process that runs the dispatcher makes such a producer, too; `postroad outbox run` does.

    Raises:
        QueueNotFound: The queue does not exist on AWS; create it with `postroad task init`.

    Example:
        handle = TaskProducer(backend).submit(resize, image_id="17", width=200)
        print(handle.wait(timeout=60))
    """

    def __init__(
        self,
        backend: Store,
        *,
        queue: str = "tasks",
        tenant_id: str | None = None,
        app: str | None = None,
        registry: TaskRegistry | None = None,
        journal: Appends | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self._tenant, app = tenant_and_app(tenant_id, app)
        self._backend = backend
        self._queue_name = queue
        self._options = Options()
        self._factory = EventFactory(app=app, environment=backend.stage, origin="producer", clock=backend.clock)
        self._records = TaskRecords(backend, journal)
        self._queues: dict[str, Submissions] = {}
        self._submissions(queue)
        self._journal: Journal = journal if isinstance(journal, Journal) else backend.journal()
        self._runs = TaskRuns(self._journal, self._records, self._tenant)
        self._planner = Planner(self._tenant, queue, registry, self._factory)
        self._rows = None if outbox is None else TaskRows(outbox, self._tenant, self._factory, self._submissions)

    def options(
        self,
        *,
        delay: float | str | timedelta | None = None,
        at: datetime | None = None,
        request_id: str | None = None,
        timeout: float | str | timedelta | None = None,
        within: object = None,
    ) -> TaskProducer:
        """Return a producer that submits with these options, and with those of this one that are not given.

        Args:
            delay: How long the task waits before a worker may receive it, in seconds or as "30s" or "5m"; not at all
                by default.
            at: When a worker may receive it, with a time zone, instead of `delay`; a time that has passed means now.
            request_id: The id of the task; a new one by default. The same id with the same name and input is the same
                run, so a submission can be repeated.
            timeout: How long an attempt may take; by default what the task or the worker says.
            within: A connection of the application in a transaction: the task exists if and only if it commits. The
                producer needs an `outbox` for it, whose dispatcher submits the task.

        Raises:
            InvalidTask: An option is not valid.
            ConfigurationError: The timeout is not valid, or `within` is given and the producer has no outbox.

        Example:
            producer.options(delay="5m", request_id="order-17").submit(remind, order_id="17")
        """
        if within is not None and self._rows is None:
            raise ConfigurationError(
                "within: this producer has no outbox",
                field="within",
                remedy="Make it with TaskProducer(backend, outbox=outbox).",
            )
        other, clock = copy.copy(self), self._backend.clock
        given = {"request_id": request_id, "within": within}
        other._options = self._options.with_given(clock, delay, at, timeout=timeout, **given)
        return other

    @overload
    def submit(
        self,
        name: str,
        /,
        input: Input | None = None,
        *,
        request_id: str | None = None,
        timeout: float | str | timedelta | None = None,
        delay: float | str | timedelta | None = None,
    ) -> TaskHandle[Any]: ...
    @overload
    def submit(
        self, task: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[R]: ...
    @overload
    def submit(self, task: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    @overload
    def submit(
        self,
        task: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> TaskHandle[R]: ...
    @overload
    def submit(
        self, task: Callable[Concatenate[TaskContext, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[R]: ...
    @overload
    def submit(
        self, task: Callable[[Input, TaskContext], Coroutine[Any, Any, R]], /, input: Input | None = None
    ) -> TaskHandle[R]: ...
    @overload
    def submit(self, task: Callable[[Input, TaskContext], R], /, input: Input | None = None) -> TaskHandle[R]: ...
    def submit(self, task: Any, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Submit a task to be run once, and return its handle.

        `submit(scrape, store_id="s1")` takes the arguments of the function; options stand apart, in `options(...)`.
        `submit("scrape", {"store_id": "s1"})` names a task that this process need not know; it takes `request_id`,
        `timeout` and `delay` as well.

        Args:
            task: A function that is registered as a task, or the name of a task.
            args: The arguments of the function; behind a name the input, a JSON object.
            kwargs: Arguments of the function by name. The one annotated `TaskContext` is the worker's to give.

        Raises:
            InvalidTask: The name, an argument, the request id or the delay is not valid; nothing is submitted.
            UnknownTask: The function is not a task, or the producer has a registry and the name is not in it.
            Conflict: The request id was submitted with another name or input.
        """
        planned = self._planner.plan(task, args, kwargs, self._options)
        if self._options.within is not None:
            self._outbox_rows().add(self._options.within, [(planned.submission, planned.queue)])
            return self._pending(planned)
        return self._handle(self._submissions(planned.queue).begin(planned.submission), planned.definition)

    @overload
    async def asubmit(self, name: str, /, input: Input | None = None) -> TaskHandle[Any]: ...
    @overload
    async def asubmit(
        self, task: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[R]: ...
    @overload
    async def asubmit(self, task: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    @overload
    async def asubmit(
        self,
        task: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> TaskHandle[R]: ...
    @overload
    async def asubmit(
        self, task: Callable[Concatenate[TaskContext, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[R]: ...
    async def asubmit(self, task: Any, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Submit a task as `submit` does, without blocking the event loop.

        With `options(within=connection)` it is a connection that is awaited, such as psycopg's `AsyncConnection`.

        Args:
            task: A function that is registered as a task, or the name of a task.
            args: The arguments of the function; behind a name the input, a JSON object.
            kwargs: Arguments of the function by name.
        """
        from postroad.receiving import in_thread

        if self._options.within is None:
            return await in_thread(partial(self.submit, task, *args, **kwargs))
        planned = self._planner.plan(task, args, kwargs, self._options)
        await self._outbox_rows().add_async(self._options.within, planned.submission, planned.queue)
        return self._pending(planned)

    def submit_many(self, calls: Iterable[Call | Mapping[str, Any]]) -> list[TaskHandle[Any]]:
        """Submit many tasks at once, which is several times as fast as one by one; return their handles in order.

        All of them are checked first. On the embedded engine up to 500 share a commit, and an error submits none of
        these; on AWS those before an error are submitted.

        Args:
            calls: For each task the function or name and its input, such as `(scrape, {"store_id": "s1"})`, with a
                request id as a third member where the submission may be repeated; or the mapping
                `{"name": …, "input": …, "requestId": …}`.

        Raises:
            InvalidTask: A call is not valid; nothing is submitted.
            UnknownTask: A function is not a task, or a name is not in the registry.
            Conflict: A request id was submitted with another name or input.

        Example:
            handles = producer.submit_many([(scrape, {"store_id": id}) for id in stores])
        """
        planned = [self._planner.plan_call(call, self._options) for call in calls]
        if self._options.within is not None:
            self._outbox_rows().add(self._options.within, [(each.submission, each.queue) for each in planned])
            return [self._pending(each) for each in planned]
        handles: list[TaskHandle[Any]] = []
        for start in range(0, len(planned), _MOST_TOGETHER):
            handles += self._begin_many(planned[start : start + _MOST_TOGETHER])
        return handles

    def handle(self, request_id: str) -> TaskHandle[Any]:
        """Return a handle of the latest run of a task that was submitted before, perhaps by another process.

        Args:
            request_id: The id of the task.

        Raises:
            NotFound: There is no such task.
        """
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        name, run = self._runs.latest(request_id)
        return self._handle(Begun(request_id, run, False), self._planner.find(name))

    def retry(self, request_id: str) -> TaskHandle[Any]:
        """Run the failed or cancelled task `request_id` again, as its next run."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        held = self._records.read(self._tenant, request_id)
        if held is None:
            raise NotFound(f"there is no task {request_id!r}")
        lease = held.lease
        if lease.outcome is None or lease.outcome.state == "completed":
            state = "not finished" if lease.outcome is None else "completed"
            raise Conflict(f"task {request_id!r} is {state}; only failed and cancelled tasks are retried")
        pending = last_pending(self._journal, self._tenant, request_id)
        if pending is None and lease.job_id is not None:
            raise Conflict(
                f"task {request_id!r} was cancelled before it began",
                remedy=f"Resume its job: postroad job resume {lease.job_id}",
            )
        if pending is None:
            raise NotFound(f"the journal does not hold the input of task {request_id!r}")
        message = msgspec.structs.replace(message_of(pending), run=lease.run + 1)
        submission = Submission.of(message, self._tenant, self._factory, depends_on=pending.properties.get("dependsOn"))
        if lease.job_id is not None:
            self._records.open_job(self._tenant, lease.job_id)
        if not self._submissions(lease.queue or self._queue_name).begin_again(submission, held):
            raise Conflict(f"task {request_id!r} was just retried by another process")
        if lease.job_id is not None:
            # A dispatcher that saw the task before it began again may have closed the job since.
            with contextlib.suppress(PostroadError):
                self._records.open_job(self._tenant, lease.job_id)
        self._records.wake_job(self._tenant, lease, state="pending")
        return self._handle(Begun(request_id, message.run, True), self._planner.find(message.name))

    def cancel(self, request_id: str) -> bool:
        """Cancel `request_id`, killing it where it runs; return False if it had ended already.

        A task of a job that waits for others never begins, and the tasks that depend on it do not begin either.
        """
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        return self._cancel(request_id)

    def status(self, request_id: str, at: int | None = None) -> TaskState | None:
        """Return the state of `request_id`, now or at the moment `at` in milliseconds; None before its first event."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        return current_state(self._journal, self._records, self._tenant, request_id, at)

    def history(self, request_id: str) -> list[JournalEvent]:
        """Return every event of `request_id`, in order."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        return task_history(self._journal, self._tenant, request_id)

    def _cancel(self, request_id: str, run: int | None = None) -> bool:
        def unbegun() -> Lease:
            name = self._runs.name_in_job(request_id)
            return first_lease_in_job(self._tenant, request_id, name, self._queue_name, self._factory)

        return self._records.cancel(
            self._tenant, request_id, self._factory, reason="cancelled on request", unbegun=unbegun, run=run
        )

    def _begin_many(self, planned: Sequence[Plan]) -> list[TaskHandle[Any]]:
        begun: dict[int, Begun] = {}
        # A queue that is missing is made before the transaction, or raises there.
        queues = {each.queue: self._submissions(each.queue) for each in planned}
        with self._backend.transaction() if self._records.together else contextlib.nullcontext():
            for queue, submissions in queues.items():
                places = [place for place, each in enumerate(planned) if each.queue == queue]
                found = submissions.begin_many([planned[place].submission for place in places])
                begun |= zip(places, found, strict=True)
        return [self._handle(begun[place], each.definition) for place, each in enumerate(planned)]

    def _submissions(self, queue: str) -> Submissions:
        found = self._queues.get(queue)
        if found is None:
            found = Submissions(self._backend, self._records, queue_name=queue)
            found.open_queue()
            self._queues[queue] = found
        return found

    def _outbox_rows(self) -> TaskRows:
        assert self._rows is not None
        return self._rows

    def _pending(self, planned: Plan) -> TaskHandle[Any]:
        """Return the handle of a task that the dispatcher of the outbox will submit."""
        message = planned.submission.message
        return self._handle(Begun(message.request_id, message.run, True), planned.definition)

    def _handle(self, begun: Begun, definition: TaskDefinition | None) -> TaskHandle[Any]:
        return TaskHandle(*begun, self._runs, None if definition is None else definition.signature, self._cancel)
