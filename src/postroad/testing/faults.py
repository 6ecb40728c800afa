"""Faults on purpose: calls of a backend, an outbox or an inbox that fail, lose their reply or happen twice."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from postroad.arguments import check, whole_number
from postroad.errors import InvalidInput, OutcomeUnknown, Unavailable
from postroad.settings import nearest

if TYPE_CHECKING:
    from postroad.queues import Delivery

_QUEUE: Final = "postroad.queues.sqlite.queue:SQLiteQueue"
_DISPATCH: Final = (
    "postroad.outbox.dispatching.sqlite:SQLiteDispatchStore",
    "postroad.outbox.dispatching.postgres:PostgresDispatchStore",
)
_INBOX: Final = "postroad.inbox.inbox:Inbox"
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    **{f"queue.{verb}": (f"{_QUEUE}.{verb}",) for verb in ("send", "receive", "ack", "extend", "release")},
    "topic.publish": ("postroad.topics.sqlite:SQLiteTopic.publish",),
    "stream.put": ("postroad.streams.sqlite:SQLiteStream.put",),
    # Tasks and jobs store their events through another method than `append`; both end here.
    "journal.append": ("postroad.journal.store:StoredJournal._add",),
    "blobs.put": ("postroad.blobs.directory:DirectoryBlobs.put",),
    **{f"outbox.{verb}": tuple(f"{store}.{verb}" for store in _DISPATCH) for verb in ("claim", "settle")},
    "inbox.first_time": (f"{_INBOX}.first_time", f"{_INBOX}.first_time_async"),
}
POINTS: Final = tuple(_PLACES)
"""The calls that can fail, each as `<port>.<verb>`."""
_Times = whole_number(1, 1_000_000)
_After = whole_number(0, 1_000_000)


@dataclass(slots=True)
class _Plan:
    """What happens to the next calls of a point; it counts down as they come."""

    point: str
    kind: Literal["fail", "lose_reply", "duplicate"]
    times: int
    after: int = 0
    error: Exception | type[Exception] | None = None


class Faults:
    """Plans faults for the calls of one test; the fixture `postroad_faults` returns one.

    While the test runs, every embedded backend, outbox and inbox of its process obeys, those on threads included. Child
    processes do not. Faults of one point happen in the order in which they were planned, one to a call.

    Points are `queue.send`, `queue.receive`, `queue.ack`, `queue.extend`, `queue.release`, `topic.publish`,
    `stream.put`, `journal.append`, `blobs.put`, `outbox.claim`, `outbox.settle` and `inbox.first_time`.

    Example:
        def test_a_send_is_repeated(postroad_backend, postroad_faults):
            postroad_faults.fail("queue.send", times=2)
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        """The point of each call that was made, those with a fault included, in their order."""
        self._plans: list[_Plan] = []
        self._repeats: dict[object, list[Delivery]] = defaultdict(list)
        self._lock = threading.Lock()

    def fail(
        self, point: str, *, times: int = 1, after: int = 0, error: Exception | type[Exception] | None = None
    ) -> None:
        """Let calls of `point` raise an error and have no effect.

        Args:
            point: The call, such as "queue.send".
            times: How many calls fail.
            after: How many calls pass before the first one fails.
            error: What they raise; `Unavailable` by default.

        Raises:
            InvalidInput: There is no such point, or a number is out of range.
        """
        check(after, _After, "after")
        is_type = isinstance(error, type) and issubclass(error, Exception)
        if error is not None and not isinstance(error, Exception) and not is_type:
            raise InvalidInput(f"error: {error!r} is not an exception", field="error")
        self._plan(_Plan(point, "fail", times, after, error))

    def lose_reply(self, point: str, *, times: int = 1) -> None:
        """Let `times` calls of `point` take effect and raise `OutcomeUnknown`, as when a connection breaks."""
        self._plan(_Plan(point, "lose_reply", times))

    def duplicate(self, point: str, *, times: int = 1) -> None:
        """Repeat what `times` calls of `point` deliver.

        At "queue.receive" the next receive from that queue returns the same messages again, acked or not; at any other
        point the call is made twice.

        Args:
            point: The call; all but "outbox.claim", because two dispatchers never hold one row.
            times: How many calls are repeated.
        """
        if point == "outbox.claim":
            raise InvalidInput(
                "point: outbox.claim leases rows to one dispatcher and delivers nothing",
                field="point",
                remedy='Repeat what a dispatcher delivers: "topic.publish" or "queue.send".',
            )
        self._plan(_Plan(point, "duplicate", times))

    def clear(self) -> None:
        """Forget all planned faults and all calls."""
        with self._lock:
            self._plans.clear()
            self._repeats.clear()
            self.calls.clear()

    def _plan(self, plan: _Plan) -> None:
        if plan.point not in _PLACES:
            raise InvalidInput(
                f"point: {plan.point!r} is not a call that can fail",
                field="point",
                nearest=nearest(str(plan.point), POINTS),
                remedy=f"Use one of {', '.join(POINTS)}.",
            )
        check(plan.times, _Times, "times")
        with self._lock:
            self._plans.append(plan)

    def _hit(self, point: str) -> str | None:
        """Note a call; raise if it fails, or return what happens after it."""
        due: _Plan | None = None
        with self._lock:
            self.calls.append(point)
            for plan in self._plans:
                if plan.point == point and plan.after:
                    plan.after -= 1
                elif plan.point == point and due is None:
                    plan.times -= 1
                    due = plan
            self._plans = [plan for plan in self._plans if plan.times]
        if due is None:
            return None
        if due.kind == "fail":
            raise due.error or Unavailable(f"{point}: a test lets this call fail")
        return due.kind

    def _receive(self, receive: Callable[..., list[Delivery]], queue: Any, **given: Any) -> list[Delivery]:
        """Receive, or return what a repeated delivery left for this queue."""
        from msgspec.structs import replace

        then = self._hit("queue.receive")
        place, most = (id(queue._engine), queue.name), given.get("max_messages", 10)
        with self._lock:
            waiting = self._repeats[place]
            found, waiting[:] = waiting[:most], waiting[most:]
        found = found or receive(queue, **given)
        if then == "duplicate":
            again = [replace(each, receive_count=each.receive_count + 1) for each in found]
            with self._lock:
                self._repeats[place] += again
        _lose("queue.receive", then)
        return found

    def _obeying(self, point: str, call: Callable[..., Any]) -> Callable[..., Any]:

        @functools.wraps(call)
        def obey(*args: Any, **given: Any) -> Any:
            then = self._hit(point)
            result = call(*args, **given)
            if then == "duplicate":
                call(*args, **given)
            _lose(point, then)
            return result

        @functools.wraps(call)
        async def obey_async(*args: Any, **given: Any) -> Any:
            then = self._hit(point)
            result = await call(*args, **given)
            if then == "duplicate":
                await call(*args, **given)
            _lose(point, then)
            return result

        if point == "queue.receive":
            return functools.wraps(call)(lambda queue, **given: self._receive(call, queue, **given))
        return obey_async if inspect.iscoroutinefunction(call) else obey

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """Let every embedded backend, outbox and inbox of this process obey during a block."""
        with ExitStack() as undone:
            for point, places in _PLACES.items():
                for place in places:
                    try:
                        owner, name, call = method_at(place)
                    except ModuleNotFoundError as error:
                        # Only a driver may be missing, whose adapter nobody can use.
                        if (error.name or "").startswith("postroad"):
                            raise
                        continue
                    undone.callback(setattr, owner, name, call)
                    setattr(owner, name, self._obeying(point, call))
            yield


def _lose(point: str, then: str | None) -> None:
    if then == "lose_reply":
        raise OutcomeUnknown(f"{point}: a test lets the reply of this call get lost")


def method_at(place: str) -> tuple[type, str, Callable[..., Any]]:
    """Return the class, the name and the method of a place, `module:Class.method`."""
    module, _, path = place.partition(":")
    kind, _, name = path.partition(".")
    owner = getattr(import_module(module), kind)
    return owner, name, getattr(owner, name)
