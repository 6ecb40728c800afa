"""`postroad up`: one supervisor, one port, one process group."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import sqlite3
import stat
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.up.conftest import StartUp
from tests.up.up import POSTROAD, Up, is_alive, run
from tests.waiting import eventually

from postroad import DomainEvent, QueueSpec, __version__, connect
from postroad.outbox import Outbox

pytestmark = pytest.mark.slow


def test_it_says_where_everything_is_once_it_is_ready(up: Up, tmp_path: Path) -> None:
    ready = up.get("/ready")
    status = up.get("/status").json()

    assert set(up.ready) == {"event", "url", "login_url", "token", "data", "pid", "version", "parts"}
    assert up.ready["event"] == "ready"
    assert up.ready["login_url"] == f"{up.ready['url']}/login#{up.ready['token']}"
    assert (up.ready["pid"], up.ready["data"]) == (up.process.pid, f"{tmp_path}/data.db")
    assert ready.status_code == 200
    assert status["parts"] == up.ready["parts"]
    assert {(part["name"], part["process"], part["state"]) for part in status["parts"]} == {
        ("server", "server", "running"),
        ("hello", "runners", "running"),
        ("dispatcher", "runners", "running"),
        ("housekeeping", "runners", "running"),
        ("agents", "runners", "running"),
        ("notifications", "runners", "running"),
        ("worker", "runners", "running"),
        ("bus", "runners", "running"),
        ("health", "runners", "running"),
    }


def test_sec13_its_files_are_private_and_its_processes_are_one_group_without_secrets(up: Up, tmp_path: Path) -> None:
    up_file = json.loads((tmp_path / "data.db.up").read_text())
    token = (tmp_path / "data.db.token").read_text().strip()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("data.db.*") if path.is_file()}
    command_lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in up.pids()]

    assert up_file == {"pid": up.process.pid, "url": up.ready["url"]}
    assert token == up.ready["token"]
    assert {"data.db.up", "data.db.token", "data.db.secret"} <= set(modes)
    assert set(modes.values()) == {0o600}
    assert {os.getpgid(pid) for pid in up.pids()} == {os.getpgid(up.process.pid)}
    assert not [line for line in command_lines if token.encode() in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything_in_order(up: Up, tmp_path: Path, number: signal.Signals) -> None:
    pids = up.pids()

    code, last = up.stop(number)

    assert (code, last["event"], last["reason"]) == (0, "stopped", number.name)
    assert last["seconds"] >= 0
    assert not [pid for pid in pids if is_alive(pid)]
    assert not (tmp_path / "data.db.up").exists()


def test_a_second_interrupt_stops_at_once(up: Up) -> None:
    pids = up.pids()
    # The server cannot answer the request to stop, so that the second signal surely comes in time.
    server = up.parts()["server"]["pid"]
    os.kill(server, signal.SIGSTOP)

    up.process.send_signal(signal.SIGINT)
    eventually(lambda: not is_alive(up.ready["parts"][1]["pid"]))
    up.process.send_signal(signal.SIGINT)
    up.process.communicate(timeout=120)

    assert up.process.returncode == 130
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize("name", ["server", "housekeeping"])
def test_a_child_that_is_killed_is_started_again_while_the_other_goes_on(up: Up, name: str) -> None:
    before = up.parts()

    os.kill(before[name]["pid"], signal.SIGKILL)
    eventually(lambda: up.parts()[name]["restarts"] == 1 and up.get("/ready").status_code == 200)

    after = up.parts()
    others = [part for part in before if before[part]["process"] != before[name]["process"]]
    assert after[name]["pid"] != before[name]["pid"]
    assert after[name]["state"] == "running"
    assert [after[part] for part in others] == [before[part] for part in others]


@pytest.mark.long
def test_a_part_that_dies_again_and_again_is_failed_and_said_to_be(up: Up) -> None:
    def kill_again() -> bool:
        part = up.parts()["housekeeping"]
        if part["state"] == "running":
            os.kill(part["pid"], signal.SIGKILL)
        return bool(part["state"] == "failed")

    eventually(kill_again)

    ready = up.get("/ready")
    assert ready.status_code == 503
    assert "housekeeping is failed" in ready.json()["checks"]["runners"]
    assert up.get("/health").status_code == 200
    assert up.parts()["server"]["restarts"] == 0
    assert up.stop()[0] == 0


def test_a_part_that_never_runs_ends_the_start_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import postroad.up.hello\n\n\ndef fail(backend):\n    raise RuntimeError('broken')\n\n\n"
        "postroad.up.hello.hello_bus = fail\n"
    )

    answer = run(tmp_path, "--port", "0", "--load", "broken")

    assert answer.returncode == 3
    assert "hello does not start" in answer.stderr


def test_nobody_is_left_when_the_supervisor_is_killed_and_the_next_one_starts(start_up: StartUp) -> None:
    first = start_up()
    pids = first.pids()

    first.process.kill()
    first.process.communicate(timeout=120)
    eventually(lambda: not [pid for pid in pids if is_alive(pid)])
    second = start_up()

    assert second.get("/health").status_code == 200
    assert second.ready["token"] == first.ready["token"]


def test_a_second_one_on_the_same_data_names_the_first(up: Up, tmp_path: Path) -> None:
    second = run(tmp_path, "--port", "0")

    assert second.returncode == 3
    assert str(up.process.pid) in second.stderr
    assert up.ready["url"] in second.stderr
    assert up.get("/health").status_code == 200


def test_a_taken_port_is_named_with_the_flag_that_helps(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        answer = run(tmp_path, "--port", str(port))

    assert answer.returncode == 3
    assert str(port) in answer.stderr
    assert "--port" in answer.stderr
    assert not (tmp_path / "data.db.up").exists()


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, "token"),
        ({"POSTROAD_TOKEN": "short", "POSTROAD_ALLOWED_HOSTS": "mine.example"}, "token"),
        ({"POSTROAD_TOKEN": "x" * 32}, "allowed_hosts"),
    ],
)
def test_sec07_it_listens_beyond_loopback_only_with_a_strong_token_and_named_hosts(
    tmp_path: Path, env: dict[str, str], says: str
) -> None:
    answer = run(tmp_path, "--host", "0.0.0.0", "--port", "0", **env)

    assert answer.returncode == 2
    assert says in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_token_of_the_operator_is_the_admins(start_up: StartUp, tmp_path: Path) -> None:
    up = start_up(POSTROAD_TOKEN="of-the-operator-" + "x" * 20)

    assert up.ready["token"].startswith("of-the-operator-")
    assert up.get("/tokens").status_code == 200
    assert not (tmp_path / "data.db.token").exists()


@pytest.mark.parametrize("url", ["sqlite:////etc", "foo://x"])
def test_data_that_cannot_be_opened_is_refused_before_anything_listens(tmp_path: Path, url: str) -> None:
    answer = run(tmp_path, "--port", "0", "--url", url)

    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_data_is_refused_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "data.db").write_text("a letter to somebody\n" * 100)

    answer = run(tmp_path, "--port", "0")

    assert answer.returncode == 2
    assert "data.db" in answer.stderr
    assert (tmp_path / "data.db").read_text() == "a letter to somebody\n" * 100


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "ModuleNotFoundError: No module named 'wrong'"),
        ("import os\n\nurl = os.environ['NOT_SET_ANYWHERE']\n", "KeyError: 'NOT_SET_ANYWHERE' [wrong.py, line 3]"),
        ("print('half', end='')\ndef f(:\n", "SyntaxError: invalid syntax (wrong.py, line 2)"),
        ("print('bye', end='')\nraise SystemExit(3)\n", "SystemExit: 3 [wrong.py, line 2]"),
    ],
    ids=["missing", "failing", "no Python", "exiting"],
)
def test_a_module_that_cannot_be_loaded_ends_it_before_anything_is_started(
    tmp_path: Path, code: str | None, said: str
) -> None:
    if code is not None:
        (tmp_path / "wrong.py").write_text(code)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        # If it tried to listen, it would end with another error.
        answer = run(tmp_path, "--port", str(other.getsockname()[1]), "--load", "wrong")

    assert answer.returncode == 2
    assert answer.stderr.splitlines()[0] == f"error: load: 'wrong' cannot be imported: {said}"
    assert not list(tmp_path.glob("data.db*"))


def test_a_module_of_the_working_directory_is_loaded_and_its_output_is_log(start_up: StartUp, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('loaded in', __name__)\n")

    up = start_up("--load", "mine")

    assert up.stop()[0] == 0
    assert (tmp_path / "log").read_text().count("loaded in mine") == 2


def start_for_people(folder: Path, *flags: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start one without --json, and read the six lines that it prints when it is ready."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*POSTROAD, "up", "--port", "0", *flags], stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
        )
    assert process.stdout is not None
    return process, [process.stdout.readline().rstrip() for _ in range(6)]


@pytest.mark.parametrize("file", [None, "data.db"], ids=["default", "url"])
def test_people_are_told_what_to_try_and_that_works(tmp_path: Path, file: str | None) -> None:
    flags = () if file is None else ("--url", f"sqlite:///{tmp_path}/{file}")
    process, lines = start_for_people(tmp_path, *flags)
    try:
        shell = ["/bin/sh", "-c", lines[4].removeprefix("try: ")]
        tried = subprocess.run(shell, capture_output=True, text=True, cwd=tmp_path, check=False)
        event_id = json.loads(tried.stdout)["event_id"]
        eventually(lambda: verdict(tmp_path, event_id, *flags) == "handled")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)

    url = lines[2].removeprefix("API  ").removesuffix("/schema")
    assert lines[0] == f"Postroad {__version__}"
    assert re.fullmatch(rf"dashboard  {re.escape(url)}/login#pr_[\w-]+", lines[1])
    assert lines[3] == f"data  {tmp_path}/{file or 'postroad.db'}"
    command = """postroad bus publish hello postroad.hello '{"name": "world"}'"""
    assert lines[4].endswith(command if file is None else f"{command} {' '.join(flags)}")
    assert lines[5] == "stop: Ctrl-C"
    assert (tried.returncode, tried.stderr, process.returncode) == (0, "", 0)
    assert "hello_handled" in (tmp_path / "log").read_text()


def test_sec13_a_token_that_the_operator_set_is_not_printed_into_the_log_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_TOKEN", "of-the-operator-" + "x" * 20)

    process, lines = start_for_people(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)

    assert lines[1] == f"dashboard  {lines[2].removeprefix('API  ').removesuffix('/schema')}/login"


def verdict(folder: Path, event_id: str, *flags: str) -> str | None:
    """Ask what became of an event."""
    asked = subprocess.run(
        [*POSTROAD, "why", event_id, "--json", *flags], capture_output=True, text=True, cwd=folder, check=False
    )
    return json.loads(asked.stdout)["verdict"] if asked.returncode == 0 else None


def test_on_a_terminal_nothing_of_the_log_comes_before_what_people_look_for(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    command = [*POSTROAD, "up", "--port", "0", "--no-color"]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=tmp_path)
    os.close(theirs)
    written = ""
    while "stop: Ctrl-C" not in written:
        written += os.read(terminal, 65_536).decode()
    process.send_signal(signal.SIGTERM)
    with suppress(OSError):  # that is how a pseudo-terminal ends
        while chunk := os.read(terminal, 65_536):
            written += chunk.decode()
    process.wait(timeout=120)
    os.close(terminal)

    before, after = written.split("stop: Ctrl-C")
    assert (
        next(line for line in before.splitlines() if not line.startswith("starting on ")) == f"Postroad {__version__}"
    )
    assert "[info" not in before
    assert "stopped" in after


def test_an_outbox_that_is_configured_is_dispatched(start_up: StartUp, tmp_path: Path) -> None:
    application = tmp_path / "shop.db"
    with Outbox.sqlite(application) as outbox, connect(f"sqlite:///{tmp_path}/data.db") as backend:
        outbox.init()
        queue = backend.create_queue(QueueSpec("shipping"))
        backend.topic("orders").subscribe(queue)
        up = start_up(POSTROAD_OUTBOX_DSN=f"sqlite:///{application}", POSTROAD_OUTBOX_TOPIC="orders")

        with closing(sqlite3.connect(application)) as connection, connection:
            connection.execute("BEGIN")
            outbox.add(connection, DomainEvent("orders.placed", key={"orderId": "A-1"}, payload={"amount": 25}))
        [delivery] = queue.receive(wait=20)

    assert json.loads(delivery.body)["payload"] == {"amount": 25}
    assert up.parts()["dispatcher"]["state"] == "running"


def test_a_request_cut_off_by_a_killed_server_is_repeated_with_one_effect(start_up: StartUp, tmp_path: Path) -> None:
    # Every life of the server ends at its third answer, after the effect and before the reply; probes do not count.
    up = start_up(POSTROAD_FAILPOINTS="http.before_reply=kill9#3")
    for _ in range(5):
        assert up.get("/ready").status_code == 200
    client = httpx.Client(
        base_url=up.ready["url"], headers={"Authorization": f"Bearer {up.ready['token']}"}, timeout=20, verify=False
    )

    def repeat(method: str, path: str, **given: Any) -> httpx.Response:
        answers: list[httpx.Response] = []

        def ask() -> bool:
            answers.append(client.request(method, path, **given))
            return True

        eventually(ask)
        return answers[0]

    with client:
        repeat("PUT", "/queues/orders", json={})
        for number in range(4):
            answer = repeat(
                *("POST", "/queues/orders/messages"),
                json={"messages": [{"body": str(number)}]},
                headers={"Idempotency-Key": f"k{number}"},
            )
            assert answer.status_code == 200
        held = repeat("GET", "/queues/orders/messages?payload=1").json()["items"]

    assert [message["body"] for message in held] == ["0", "1", "2", "3"]
    assert (tmp_path / "log").read_text().count("part_stopped") == 2


@pytest.mark.parametrize("flags", [(), ("--url", "memory://")], ids=["file", "memory"])
def test_an_event_of_an_agent_reaches_another_one(start_up: StartUp, flags: tuple[str, ...]) -> None:
    up = start_up(*flags)
    with httpx.Client(base_url=up.ready["url"], timeout=30) as client:
        admin = {"Authorization": f"Bearer {up.ready['token']}"}
        tokens = {
            name: client.post("/agents", json={"agentId": name, "accept": "all"}, headers=admin).json()["token"]
            for name in ("ann", "bob")
        }
        ann, bob = ({"Authorization": f"Bearer {tokens[name]}"} for name in ("ann", "bob"))
        client.put("/agents/bob/subscriptions/ann", headers=bob)

        client.post("/events", json={"eventType": "placed", "data": {"n": 1}}, headers=ann)
        leased = client.post("/agents/bob/leases", json={"wait": 20}, headers=bob).json()["deliveries"]
    code, _ = up.stop()

    assert [each["data"] for each in leased] == [{"n": 1}]
    assert code == 0
