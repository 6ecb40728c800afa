"""The history of a run: `run.json` and the lines of `history/*.jsonl`, read in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from io import BufferedReader
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from postroad.errors import InvalidInput

FORMAT = 1
Outcome = Literal["ok", "fail", "unknown"]
Name = str | int
Digits = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,40}$")]
_REMEDY = "Give the directory of a report: it holds run.json and history/*.jsonl."


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run; those without a default are part of the format, the others are copied to the report."""

    format: int
    seed: int = 0
    faults: bool = True
    ordered: bool = False
    policy: Literal["block", "park", "skip"] = "block"
    max_receives: int | None = 3
    """None if receives on which no handler began do not count, so that nobody outside can count them."""
    visibility: float = 30
    subscriptions: dict[str, list[str]] = {}
    drained: bool = False
    asked_kills: int = 0
    copies: bool = False
    """Whether a message may be stored twice: a client repeats a call without an answer, and nobody deduplicates."""
    two_step_reject: bool = False
    """Whether a message is copied to the dead letters before it is deleted, so that a fault may leave it in both."""
    scenario: str = ""
    store: str = ""
    size: str = ""
    started_at: str = ""
    seconds: float | None = None
    versions: dict[str, str] = {}
    command: str = ""
    problems: list[str] = []


class Line(msgspec.Struct, kw_only=True, gc=False):
    """A line of an operation that this version does not know."""

    t: float
    op: str


class _Operation(msgspec.Struct, kw_only=True, gc=False, tag_field="op", tag=str.lower):
    t: float
    p: str = ""
    outcome: Outcome = "ok"


class _OfCopy(_Operation):
    """About a message in one subscription."""

    sub: str
    id: Name


class Publish(_Operation):
    """A message was published: before the call `unknown`, after it the outcome."""

    topic: str
    id: Name
    sha: str
    key: Name | None = None
    n: int = 0


class Receive(_OfCopy):
    """A delivery was handed to a consumer, by a call that began at `t0`; streams count no receives."""

    sha: str
    receive_count: int = 0
    receipt: Name = ""
    key: Name | None = None
    n: int = 0
    token: Name | None = None
    sequence: int | Digits | None = None
    t0: float | None = None


class Handled(_OfCopy):
    """A handler ended: without an error if `ok`."""

    key: Name | None = None
    n: int = 0
    receipt: Name | None = None
    t0: float | None = None


class Effect(_OfCopy):
    """The transaction of a handler committed."""


class Ack(_OfCopy):
    """A delivery was acked, by a call that began at `t0`."""

    receipt: Name
    t0: float | None = None


class Extend(Ack):
    """The lease of a delivery was changed."""


class Release(Ack):
    """A delivery was handed back; if it is `undone`, its receive does not count."""

    undone: bool = False


class Dead(_OfCopy):
    """A message rests in the dead letters or the parked lane."""


class Left(Dead):
    """A message is still waiting or in flight after the drain."""


class Gap(_Operation):
    """A marker announces that an event was skipped."""

    sub: str
    n: int
    key: Name | None = None


class Peek(_OfCopy):
    """A message was seen by peek."""

    receive_count: int


class Task(_Operation):
    """An event of a task, as committed."""

    id: Name
    run: Name
    state: str
    by: Name | None = None


class Child(_Operation):
    """A child process was spawned, is gone, or outlived its worker."""

    id: Name
    run: Name
    event: str
    pid: int | None = None


class Job(_Operation, gc=True):
    """An event of a job, with the state of each of its tasks."""

    id: Name
    state: str
    tasks: dict[str, str] = {}
    needs: dict[str, list[str]] = {}


class Check(_Operation, gc=True):
    """What the supervisor looked up after the drain."""

    invariant: str
    ok: bool
    detail: Any = ""


class Kill(_Operation, gc=True):
    """A process was killed."""

    target: Any = ""
    detail: Any = ""


class Pause(Kill):
    """A process was stopped for a while."""


class Restart(Kill):
    """A process or a server was restarted."""


class Proxy(Kill):
    """The proxy made a call fail."""


Settling = Ack | Extend | Release
Fault = Kill | Pause | Restart | Proxy
Operation = (
    Publish | Receive | Handled | Effect | Settling | Dead | Left | Gap | Peek | Task | Child | Job | Check | Fault
)
_OPS = frozenset(kind.__struct_config__.tag for kind in Operation.__args__)
_decode = msgspec.json.Decoder(Operation).decode
_decode_any = msgspec.json.Decoder(Line).decode


def read_run(directory: Path) -> Run:
    """Return the facts of the run whose report is in this directory.

    Raises:
        InvalidInput: If it is no such directory, or if a newer version wrote it.
    """
    path = directory / "run.json"
    if not path.is_file():
        missing = "run.json in" if directory.is_dir() else "directory"
        raise InvalidInput(f"there is no {missing} {directory}", field="directory", remedy=_REMEDY)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).get("format")
        if type(found) is int and found > FORMAT:
            remedy = "Check it with the version of Postroad that made it."
            raise InvalidInput(f"{path} has format {found}: it was made by a newer version", remedy=remedy)
        run = msgspec.json.decode(path.read_bytes(), type=Run)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} cannot be read: {error}", field="directory", remedy=_REMEDY) from error
    if run.format != FORMAT:
        raise InvalidInput(f"{path} has format {run.format}, which does not exist", field="directory", remedy=_REMEDY)
    return run


class History:
    """The lines of all processes of the run whose report is in this directory."""

    def __init__(self, directory: Path) -> None:
        self._files = sorted((directory / "history").glob("*.jsonl"))
        self.broken: list[str] = []
        """The lines that cannot be read, by file and number; the cut last line of a file is none of them."""

    def __iter__(self) -> Iterator[Operation | Line]:
        """Yield all lines by their times."""
        self.broken.clear()
        return heapq.merge(*map(self._from, self._files), key=attrgetter("t"))

    def _from(self, path: Path) -> Iterator[Operation | Line]:
        """Yield the lines of a file, which is closed behind the first: a long run has more files than may be open."""
        known = len(self.broken)
        if (first := next(self._lines(path), None)) is not None:
            del self.broken[known:]  # found once more when the file is read
            yield first
            yield from islice(self._lines(path), 1, None)

    def _lines(self, path: Path) -> Iterator[Operation | Line]:
        with path.open("rb", buffering=0) as raw_file, BufferedReader(raw_file, 1 << 18) as file:
            for number, raw in enumerate(file, 1):
                try:
                    yield _decode(raw)
                except msgspec.DecodeError as error:
                    try:
                        line = _decode_any(raw)
                        if line.op in _OPS:
                            raise error
                        yield line
                    except msgspec.DecodeError as other:
                        is_json = isinstance(other, msgspec.ValidationError)
                        if is_json or file.peek(1):
                            self.broken.append(f"{path.name} line {number}: {error}")
