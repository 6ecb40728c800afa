"""The plan of a submission: a task, its arguments and its options are checked before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from postroad.arguments import check, seconds_of
from postroad.clock import Clock
from postroad.errors import ConfigurationError, InvalidTask, UnknownTask
from postroad.events import uuid7
from postroad.tasks.messages import EventFactory, RequestId, TaskMessage, check_input
from postroad.tasks.registry import NAME, TaskDefinition, TaskName, TaskRegistry, Timeout, default_tasks
from postroad.tasks.submissions import MAX_PUT_OFF, Submission

_Delay = Annotated[float, Meta(ge=0, le=MAX_PUT_OFF, description=f"is not from 0 to {MAX_PUT_OFF:.0f} seconds, a year")]
_NAMED = 'Write submit("scrape", {"store_id": "s1"}), or pass the function itself.'
_OF_A_NAME = frozenset({"input", "request_id", "timeout", "delay"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What stands apart from the arguments of a task."""

    delay: float = 0.0
    """Seconds before a worker may receive it."""
    at: datetime | None = None
    """When a worker may receive it, instead of `delay`."""
    request_id: str | None = None
    timeout: float | None = None
    within: Any = None
    """The connection whose transaction decides whether the task exists."""

    def __post_init__(self) -> None:
        if self.request_id is not None:
            check(self.request_id, RequestId, "requestId", InvalidTask)
        if self.timeout is not None:
            check(self.timeout, Timeout, "timeout", ConfigurationError)
        check(self.delay, _Delay, "delay", InvalidTask)

    def with_given(self, clock: Clock, delay: Any, at: Any, *, timeout: Any, **others: Any) -> Options:
        """Return these options with those that are given, in place of the same ones of these."""
        given = others | {"timeout": seconds_of(timeout, "timeout", ConfigurationError)}
        given = {name: value for name, value in given.items() if value is not None}
        return (replace(self, **given) if given else self)._delayed(delay, at, clock)

    def _delayed(self, delay: Any, at: Any, clock: Clock) -> Options:
        if at is None:
            delay = seconds_of(delay, "delay", InvalidTask)
            return self if delay is None else replace(self, delay=delay, at=None)
        if delay is not None:
            raise InvalidTask("at: a delay is given, too", field="at", remedy="Give one of the two.")
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise InvalidTask(
                f"at: {at!r} is not a datetime with a time zone", field="at", remedy="Use datetime.now(UTC)."
            )
        # The time may be far ahead now; the delay itself is computed for each submission.
        return replace(self, delay=max(0.0, (at - clock.now()).total_seconds()), at=at)

    def delay_from(self, clock: Clock) -> float:
        """Return the delay of a task that is submitted now."""
        return self.delay if self.at is None else max(0.0, (self.at - clock.now()).total_seconds())


class Plan(NamedTuple):
    """A submission that was checked, the queue it goes to, and the task if it is known here."""

    submission: Submission
    queue: str
    definition: TaskDefinition | None


def _arguments(input: Any) -> Mapping[str, Any]:
    if isinstance(input, Mapping) and all(isinstance(name, str) for name in input):
        return input
    raise InvalidTask(
        f"input: {type(input).__name__} holds no arguments by name",
        field="input",
        remedy='Write them as a dict, such as {"store_id": "s1"}.',
    )


class Planner:
    """Checks the submissions of one producer."""

    def __init__(self, tenant: str, queue: str, registry: TaskRegistry | None, factory: EventFactory) -> None:
        self._tenant = tenant
        self._queue = queue
        self._registry = registry
        self._factory = factory

    def plan(self, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> Plan:
        """Return the plan of `submit`."""
        if not callable(task):
            if unknown := sorted(kwargs.keys() - _OF_A_NAME):
                raise InvalidTask(
                    f"{unknown[0]}: a task that is named takes its arguments as one input",
                    field=unknown[0],
                    remedy=_NAMED,
                )
            if len(args) + ("input" in kwargs) > 1:
                raise InvalidTask("input: a task that is named takes one input", field="input", remedy=_NAMED)
            return self._named(task, *args, options=options, **kwargs)
        definition = self._definition(task)
        assert definition.signature is not None
        return self._planned(definition.name, definition.signature.bind(args, kwargs), options, definition)

    def plan_call(self, call: Any, options: Options) -> Plan:
        """Return the plan of one call of `submit_many`."""
        if type(call) is not tuple and isinstance(call, Mapping):
            call = (call.get("name"), call.get("input"), call.get("requestId"))
        is_sequence = type(call) is tuple or (isinstance(call, Sequence) and not isinstance(call, str))
        if not is_sequence or not 2 <= len(call) <= 3:
            raise InvalidTask(
                f"calls: {str(call)[:100]!r} is not a task with its input",
                field="calls",
                remedy='Write (scrape, {"store_id": "s1"}), or add a request id as a third member.',
            )
        task, input, request_id = call if len(call) == 3 else (*call, None)
        if request_id is not None:
            options = replace(options, request_id=request_id)
        elif options.request_id is not None:
            raise InvalidTask(
                "requestId: one id cannot name many tasks",
                field="requestId",
                remedy="Give each call its own request id, as its third member.",
            )
        if not callable(task):
            return self._named(task, input, options=options)
        definition = self._definition(task)
        signature = definition.signature
        assert signature is not None
        given = signature.bind((input,), {}) if signature.takes_input else signature.bind((), _arguments(input))
        return self._planned(definition.name, given, options, definition)

    def find(self, task: Any) -> TaskDefinition | None:
        """Return the task of a name or function; None if it is not known here."""
        return (default_tasks if self._registry is None else self._registry).find(task)

    def _definition(self, function: Any) -> TaskDefinition:
        found = self.find(function)
        if found is None:
            name = getattr(function, "__name__", repr(function))
            raise UnknownTask(
                f"task: {name} is not a task",
                field="task",
                remedy="Decorate it with @task, or give its registry to the producer: TaskProducer(registry=registry).",
            )
        return found

    def _named(
        self,
        name: Any,
        input: Any = None,
        *,
        options: Options,
        request_id: str | None = None,
        timeout: float | str | timedelta | None = None,
        delay: float | str | timedelta | None = None,
    ) -> Plan:
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            check(name, TaskName, "name", InvalidTask)
        options = options.with_given(self._factory.clock, delay, None, timeout=timeout, request_id=request_id)
        definition = self.find(name) if self._registry is None else self._registry.get(name)
        checked = check_input(input)
        if definition is not None and definition.signature is not None:
            definition.signature.check(checked)
        return self._planned(name, checked, options, definition)

    def _planned(self, name: str, input: Any, options: Options, definition: TaskDefinition | None) -> Plan:
        timeout = options.timeout
        message = TaskMessage(
            request_id=str(uuid7()) if options.request_id is None else options.request_id,
            name=name,
            input=input,
            timeout_ms=None if timeout is None else max(1, round(timeout * 1_000)),
        )
        queue = None if definition is None else definition.queue
        submission = Submission.of(message, self._tenant, self._factory, delay=options.delay_from(self._factory.clock))
        return Plan(submission, queue or self._queue, definition)
