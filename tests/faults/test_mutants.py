"""The checker finds planted bugs: one of each scenario here, all of them with `make mutants`."""

from __future__ import annotations

import pytest

from postroad.errors import InvalidInput
from postroad.testing.checker import Report
from postroad.testing.checker.report import INVARIANTS
from postroad.testing.mutants import MUTANTS, Mutant, __main__ as command, find_mutant
from postroad.testing.mutants.__main__ import is_caught, main
from postroad.testing.verify.scenario import SCENARIOS

ONE_OF_EACH = (
    "ack-before-handling",
    "unsubscribe-drops-others",
    "inbox-without-consumer",
    "mark-before-publish",
    "heartbeat-overwrites-completed",
    "fan-in-double-start",
    "fanout-key-by-millisecond",
    "read-skips-a-record",
)


def test_mutants_have_names_of_their_own_and_break_known_invariants() -> None:
    assert len(MUTANTS) >= 24
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.invariant for mutant in MUTANTS} <= set(INVARIANTS)
    assert {find_mutant(name).scenario for name in ONE_OF_EACH} == set(SCENARIOS)


def test_an_unknown_mutant_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidInput) as refused:
        find_mutant("no-group-look")

    assert refused.value.nearest == "no-group-lock"


def test_a_mutant_that_escapes_is_named_with_its_invariant_and_is_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(mutant: Mutant, seed: int) -> Report:
        """Another violation in every run, and the mutant's own only if it is not `peek-counts`."""
        report = Report(verdict="violated")
        report.blame("I1" if mutant.name == "peek-counts" else mutant.invariant, None, None, "seen")
        return report

    monkeypatch.setattr(command, "hunt", found)

    assert main([]) == 1

    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(MUTANTS) + 2
    assert said[-2:] == [f"{len(MUTANTS) - 1} of {len(MUTANTS)} mutants were caught", "escaped: peek-counts (I14)"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_mutant_is_caught_by_its_invariant(name: str) -> None:
    assert is_caught(find_mutant(name)), f"{name} escaped: {find_mutant(name).invariant} found nothing"


@pytest.mark.long
@pytest.mark.slow
def test_a_bug_that_only_a_power_cut_shows_is_caught_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synchronous-off"]) == 0

    assert capsys.readouterr().out.endswith("1 of 1 mutants were caught\n")
