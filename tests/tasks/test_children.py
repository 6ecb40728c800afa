"""Children: what surrounds them, how they end, and that nothing of them lives on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tasks.benches import CHORES, Bench, is_alive, lines, ours, working
from tests.waiting import eventually

from postroad import Backend
from postroad.tasks import runner
from postroad.tasks.pool import ChildPool, ChildSlot
from postroad.tasks.processes import RESULT, Active, Frames, FrameTooLong, Order, PeerGone, Ready, Report, frame
from postroad.tasks.registry import TaskRegistry
from postroad.tasks.verdicts import Completed, Failed, Halted, TimedOut, Verdict, verdict_of
from postroad.tasks.worker import for_children

pytestmark = pytest.mark.slow


@contextmanager
def pool(
    registry: TaskRegistry | None = None, *, child_reuse: int = 1, max_output_bytes: int = 100_000
) -> Iterator[ChildPool]:
    made = ChildPool(
        (registry or TaskRegistry()).definitions(),
        imports=CHORES,
        environment=for_children((), os.environ),
        child_reuse=child_reuse,
        max_output_bytes=max_output_bytes,
    )
    made.start()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[ChildPool]:
    with pool() as made:
        yield made


@pytest.fixture
def slot(shared: ChildPool) -> Iterator[ChildSlot]:
    taken = shared.slot()
    yield taken
    taken.close()


def order(name: str, input: dict[str, Any] | None = None, *, timeout: float = 20.0, **more: Any) -> Order:
    document = msgspec.json.encode({"input": input or {}})
    return Order(
        name=name,
        request_id="r1",
        tenant_id="acme",
        run=1,
        attempt=1,
        token=7,
        document=document,
        timeout=timeout,
        kill_grace=0.3,
        deadline=time.time() + timeout,
        **more,
    )


def ready(slot: ChildSlot) -> int:
    while not isinstance(received := slot.receive(20), Ready):
        assert received is not None
    return received.pid


def report(slot: ChildSlot) -> Report:
    while not isinstance(received := slot.receive(20), Report):
        assert isinstance(received, Active)
    return received


def run(slot: ChildSlot, name: str, input: dict[str, Any] | None = None, **more: Any) -> Report:
    ready(slot)
    slot.order(order(name, input, **more))
    return report(slot)


def output(found: Report) -> Any:
    assert found.reply[:1] == RESULT, found
    return msgspec.json.decode(found.reply[1:])["output"]


def verdict(slot: ChildSlot, name: str, input: dict[str, Any] | None = None, **more: Any) -> Verdict:
    return verdict_of(run(slot, name, input, **more), is_command=False)


def crash(found: Verdict) -> dict[str, Any]:
    assert isinstance(found, Failed)
    assert (found.category, found.retryable) == ("crash", True)
    assert found.crash is not None
    return found.crash


def test_sec14_a_child_has_its_own_session_directory_pipes_and_limits(
    slot: ChildSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = output(run(slot, "show-surroundings", {"secret": "in the input"}))

    assert shown["leads_session"] is True
    assert shown["directory"] != str(Path.cwd())
    assert not Path(shown["directory"]).exists()
    assert shown["descriptors"]["0"] == "/dev/null"
    assert all(shown["descriptors"][name].startswith("pipe:") for name in "1234")
    assert shown["open"] == 5
    assert shown["no_new_privs"] == "1"
    assert shown["limits"] == {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024}
    assert shown["threads"] == 1
    assert "secret" not in shown["arguments"]


def test_sec14_a_child_sees_few_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_SECRET_ACCESS_KEY": "s", "POSTROAD_URL": "u", "LC_TIME": "C", "TZ": "UTC"}.items():
        monkeypatch.setenv(name, value)

    with pool() as made:
        taken = made.slot()
        shown = output(run(taken, "show-surroundings"))
        taken.close()

    environment = shown["environment"]
    allowed = {
        *("PATH", "HOME", "USER", "SHELL", "TMPDIR", "PWD", "LANG", "TZ", "TERM", "COLORTERM", "FORCE_COLOR"),
        *("PYTHONPATH", "LC_TIME", "LC_CTYPE", "LC_ALL", *(f"POSTROAD_TASK_{x}" for x in ("ID", "RUN", "ATTEMPT"))),
        "POSTROAD_TASK_TOKEN",
        *(name for name in environment if name.upper().endswith("_PROXY") or "_CA_" in name or "SSL_CERT" in name),
    }
    assert environment.keys() <= allowed
    assert (environment["LC_TIME"], environment["TZ"]) == ("C", "UTC")
    assert (environment["POSTROAD_TASK_ID"], environment["POSTROAD_TASK_TOKEN"]) == ("r1", "7")
    assert "AWS_SECRET" not in shown["initial_environment"]
    assert "POSTROAD_URL" not in shown["initial_environment"]


def test_a_variable_that_a_task_asks_for_is_seen_by_that_task_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_TEST_SECRET", "hush")
    asked, other = bench.producer.submit("see-variable"), bench.producer.submit("see-no-variable")

    bench.work()

    assert bench.state(asked.request_id).output == "hush"
    assert bench.state(other.request_id).output is None


def test_sec14_the_address_space_is_limited_where_a_task_asks_for_it(slot: ChildSlot) -> None:
    assert output(run(slot, "limited")) == 2_000_000_000


def test_each_task_has_a_process_of_its_own(slot: ChildSlot) -> None:
    first, second = output(run(slot, "count-up")), output(run(slot, "count-up"))

    assert first["pid"] != second["pid"]
    assert (first["count"], second["count"]) == (1, 1)


def test_a_fresh_task_gets_a_new_interpreter(slot: ChildSlot) -> None:
    shown = output(run(slot, "count-up-freshly"))

    assert shown["parent_modules"] is False
    assert shown["variable"] == "r1"


def test_a_child_may_be_kept_for_several_successful_tasks() -> None:
    with pool(child_reuse=3) as made:
        slot = made.slot()
        shown = [output(run(slot, "count-up")) for _ in range(4)]
        failed = run(slot, "fail-with", {"type": "ValueError"})
        after = output(run(slot, "count-up"))
        slot.close()

    assert [one["count"] for one in shown] == [1, 2, 3, 1]
    assert len({one["pid"] for one in shown}) == 2
    assert failed.pid == shown[3]["pid"]
    assert after["count"] == 1


def test_a_child_that_is_kept_gets_a_new_directory_only_if_it_touched_its_old_one() -> None:
    with pool(child_reuse=5) as made:
        slot = made.slot()
        shown = [output(run(slot, "use-directory", {"write": write})) for write in (False, False, True, False)]
        slot.close()

    directories = [one["directory"] for one in shown]
    assert len(set(directories[:3])) == 1
    assert directories[3] != directories[2]
    assert [one["found"] for one in shown] == [[], [], [], []]


def test_a_child_that_left_its_directory_is_back_in_it_for_the_next_task() -> None:
    with pool(child_reuse=5) as made:
        slot = made.slot()
        first, second = (output(run(slot, "use-directory", {"leave": True})) for _ in range(2))
        slot.close()

    assert first == second


def test_a_child_that_outgrew_the_limit_of_another_task_is_not_kept() -> None:
    with pool(child_reuse=5) as made:
        slot = made.slot()
        grown = output(run(slot, "hold-memory"))
        after = output(run(slot, "count-up"))
        kept = output(run(slot, "count-up"))
        slot.close()

    assert grown != after["pid"] == kept["pid"]
    assert not is_alive(grown)


def test_the_result_of_a_lasting_childs_last_task_counts_only_with_a_clean_exit() -> None:
    with pool(child_reuse=2) as made:
        slot = made.slot()
        first, second = run(slot, "echo"), verdict(slot, "spoil-the-end")
        slot.close()

    assert first.exit_code == 0
    assert second == Failed("exit code 1 after the result", "unknown", False)


def test_a_segfault_is_told_with_the_last_words_and_the_stack(slot: ChildSlot) -> None:
    found = crash(verdict(slot, "segfault"))

    assert (found["cause"], found["signal"]) == ("segv", "SIGSEGV")
    assert found["peakRssBytes"] > 1_000_000
    assert found["lastLines"][0] == "the last words"
    assert any("in segfault" in line for line in found["lastLines"])
    assert len(found["lastLines"]) <= 20
    assert found["lastActivity"]["stepName"] == "colour-tags"


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT", "SIGTERM"])
def test_a_signal_that_is_not_ours_is_a_crash(name: str, slot: ChildSlot) -> None:
    found = crash(verdict(slot, "kill-oneself", {"signal": name}))

    assert (found["cause"], found["signal"]) == ("signal", name)


def test_a_child_without_memory_is_a_crash_for_want_of_memory(slot: ChildSlot) -> None:
    found = crash(verdict(slot, "eat-memory"))

    assert (found["cause"], found["exitCode"]) == ("oom", 1)


@pytest.mark.parametrize("name", ["exit-silently", "leave"])
@pytest.mark.parametrize("code", [0, 3])
def test_an_end_without_a_result_is_a_crash(name: str, code: int, slot: ChildSlot) -> None:
    found = crash(verdict(slot, name, {"code": code}))

    assert (found["cause"], found["exitCode"]) == ("no-result", code)


def test_a_result_before_a_bad_exit_is_dropped(slot: ChildSlot) -> None:
    assert verdict(slot, "spoil-the-end") == Failed("exit code 1 after the result", "unknown", False)


def test_a_last_word_that_cannot_be_read_is_a_crash(slot: ChildSlot) -> None:
    assert crash(verdict(slot, "speak-out-of-turn"))["cause"] == "no-result"


@pytest.mark.parametrize(("then", "cause"), [("segfault", "segv"), ("announce", "no-result")])
def test_what_is_no_word_of_a_child_is_dropped(then: str, cause: str, slot: ChildSlot) -> None:
    found = crash(verdict(slot, "speak-nonsense", {"then": then}))

    assert found["cause"] == cause
    assert found["lastActivity"] is None
    assert set(found) == {"cause", "signal", "exitCode", "peakRssBytes", "lastLines", "lastActivity"}


def test_nothing_behind_a_frame_that_is_too_long_is_a_frame() -> None:
    frames = Frames(limit=100)

    assert frames.feed(frame(b"one")) == [b"one"]
    with pytest.raises(FrameTooLong):
        frames.feed(b"\xff\xff\xff\xf0")
    assert frames.feed(frame(b"two")) == []


def test_sec14_a_flood_of_binary_output_and_closed_pipes_block_nobody(slot: ChildSlot) -> None:
    found = run(slot, "flood")

    assert output(found) == "flooded"
    assert all(line.isprintable() and len(line) <= 500 for line in found.last_lines)


def test_a_child_may_use_processes_of_its_own(slot: ChildSlot) -> None:
    assert output(run(slot, "use-processes")) == [1, 2]


def test_a_child_that_takes_too_long_is_ended_politely(slot: ChildSlot, tmp_path: Path) -> None:
    found = run(slot, "sleep", {"notes": str(tmp_path / "notes")}, timeout=0.3)

    assert verdict_of(found, is_command=False) == TimedOut("SIGTERM")
    assert found.elapsed_ms >= 300


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(slot: ChildSlot, tmp_path: Path) -> None:
    found = run(slot, "ignore-sigterm", {"notes": str(tmp_path / "notes")}, timeout=0.3)

    assert verdict_of(found, is_command=False) == TimedOut("SIGKILL")
    assert found.elapsed_ms >= 600


def test_a_halt_ends_the_child(slot: ChildSlot, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    ready(slot)
    slot.order(order("sleep", {"notes": str(notes)}))
    eventually(lambda: lines(notes))

    slot.halt(0.0)

    assert verdict_of(report(slot), is_command=False) == Halted()
    assert not is_alive(int(lines(notes)[0]))


def test_a_halt_that_comes_too_late_does_not_trouble_the_next_task(slot: ChildSlot) -> None:
    run(slot, "echo")
    slot.halt(0.0)

    assert isinstance(verdict(slot, "echo"), Completed)


@pytest.mark.parametrize("ending", ["return", "hang", "segfault"])
def test_sec14_all_descendants_die_with_the_child_wherever_they_went(
    ending: str, slot: ChildSlot, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"

    run(slot, "leave-grandchildren", {"notes": str(notes), "then": ending}, timeout=1.0 if ending == "hang" else 20.0)

    assert len(lines(notes)) == 3
    assert [pid for pid in map(int, lines(notes)) if is_alive(pid)] == []


def test_a_child_that_dies_while_it_waits_is_replaced(slot: ChildSlot) -> None:
    first = ready(slot)

    os.kill(first, 9)
    second = ready(slot)

    assert second != first
    slot.order(order("echo"))
    assert output(report(slot)) == {}


def test_a_child_that_kills_its_keeper_dies_with_all_its_descendants(shared: ChildPool, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    slot = shared.slot()
    ready(slot)
    slot.order(order("kill-ones-monitor", {"notes": str(notes)}))

    with pytest.raises(PeerGone):
        report(slot)
    slot.close()

    eventually(lambda: lines(notes) and not is_alive(int(lines(notes)[0])))
    other = shared.slot()
    assert output(run(other, "echo")) == {}
    other.close()


def test_a_closed_seat_ends_what_runs_there(shared: ChildPool, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    slot = shared.slot()
    ready(slot)
    slot.order(order("leave-grandchildren", {"notes": str(notes), "then": "hang"}))
    eventually(lambda: len(lines(notes)) == 3)

    slot.close()

    eventually(lambda: not any(is_alive(int(pid)) for pid in lines(notes)))


def test_nothing_is_left_of_a_closed_nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = ours(os.getpid())
    with pool() as made:
        slot = made.slot()
        run(slot, "leave-grandchildren", {"notes": str(tmp_path / "notes")})
        processes = set(ours(os.getpid())) - set(before)
        slot.close()

    eventually(lambda: not any(is_alive(pid) for pid in processes))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_keeper_that_hangs_is_killed_with_its_child(
    on_sqlite: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MONITOR_SECONDS", 0.3)
    notes, bench = tmp_path / "notes", Bench(on_sqlite)

    with working(bench, kill_grace=0.1):
        state = bench.ended("stop-ones-monitor", {"notes": str(notes)}, timeout=0.3)

    assert (state.state, state.attempt, state.output) == ("completed", 2, "alive")
    assert bench.last(state.request_id, "Task Processing Failed").properties["errorCategory"] == "crash"
    eventually(lambda: not any(is_alive(int(pid)) for pid in lines(notes)))


def test_a_machine_that_starts_no_processes_does_not_use_up_the_receives(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)
    handle = bench.producer.submit("never-born")
    queue = on_sqlite.queue("tasks")

    with working(bench, imports=("tests.tasks.barren",)):
        eventually(lambda: queue.stats().delayed == 1)

    assert queue.peek()[0].receive_count == 1
    assert bench.types(handle.request_id) == ["Task Pending"]


def test_siblings_are_not_troubled_by_a_child_that_crashes(bench: Bench, tmp_path: Path) -> None:
    notes, go = tmp_path / "notes", tmp_path / "go"
    steady = [bench.producer.submit("wait-for-file", {"notes": str(notes), "until": str(go)}) for _ in range(2)]
    worker = bench.worker(concurrency=3, max_attempts=2)
    running = threading.Thread(target=lambda: worker.run(until_idle=True))
    running.start()
    eventually(lambda: len(lines(notes)) == 2)

    bad = [
        bench.producer.submit(name, input)
        for name, input in (
            ("segfault", {}),
            ("eat-memory", {}),
            ("flood", {}),
            ("kill-ones-monitor", {"notes": str(tmp_path / "daemons")}),
            ("leave-grandchildren", {"notes": str(tmp_path / "daemons"), "then": "segfault"}),
        )
    ]
    eventually(lambda: bench.state(bad[-1].request_id).attempt == 2)
    go.touch()
    running.join()
    bench.bury()

    assert [bench.state(one.request_id).state for one in steady] == ["completed"] * 2
    assert len(lines(notes)) == 2
    assert [bench.state(one.request_id).state for one in bad] == [
        "failed",
        "failed",
        "completed",
        "completed",
        "failed",
    ]
    assert [bench.state(one.request_id).attempt for one in bad] == [2, 2, 1, 2, 2]
    assert not any(is_alive(int(pid)) for pid in lines(tmp_path / "daemons"))


def test_proxies_and_certificates_are_passed_without_being_named() -> None:
    found = for_children((), {"https_proxy": "http://proxy:3128", "SSL_CERT_FILE": "/ca.pem", "SHOP_KEY": "k"})

    assert found == {"https_proxy": "http://proxy:3128", "SSL_CERT_FILE": "/ca.pem"}


def test_a_star_passes_every_variable_that_begins_so() -> None:
    env = {"SHOP_KEY": "k", "SHOP_": "", "SHOPPING": "no", "DATABASE_URL": "d", "LC_TIME": "C"}

    assert for_children(("SHOP_*", "DATABASE_URL"), env) == {name: env[name] for name in env if name != "SHOPPING"}


def test_the_copy_of_a_task_that_forks_does_not_reply(bench: Bench) -> None:
    state = bench.run_one("fork")

    assert (state.state, state.output) == ("completed", "the child")


def test_a_task_that_asks_for_it_opens_the_store_of_its_worker(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)

    state = bench.run_one("submit-another", {"from": "a task"})

    assert bench.state(state.output).output == {"from": "a task"}


def test_a_store_that_would_vanish_with_the_directory_of_a_task_is_refused(bench: Bench) -> None:
    state = bench.run_one("make-a-store")

    assert state.state == "failed"
    assert "shop.db would be lost" in str(state.error)
