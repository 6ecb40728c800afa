"""The catalogue of bad input: each case is refused with its answer, changes nothing, and the system goes on."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.faults.bad_input.builders import BUILDERS
from tests.faults.bad_input.buses import Buses
from tests.faults.bad_input.cases import SURFACES, Case, Surface, cases
from tests.faults.bad_input.databases import InboxSurface, OutboxSurface
from tests.faults.bad_input.others import Notifications, TopologySurface, Webhook
from tests.faults.bad_input.queues import Queues
from tests.faults.bad_input.terminal import Cli, Config
from tests.faults.bad_input.web import Agents, Http
from tests.faults.bad_input.work import JobsSurface, Worker

pytestmark = pytest.mark.slow

CASES = cases()
ANSWERS = ({"status"}, {"exit"}, {"error"}, {"dead_letter", "reason"})
Open = Callable[[str], Surface]


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Open each surface when its first case comes, for all of its cases."""
    folder = tmp_path_factory.mktemp
    makers: dict[str, Callable[[], Surface]] = {
        "http": lambda: Http(folder("http")),
        "agents": lambda: Agents(folder("agents")),
        "cli": lambda: Cli(folder("cli")),
        "config": lambda: Config(folder("config")),
        "queue": Queues,
        "bus": lambda: Buses(folder("bus")),
        "outbox": lambda: OutboxSurface(folder("outbox")),
        "inbox": lambda: InboxSurface(folder("inbox")),
        "worker": Worker,
        "jobs": JobsSurface,
        "topology": TopologySurface,
        "notifications": lambda: Notifications(folder("chat")),
        "webhook": Webhook,
    }
    opened: dict[str, Surface] = {}

    def open(name: str) -> Surface:
        if name not in opened:
            opened[name] = makers[name]()
        return opened[name]

    yield open
    for surface in opened.values():
        surface.close()


@pytest.mark.usefixtures("logs_as_they_were")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_bad_input_is_refused_and_changes_nothing(
    case: Case, surfaces: Open, caplog: pytest.LogCaptureFixture
) -> None:
    surface = surfaces(case.surface)
    given = BUILDERS[case.build]() if case.build else case.input
    before = surface.letters() if "dead_letter" in case.expect else surface.state()

    with caplog.at_level(logging.INFO):
        answer = surface.give(given)

    assert (answer.kind, answer.value) == _expected(case.expect), answer.text
    assert case.says in answer.text
    assert answer.kind != "status" or int(str(answer.value)) < 500
    assert "Traceback (most recent call last)" not in answer.text + caplog.text
    if answer.kind == "dead_letter":
        _check_one_more(before, surface.letters())
    else:
        assert surface.state() == before
    surface.works()


def _expected(expect: dict[str, Any]) -> tuple[str, object]:
    if "dead_letter" in expect:
        return "dead_letter", expect["reason"]
    [(kind, value)] = expect.items()
    return kind, value


def _check_one_more(before: Any, after: Any) -> None:
    """Check that one place holds one letter more, and that nothing else changed."""
    (rest_before, places_before), (rest, places) = before, after
    assert rest == rest_before
    assert places.keys() == places_before.keys()
    grown = [name for name, held in places.items() if held != places_before[name]]
    assert len(grown) == 1, grown
    assert [each for each in places[grown[0]] if each in places_before[grown[0]]] == places_before[grown[0]]
    assert len(places[grown[0]]) == len(places_before[grown[0]]) + 1


def test_the_catalogue_is_complete_and_well_formed() -> None:
    ids = [case.id for case in CASES]
    counts = Counter(case.surface for case in CASES)

    assert len(CASES) >= 120
    assert [each for each, times in Counter(ids).items() if times > 1] == []
    assert [each for each in ids if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each) is None] == []
    assert {surface: counts[surface] for surface in SURFACES if counts[surface] < 4} == {}
    assert set(counts) <= set(SURFACES)
    for case in CASES:
        assert (case.input is None) != (case.build is None), case.id
        assert case.given.endswith("."), case.id
        assert set(case.expect) in ANSWERS, case.id
        assert case.says, case.id


def test_every_builder_is_used_by_a_case() -> None:
    assert {case.build for case in CASES} - {None} == set(BUILDERS)
