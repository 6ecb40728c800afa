"""Rows of the dashboard: how long its pages take on a large store, and what its viewers cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.running_up import FILE, Client, RunningUp, cpu_seconds, running_up
from postroad import Backend, OutgoingMessage, QueueSpec, connect

_TEN = 10
_AT_ONCE = 1_000
_SETTLE_SECONDS = 3.0
_LISTS = (
    *("", "queues", "dead-letters", "outbox", "tasks", "jobs", "events", "agents", "health", "map", "audit"),
    *("schedules", "workers", "notifications"),
)
Figure = Callable[[RunningUp, Load, list[str]], float]


def furnish(backend: Backend, queues: int, messages: int) -> list[str]:
    """Fill a store with queues in tens, of which one holds the dead letters of the others and a topic feeds them;
    return the addresses of all pages."""
    names = [f"queue-{number:05}" for number in range(queues)]
    for place, name in enumerate(names):
        dead = names[place - place % _TEN]
        backend.create_queue(QueueSpec(name, dead_letter=None if name == dead else dead))
        if name != dead:
            backend.topic(f"topic-{place // _TEN:04}").subscribe(backend.queue(name))
    working = [name for place, name in enumerate(names) if place % _TEN]
    for name in working:
        backend.queue(name).send([OutgoingMessage("x" * 100) for _ in range(max(1, messages // len(working)))])
    # What the page of a queue and that of dead letters show is the same in every store.
    queue = backend.create_queue(QueueSpec("shown", dead_letter=names[0]))
    queue.send([OutgoingMessage(f"doomed {number}") for number in range(_TEN)])
    held = queue.receive(max_messages=_TEN)
    queue.reject(held, reason="handler_failed", error="ValueError: no [shop.py:sell]")
    queue.send([OutgoingMessage("x" * 100) for _ in range(100)])
    return [f"/ui/{name}" for name in _LISTS] + ["/ui/queues/shown", f"/ui/events/{held[0].message_id}"]


@contextmanager
def _furnished(directory: Path, queues: int, messages: int) -> Iterator[tuple[RunningUp, list[str]]]:
    """A running server on a filled store, and the addresses of all pages."""
    directory.mkdir(exist_ok=True)
    with connect(f"sqlite:///{directory}/{FILE}") as backend:
        paths = furnish(backend, queues, messages)
    with running_up(directory) as up:
        time.sleep(_SETTLE_SECONDS)
        yield up, paths


def _filled(figure: Figure, messages: Callable[[Load], int]) -> Open:
    """A side with a running server on a filled store."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _furnished(directory, load.crowd, messages(load)) as (up, paths):
            yield Opened(lambda: figure(up, load, paths))

    return opened


def times(up: RunningUp, paths: list[str], rounds: int) -> Mapping[str, list[float]]:
    """The seconds of each request, page by page, on one connection."""
    found: dict[str, list[float]] = {path: [] for path in paths}
    with closing(Client(up.url, up.headers)) as client:
        for _ in range(rounds):
            for path, seconds in found.items():
                began = time.perf_counter()
                body = client.ask("GET", path)
                seconds.append(time.perf_counter() - began)
                if b"data-page=" not in body:
                    raise WrongResult(f"{path}: {body[:200]!r}")
    return found


def _slowest(up: RunningUp, load: Load, paths: list[str]) -> float:
    """The 99th percentile of the slowest page."""
    return max(_p99(seconds) for seconds in times(up, paths, load.messages).values())


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[round(0.99 * (len(seconds) - 1))]


@contextmanager
def _growth(directory: Path, load: Load) -> Iterator[Opened]:
    """How many times longer a page takes on a large store than on a small one; that of the page that grows most."""
    with (
        _furnished(directory / "large", load.crowd, _million(load)) as (large, paths),
        _furnished(directory / "small", max(_TEN, load.crowd // _TEN), _AT_ONCE) as (small, few),
    ):

        def run() -> float:
            # By turns, so that whatever else the machine does slows both down.
            turns = [(times(large, paths, 1), times(small, few, 1)) for _ in range(load.messages)]

            def median(side: int, path: str) -> float:
                return statistics.median(seconds for turn in turns for seconds in turn[side][path])

            return max(median(0, much) / median(1, little) for much, little in zip(paths, few, strict=True))

        yield Opened(run)


def _weight(up: RunningUp, load: Load, paths: list[str]) -> float:
    return float(sum(len(up.get(path)) for path in ("/ui/", "/static/style.css", "/static/script.js")))


@contextmanager
def watching(up: RunningUp, viewers: int) -> Iterator[None]:
    """So many dashboards are open."""
    with ExitStack() as stack:
        for _ in range(viewers):
            stack.enter_context(closing(Client(up.url, up.headers))).begin("/live?window=3600")
        yield


def _live(up: RunningUp, load: Load, paths: list[str]) -> float:
    """The part of a core that open dashboards take while messages come."""
    server = up.server
    with closing(Client(up.url, up.headers)) as client:
        idle = _busy(client, server, load)
        with watching(up, load.crowd):
            return max(1e-6, _busy(client, server, load) - idle)


def _busy(client: Client, server: int, load: Load) -> float:
    """The part of a core that the server takes while it gets a message a second."""
    before, began = cpu_seconds(server), time.monotonic()
    for _ in range(load.messages):
        if b'"ok":true' not in client.ask("POST", "/queues/shown/messages", b'{"messages":[{"body":"x"}]}'):
            raise WrongResult("a message was not sent")
        time.sleep(1.0)
    return (cpu_seconds(server) - before) / (time.monotonic() - began)


def _publishing(viewers: Callable[[Load], int]) -> Open:
    """A side that sends to the file of a running server, which is watched."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with connect(f"sqlite:///{directory}/{FILE}") as backend:
            queue = backend.create_queue(QueueSpec("orders"))
            with running_up(directory) as up, watching(up, viewers(load)):
                time.sleep(_SETTLE_SECONDS)

                def send() -> float:
                    began, before = time.perf_counter(), queue.stats().visible
                    for _ in range(load.messages // _TEN):
                        queue.send([OutgoingMessage("x" * 100) for _ in range(_TEN)])
                    seconds = time.perf_counter() - began
                    if queue.stats().visible != before + load.messages:
                        raise WrongResult("messages were lost")
                    return load.messages / seconds

                yield Opened(send)

    return opened


def _requests(full: int, quick: int, crowd: int) -> Loads:
    """How often each page is asked for, and how many queues there are at the most."""
    return Loads(
        full=Load(messages=full, crowd=crowd),
        quick=Load(messages=quick, crowd=min(crowd, 1_000)),
        smallest=Load(messages=1, crowd=20),
    )


def _million(load: Load) -> int:
    return 1_000_000 if load.messages > 20 else 100_000 if load.messages > 1 else _AT_ONCE


ROWS = [
    Row(
        name="dashboard-pages",
        unit="seconds",
        target=1.0,
        loads=_requests(200, 20, 1_000),
        what="p99 of the slowest page of the dashboard at 1,000 queues and 1,000,000 messages",
        ours=Side(label="slowest page", open=_filled(_slowest, _million)),
        peer=limit("limit of 100 ms", 0.1),
    ),
    Row(
        name="dashboard-growth",
        unit="ratio",
        target=1.0,
        loads=_requests(50, 10, 10_000),
        what="how many times longer a page takes at 10,000 queues and 1,000,000 messages than at 1,000 of each",
        ours=Side(label="page that grows most", open=_growth),
        peer=limit("limit of 1.5", 1.5),
    ),
    Row(
        name="page-weight",
        unit="bytes",
        target=1.0,
        loads=_requests(2, 2, 20),
        what="the overview with its style sheet and script, uncompressed",
        ours=Side(label="overview", open=_filled(_weight, lambda load: _AT_ONCE)),
        peer=limit("limit of 150 kB", 150e3),
    ),
    Row(
        name="dashboard-live",
        unit="ratio",
        target=1.0,
        loads=_requests(30, 1, 50),
        what="part of a core that 50 open dashboards take while a message comes each second",
        ours=Side(label="50 dashboards", open=_filled(_live, lambda load: _AT_ONCE)),
        peer=limit("limit of 5 %", 0.05),
    ),
    Row(
        name="dashboard-viewers",
        unit="per_second",
        target=0.85,
        loads=Loads(
            full=Load(messages=40_000, crowd=200),
            quick=Load(messages=5_000, crowd=200),
            smallest=Load(messages=100, crowd=5),
        ),
        what="messages sent in batches of 10 while 200 viewers watch, against none",
        ours=Side(label="200 viewers", open=_publishing(lambda load: load.crowd)),
        peer=Side(label="no viewers", open=_publishing(lambda load: 0)),
    ),
]
