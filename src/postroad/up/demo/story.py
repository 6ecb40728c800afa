"""The demo: its data, its scenes as a part of `postroad up`, and the failure that people are told of and repair."""

from __future__ import annotations

import asyncio
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from postroad.errors import ConfigurationError, without_credentials
from postroad.settings import Settings, beside, data_path
from postroad.tasks import ensure_queues
from postroad.telemetry import counted, recorded
from postroad.up.demo import agents, bus, notifications, outbox, tasks
from postroad.up.demo.database import DemoDatabase
from postroad.up.demo.stage import Stage
from postroad.views import DemoFailure, DemoShown, PartState
from postroad.wiring import Backend, connect

DEMO_URL = "sqlite:///postroad-demo.db"
FAILS_AFTER = 15.0
SCENES: tuple[Callable[[Stage], None], ...] = (bus.play, outbox.play, tasks.play, agents.play, notifications.play)
_MARK = "default/postroad-demo"
_PRUNE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


def demo_database(url: str) -> DemoDatabase:
    """Open the database of the demo's application, which is a file beside the data."""
    return DemoDatabase(beside(url, "demo"))


def demo_settings(settings: Settings, *, quiet: bool = False) -> Settings:
    """Return settings with which the parts of `postroad up` also do the demo's work: its tasks and its outbox.

    If it is `quiet`, they log warnings and errors only, unless another level is set.
    """
    by_default = settings.source("log_level") == "default"
    return replace(
        settings,
        log_level="warning" if quiet and by_default and settings.log_level == "info" else settings.log_level,
        load=(*settings.load, tasks.MODULE),
        outbox_dsn=f"sqlite:///{beside(settings.url, 'demo')}",
        outbox_topic=outbox.TOPIC,
        sources={**settings.sources, "outbox_topic": "env"},
    )


def refuse_other_store(url: str) -> None:
    """Refuse a backend that is not a file, before anything is opened.

    Raises:
        ConfigurationError: The address is that of another store.
    """
    if data_path(url) is None:
        raise ConfigurationError(
            f"url: the demo needs a file, and {without_credentials(url)} is none",
            field="url",
            remedy="Leave --url out, or give --url sqlite:///demo.db.",
        )


def refuse_other_data(backend: Backend) -> None:
    """Refuse a file that holds something else than a demo.

    Raises:
        ConfigurationError: The file holds something else.
    """
    holds_data = backend.queues() or backend.topics() or backend.agents().list(limit=1).items
    if holds_data and backend.items().get(_MARK) is None:
        raise ConfigurationError(
            f"url: {backend.url} holds data that is not the demo's",
            field="url",
            remedy="Leave --url out, or name a file that does not exist.",
        )


def prepare(backend: Backend, settings: Settings) -> None:
    """Create what the scenes need, and begin their story again unless it waits for a repair or a redrive."""
    refuse_other_data(backend)
    backend.items().put(_MARK, b"{}")
    with closing(demo_database(settings.url)) as database:
        outbox.prepare(backend, database)
        ensure_queues(backend)
        agents.prepare(backend)
        notifications.prepare(backend, database)
        if not Story(backend, database).failure().dead_letters:
            database.forget_story()


def play(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Play all scenes until `stop` is set; this is the part `demo`."""
    with closing(demo_database(settings.url)) as database:
        stage = Stage(backend=backend, database=database, settings=settings)
        database.begin_story(FAILS_AFTER)
        with playing(stage):
            prune_at = time.monotonic()
            while not stop.wait(_LOOK_SECONDS) and not stage.stop.is_set():
                if time.monotonic() >= prune_at:
                    prune_at = time.monotonic() + _PRUNE_SECONDS
                    database.prune()
            stage.end()


@contextmanager
def playing(stage: Stage) -> Iterator[None]:
    """Play all scenes beside the block, and wait for their ends."""
    with stage.working(*(lambda stop, scene=scene: scene(stage) for scene in SCENES)):
        yield


@dataclass(frozen=True, slots=True)
class Story:
    """The failure of the push provider, as people see and repair it."""

    backend: Backend
    database: DemoDatabase

    def show(self, state: PartState) -> DemoShown:
        """Return the scenes, which are all in the `state` of the part `demo`, and the failure."""
        return DemoShown(scenes=self.database.scenes(state), failure=self.failure())

    def failure(self) -> DemoFailure:
        """Return how far the failure is repaired."""
        stats = self.backend.queue(notifications.PUSH_DEAD).stats()
        dead = stats.visible + stats.in_flight + stats.delayed
        provider = self.database.provider()
        state = "redriven" if provider == "repaired" and not dead else provider
        return DemoFailure(state=state, queue=notifications.PUSH_QUEUE, dead_letters=dead)

    def repair(self, *, actor: str | None = None) -> None:
        """Repair the push provider, with an audit record."""
        with recorded(self.backend.audit_log(), "demo.repair", notifications.PUSH_QUEUE, {}, actor=actor):
            self.database.repair_provider()


@contextmanager
def open_story(url: str) -> Iterator[Story]:
    """Open the story of the demo whose data is there.

    Raises:
        ConfigurationError: There is no demo at this address.
    """
    if not beside(url, "demo").exists():
        raise ConfigurationError(
            f"url: there is no demo at {url}",
            field="url",
            remedy="Start one with `postroad up --demo`, or name its data with --url.",
        )
    with connect(url) as backend, closing(demo_database(url)) as database:
        yield Story(backend, database)


def sentences(failure: DemoFailure, program: str, url: str) -> str:
    """Return what is to be told about this state of the story, with the next command."""
    given = f"--url {shlex.quote(url)}"
    dead, letters = notifications.PUSH_DEAD, counted(failure.dead_letters, "dead letter")
    if failure.state == "healthy":
        return (
            "A shop takes orders, a bank posts transfers, a worker runs jobs, agents plan, a chat pushes messages.\n"
            f"In {FAILS_AFTER:g} seconds the push provider begins to refuse. Watch the dashboard."
        )
    if failure.state == "failing":
        return (
            f"The push provider refuses every push: {letters} in {dead}.\n"
            f"See why:  {program} queue groups {dead} {given}\n"
            f"Repair:   {program} demo repair {given}"
        )
    if failure.state == "repaired":
        return (
            f"The provider is repaired; {letters} in {dead}.\n"
            f"Redrive:  {program} queue redrive {dead} --yes --reason repaired {given}"
        )
    return "Every push has arrived: nothing was lost, and nothing came twice. Ctrl-C ends the demo."


async def narrate(program: str, url: str, say: Callable[[str], None]) -> None:
    """Tell each turn of the story once, until this is cancelled."""
    told = ""
    with open_story(url) as story:
        while True:
            failure = await asyncio.to_thread(story.failure)
            if failure.state != told and (failure.state != "failing" or failure.dead_letters):
                told = failure.state
                say(f"\n{sentences(failure, program, url)}")
            await asyncio.sleep(_LOOK_SECONDS)
