"""What the demo records and tells: what was published, what came of it, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from postroad import OutgoingMessage
from postroad.dashboard import Chrome, render
from postroad.settings import Settings
from postroad.up.demo.database import Check, DemoDatabase
from postroad.up.demo.stage import Stage
from postroad.up.demo.story import demo_database, prepare, sentences
from postroad.views import DemoFailure, DemoPlayed, DemoShown, SceneShown
from postroad.wiring import connect


@pytest.fixture
def database(tmp_path: Path) -> Iterator[DemoDatabase]:
    with closing(DemoDatabase(tmp_path / "demo.db")) as opened:
        yield opened


def test_an_event_is_handled_once_all_its_effects_are_made(database: DemoDatabase) -> None:
    database.published("bus", "a", effects=2)
    database.effect("bus", "a", "charge")
    half = database.scenes()[0], database.check().lost
    database.effect("bus", "a", "pack", failures=3)

    assert half == (SceneShown("bus", "running", published=1, handled=0, failed=0), 1)
    assert database.scenes()[0] == SceneShown("bus", "running", published=1, handled=1, failed=3)
    assert database.check() == Check(lost=0, duplicated_effects=0, ledger_sum=0)


def test_an_effect_may_be_recorded_before_its_event(database: DemoDatabase) -> None:
    database.effect("agents", "a", "planner")
    database.published("agents", "a")
    database.published("agents", "a")

    assert database.scenes()[3] == SceneShown("agents", "running", published=1, handled=1, failed=0)


def test_what_is_made_twice_or_not_at_all_is_found(database: DemoDatabase) -> None:
    for id in ("a", "b"):
        database.published("bus", id)
    database.effect("bus", "a", "charge")
    database.effect("bus", "a", "charge")
    with database.transaction() as connection:
        connection.execute("INSERT INTO account VALUES ('ann', -5)")

    assert database.check() == Check(lost=1, duplicated_effects=1, ledger_sum=-5)
    assert database.open_events("bus") == ["b"]
    assert database.scenes()[0].handled == 1


def test_only_what_is_handled_is_forgotten(database: DemoDatabase) -> None:
    for id in ("a", "b"):
        database.published("bus", id)
    database.effect("bus", "a", "charge")

    assert database.prune(older_than=0) == 1
    assert database.open_events("bus") == ["b"]
    assert database.scenes()[0] == SceneShown("bus", "running", published=2, handled=1, failed=0)


def test_the_provider_fails_when_its_time_has_come_and_stays_repaired(database: DemoDatabase) -> None:
    states = [database.provider()]
    database.repair_provider()
    database.begin_story(0)
    database.begin_story(1_000)
    states.append(database.provider())
    database.repair_provider()
    states.append(database.provider())
    database.forget_story()
    states.append(database.provider())

    assert states == ["healthy", "failing", "repaired", "healthy"]


def test_a_story_begins_again_unless_something_waits_to_be_repaired(tmp_path: Path) -> None:
    settings = Settings(url=f"sqlite:///{tmp_path}/demo.db")
    with connect(settings.url) as backend, closing(demo_database(settings.url)) as database:
        prepare(backend, settings)
        database.begin_story(0)
        prepare(backend, settings)
        without_dead_letters = database.provider()
        database.begin_story(0)
        backend.queue("demo-push-dlq").send([OutgoingMessage("a push")])
        prepare(backend, settings)

    assert without_dead_letters == "healthy"
    with closing(demo_database(settings.url)) as database:
        assert database.provider() == "failing"


def test_a_scene_that_fails_ends_the_others_and_its_error_is_raised(database: DemoDatabase) -> None:
    ended: list[str] = []

    def fail(stop: object) -> None:
        raise ValueError("the scene is broken")

    with connect("memory://") as backend:
        stage = Stage(backend=backend, database=database, settings=Settings())
        with (
            pytest.raises(ValueError, match="broken"),
            stage.working(lambda stop: ended.append(str(stop.wait())), fail),
        ):
            ended.extend("beat" for _ in stage.beats(1_000))

    assert "True" in ended


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("healthy", "15 seconds"),
        ("failing", "demo repair --url sqlite:///d.db"),
        ("repaired", "queue redrive demo-push-dlq"),
        ("redriven", "nothing was lost"),
    ],
)
def test_each_turn_of_the_story_is_told_with_the_next_step(state: str, says: str) -> None:
    failure = DemoFailure(state=state, queue="demo-push-queue", dead_letters=2)  # type: ignore[arg-type]  # one of them

    assert says in sentences(failure, "postroad", "sqlite:///d.db")


@pytest.mark.parametrize(
    ("state", "scope", "says", "has_form"),
    [
        ("healthy", "admin", "bus, outbox", False),
        ("failing", "operate", "Read why", True),
        ("failing", "read", "Read why", False),
        ("repaired", "admin", "Redrive them", False),
        ("redriven", "admin", "nothing was lost", False),
    ],
)
def test_the_overview_leads_from_the_failure_to_its_repair(state: str, scope: str, says: str, has_form: bool) -> None:
    scenes = [SceneShown(name=name, state="running", published=1, handled=1, failed=0) for name in ("bus", "outbox")]
    failure = DemoFailure(state=state, queue="demo-push-queue", dead_letters=2)  # type: ignore[arg-type]  # one of them

    page = render("demo", Chrome(version="1", scope=scope, csrf="x"), demo=DemoShown(scenes=scenes, failure=failure))

    assert f'data-demo="{state}"' in page
    assert says in page
    assert ('action="/ui/demo/repair"' in page) is has_form


@pytest.mark.parametrize(
    ("change", "ok"),
    [
        ({}, True),
        ({"lost": 1}, False),
        ({"duplicated_effects": 1}, False),
        ({"dead_lettered": 0, "redriven": 0}, False),
        ({"redriven": 2}, False),
    ],
)
def test_a_story_is_well_only_if_nothing_is_lost_and_everything_was_redriven(change: dict[str, int], ok: bool) -> None:
    whole = {"scenes": 5, "published": 9, "handled": 9, "dead_lettered": 3, "redriven": 3, "lost": 0}
    played = DemoPlayed(**{**whole, "duplicated_effects": 0, "ledger_sum": "0", "seconds": 1.0, **change})  # type: ignore[arg-type]  # by name

    assert played.ok is ok
