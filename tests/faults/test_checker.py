"""The checker finds in each forged history exactly what was forged."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.faults.forging import RUN, cases, forge, write

from postroad.cli.app import run
from postroad.errors import InvalidInput
from postroad.testing.checker import INVARIANTS, Report, check, write_report

CASES = cases()
NOTHING_OF = ("engine", "queues", "topics", "streams", "bus", "outbox", "inbox", "connections", "receiving", "wiring")
DRIVERS = ("apsw", "sqlite3", "boto3", "psycopg", "asyncpg", "pytest")


@pytest.mark.parametrize("name", CASES)
def test_a_forged_history_trips_what_it_says_and_nothing_else(name: str, tmp_path: Path) -> None:
    case = CASES[name]

    report = check(forge(case, tmp_path / "report"))

    assert sorted({finding.invariant for finding in report.findings}) == sorted(case["trips"]), report.findings
    assert report.verdict == case["verdict"], report.reasons
    assert {name for name, number in report.violations.items() if number} == {
        INVARIANTS[each] for each in case["trips"]
    }
    assert bool(report.reasons) == (case["verdict"] == "inconclusive" or not case.get("run", RUN).get("drained", True))


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_every_invariant_has_a_history_that_trips_only_it(invariant: str) -> None:
    assert any(case["trips"] == [invariant] for case in CASES.values())


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("I")])
def test_a_case_is_named_after_what_it_trips(name: str) -> None:
    assert f"I{int(name[1:3])}" in CASES[name]["trips"]


def test_the_checker_imports_nothing_of_the_system_under_test() -> None:
    code = "import sys, postroad.testing.checker; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    ours = {name for name in loaded if name.startswith("postroad")}
    assert {name for name in ours if name.split(".")[1:2] and name.split(".")[1] in NOTHING_OF} == set()
    assert set(DRIVERS) & set(loaded) == set()
    assert {name for name in ours if not name.startswith("postroad.testing.checker")} <= {
        "postroad",
        "postroad.lazy",
        "postroad.testing",
        "postroad.errors",
        *(f"postroad.errors.{each}" for each in ("retries", "root", "stores", "work")),
    }


def test_the_counts_are_those_of_the_history(tmp_path: Path) -> None:
    counts = check(forge(CASES["clean"], tmp_path / "clean")).counts
    broken = check(forge(CASES["clean-killed-before-each-ack"], tmp_path / "kills")).counts
    unknown = check(forge(CASES["clean-unknown-op"], tmp_path / "unknown")).counts
    tried = check(forge(CASES["clean-unknown-publish"], tmp_path / "tried")).counts

    assert (counts.messages, counts.publishes_ok, counts.deliveries, counts.effects) == (3, 3, 3, 3)
    assert (counts.redeliveries, counts.publishes_unknown, counts.unknown_ops) == (0, 0, 0)
    assert (broken.deliveries, broken.redeliveries, broken.kills, broken.dead_letters) == (2, 1, 3, 1)
    assert unknown.unknown_ops == 1
    assert (tried.publishes_ok, tried.publishes_unknown, tried.publishes_failed) == (1, 2, 0)


@pytest.mark.parametrize("name", ["clean-lease-expired", "clean-peeked-before-received"])
def test_a_delayed_message_counts_for_the_recovery_from_its_first_receive_on(name: str, tmp_path: Path) -> None:
    recovery = check(forge(CASES[name], tmp_path / "report")).recovery_seconds

    assert (recovery.max, recovery.p99) == (30.0, 30.0)


def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path) -> None:
    report = check(forge(CASES["inconclusive-broken-line"], tmp_path / "report"))

    assert report.reasons[0].startswith("consumer.jsonl line 1: ")


def test_all_violations_are_counted_but_only_a_hundred_are_kept(tmp_path: Path) -> None:
    lines: Any = [{"t": n, "p": "p", "op": "publish", "topic": "orders", "id": n, "sha": "x"} for n in range(250)]
    write(tmp_path / "report", RUN, {"p": lines})

    report = check(tmp_path / "report")

    assert (report.violations["lost"], len(report.findings)) == (250, 100)


def test_more_files_than_may_be_open_are_read_in_order_of_time(tmp_path: Path) -> None:
    def life(n: int) -> Iterator[dict[str, Any]]:
        which = {"id": n, "sha": "x", "key": "k"}
        yield {"t": n, "op": "publish", "topic": "orders", **which}
        yield {"t": n + 0.1, "op": "receive", "sub": "mail", "receive_count": 1, "receipt": n, **which}
        yield {"t": n + 0.2, "op": "handled", "sub": "mail", "id": n}
        yield {"t": n + 0.3, "op": "ack", "sub": "mail", "id": n, "receipt": n}

    processes: Any = {f"p{n}": [{"p": f"p{n}", **line} for line in life(n)] for n in range(300)}
    write(tmp_path / "report", RUN, processes)
    code = (
        "import resource, sys, pathlib; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "from postroad.testing.checker import check; print(check(pathlib.Path(sys.argv[1])).verdict)"
    )

    done = subprocess.run([sys.executable, "-c", code, tmp_path / "report"], capture_output=True, text=True)

    assert done.stdout == "ok\n", done.stderr


def test_a_directory_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "run.json").write_text('{"format": 2}')
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_text("[]")

    for directory, said in (
        ("missing", "no directory"),
        (".", "no run.json"),
        ("newer", "newer version"),
        ("odd", "cannot be read"),
    ):
        with pytest.raises(InvalidInput, match=said):
            check(tmp_path / directory)


def test_the_report_is_written_for_programs_and_people_and_only_for_its_owner(tmp_path: Path) -> None:
    report = check(forge(CASES["I01-lost"], tmp_path / "report"))

    write_report(report, tmp_path / "out")

    stored = tmp_path / "out" / "report.json"
    assert msgspec.json.decode(stored.read_bytes(), type=Report) == report
    assert "I1 lost" in (tmp_path / "out" / "report.md").read_text()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (stored, stored.parent)] == [0o600, 0o700]


@pytest.mark.parametrize(
    ("case", "code"), [("clean", 0), ("I01-lost", 1), ("inconclusive-undrained", 1), ("clean-cut-line", 0)]
)
def test_the_command_exits_with_0_only_for_ok(
    case: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = forge(CASES[case], tmp_path / "report")

    assert run(["verify", "check", str(directory), "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert run(["verify", "check", str(directory)]) == code
    printed = capsys.readouterr().out

    assert document["verdict"] == CASES[case]["verdict"]
    assert set(document["violations"]) == set(INVARIANTS.values())
    assert [line.rsplit(maxsplit=1)[0] for line in printed.splitlines()[1:13]] == [
        *("messages", "deliveries", "kills", "pauses", "restarts", "proxy faults", "lost", "phantom", "corrupt"),
        *("duplicated effects", "order violations", "stuck"),
    ]
    assert printed.splitlines()[-1].startswith(f"{document['verdict']}, seed 7, report {directory}")


@pytest.mark.parametrize("content", [None, "", '{"format": 2}', '{"format": "x"}', "{"])
def test_the_command_exits_with_2_for_what_is_no_report(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)

    assert run(["verify", "check", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
    assert run(["verify", "check", str(tmp_path / "missing")]) == 2
