"""What is written down about a run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import msgspec
from benchmarks.machine import Machine
from benchmarks.report import markdown, write
from benchmarks.results import ROOT, Absent, Results, RowResult, code_hash, merge, read
from benchmarks.rows import MEASURED

MACHINE = Machine("a cpu", 2, 2**33, 3_000, "3.11", "3.54", "6.1")


def a_row(name: str, ratio: float, *, target: float | None = 1.0, code: str = "now") -> RowResult:
    return RowResult(
        name=name,
        what="what <it> does",
        ours="postroad 1",
        peer="peer 2",
        unit="per_second",
        ours_samples=(ratio * 10,),
        peer_samples=(10.0,),
        ratio=ratio,
        ratio_low=ratio,
        ratio_high=ratio,
        target=target,
        met=target is not None and ratio >= target,
        checked=True,
        note="",
        code=code,
    )


def results(*rows: RowResult, absent: tuple[Absent, ...] = ()) -> Results:
    return Results(machine=MACHINE, started_at="2026-01-01T00:00:00+00:00", quick=False, rows=rows, absent=absent)


def test_the_document_has_the_fields_others_read(tmp_path: Path) -> None:
    write(results(a_row("one", 2.0)), tmp_path, code={})

    document = json.loads((tmp_path / "results.json").read_text())

    assert document["format"] == 1
    machine = ["cpu", "cores", "memory", "disk_fsync_per_second", "python", "sqlite", "kernel"]
    assert list(document["machine"]) == machine
    wanted = "name what ours peer unit ours_samples peer_samples ratio ratio_low ratio_high target met checked note"
    assert set(wanted.split()) <= set(document["rows"][0])


def test_every_row_has_a_chart_that_is_well_formed(tmp_path: Path) -> None:
    write(results(a_row("one", 2.0)), tmp_path, code={})

    root = ElementTree.fromstring((tmp_path / "charts" / "one.svg").read_text())

    assert root.tag.endswith("svg")


def test_losses_come_first_and_information_last() -> None:
    merged = merge(None, results(a_row("won", 3.0), a_row("told", 0.1, target=None), a_row("lost", 0.5)))

    assert [row.name for row in merged.rows] == ["lost", "won", "told"]


def test_a_run_of_one_row_keeps_the_others() -> None:
    old = results(a_row("one", 1.0), a_row("two", 1.0))

    merged = merge(old, results(a_row("two", 5.0)))

    assert {row.name: row.ratio for row in merged.rows} == {"one": 1.0, "two": 5.0}


def test_a_row_measured_on_other_code_is_marked_stale() -> None:
    page = markdown(
        results(a_row("fresh", 2.0, code="now"), a_row("old", 2.0, code="before")), code={"fresh": "now", "old": "now"}
    )

    (fresh,) = [line for line in page.splitlines() if line.startswith("| [fresh]")]
    (old,) = [line for line in page.splitlines() if line.startswith("| [old]")]
    assert "stale" in old
    assert "stale" not in fresh


def test_an_absent_peer_is_listed() -> None:
    page = markdown(results(absent=(Absent("one-huey", "huey", "not installed"),)), code={})

    assert "one-huey: huey: not installed" in page


def a_tree(root: Path, *, queues: str = "LIMIT = 1", tasks: str = "", module: str = "", shared: str = "") -> str:
    """Write a small package with benchmarks, and return the name of the code that its module measures."""
    files = {
        "src/postroad/queues/a.py": queues,
        "src/postroad/tasks/b.py": tasks,
        "benchmarks/embedded.py": f"from benchmarks.workload import move\n{module}",
        "benchmarks/workload.py": shared,
    }
    for place, text in files.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    return code_hash("embedded", ("queues",), root)


def test_the_code_of_a_row_has_another_name_when_it_changes(tmp_path: Path) -> None:
    before = a_tree(tmp_path / "0")

    changed = [
        a_tree(tmp_path / "1", queues="LIMIT = 2"),
        a_tree(tmp_path / "2", module="ROUNDS = 7"),
        a_tree(tmp_path / "3", shared="PADDING = 100"),
    ]

    assert len({before, *changed}) == 4


def test_what_a_row_does_not_measure_makes_it_not_stale(tmp_path: Path) -> None:
    before = a_tree(tmp_path / "0")

    other_folder = a_tree(tmp_path / "1", tasks="LIMIT = 2")
    only_words = a_tree(tmp_path / "2", queues='"""A docstring."""\n\nLIMIT  =  1  # a comment\n')

    assert other_folder == only_words == before


def test_the_folders_that_rows_measure_exist() -> None:
    folders = {folder for measured in MEASURED.values() for folder in measured}

    assert {folder for folder in folders if not (ROOT / "src" / "postroad" / folder).is_dir()} == set()


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    written = results(a_row("one", 2.0))

    write(written, tmp_path, code={})

    assert read(tmp_path / "results.json") == written


def test_a_document_that_is_not_ours_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(msgspec.json.encode({"format": "x"}))

    assert read(tmp_path / "results.json") is None
