"""Several processes on one file: kills, forks and wake-ups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.errors import ConfigurationError

pytestmark = pytest.mark.slow

SENDER = r"""
import sys, postroad
backend = postroad.connect(sys.argv[1])
queue = backend.queue("jobs")
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    (result,) = queue.send([postroad.OutgoingMessage(str(n))])
    assert result.ok
    print(f"{n}\n", end="", flush=True)
"""
RECEIVER = r"""
import sys, postroad
backend = postroad.connect(sys.argv[1])
queue = backend.queue("jobs")
while True:
    deliveries = queue.receive(wait=2)
    if not deliveries:  # those before it have handled all
        print("none\n", end="", flush=True)
    for delivery in deliveries:
        print(f"got {delivery.body.decode()}\n", end="", flush=True)
        (result,) = queue.ack([delivery])
        if result.ok:
            print(f"acked {delivery.body.decode()}\n", end="", flush=True)
"""

_DEAD_LETTER = "queue.dead_letter.before_commit"


def _start(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def _kill(process: subprocess.Popen[str]) -> list[str]:
    process.kill()
    return process.communicate()[0].splitlines()


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'postroad.db'}"
    with postroad.connect(url) as backend:
        backend.create_queue(QueueSpec("jobs", visibility=1))
    return url


def _drain(url: str) -> Counter[str]:
    found: Counter[str] = Counter()
    with postroad.connect(url) as backend:
        queue = backend.queue("jobs")
        while deliveries := queue.receive(max_messages=100, wait=3, visibility=600):
            found.update(delivery.body.decode() for delivery in deliveries)
            queue.ack(deliveries)
    return found


def test_nothing_acknowledged_is_lost_when_a_sender_is_killed(url: str) -> None:
    acknowledged: set[str] = set()
    for round_ in range(5):
        sender = _start(SENDER, url, round_ * 10_000, round_ * 10_000 + 10_000)
        assert sender.stdout is not None
        for _ in range(40 + round_):
            acknowledged.add(sender.stdout.readline().strip())
        acknowledged.update(line for line in _kill(sender) if line)

    found = _drain(url)

    assert acknowledged <= set(found)
    assert set(found.values()) == {1}


def test_nothing_is_lost_or_acked_twice_when_receivers_are_killed(url: str) -> None:
    with postroad.connect(url) as backend:
        queue = backend.queue("jobs")
        for n in range(0, 300, 10):
            queue.send([OutgoingMessage(str(m)) for m in range(n, n + 10)])
    got: set[str] = set()
    acked: Counter[str] = Counter()

    for _ in range(6):
        receiver = _start(RECEIVER, url)
        assert receiver.stdout is not None
        lines = [receiver.stdout.readline() for _ in range(30)]
        lines += _kill(receiver)
        got.update(line.split()[1] for line in lines if line.startswith("got"))
        acked.update(line.split()[1] for line in lines if line.startswith("acked"))
    left = _drain(url)

    # A receiver killed between its ack and the line that tells of it has handled the message all the same.
    assert set(map(str, range(300))) == got | set(left)
    assert set(acked.values()) <= {1}
    assert not set(acked) & set(left)


@pytest.mark.parametrize(("point", "stored"), [("queue.send.before_commit", False), ("queue.send.after_commit", True)])
def test_a_send_killed_at_its_commit_is_there_exactly_when_it_was_committed(url: str, point: str, stored: bool) -> None:
    sender = _start(SENDER, url, 0, 1, POSTROAD_FAILPOINTS=f"{point}=kill9")

    assert sender.communicate()[0] == ""
    assert sender.returncode == -signal.SIGKILL
    assert _drain(url) == ({"0": 1} if stored else {})


def test_an_ack_killed_before_its_commit_is_delivered_again(url: str) -> None:
    with postroad.connect(url) as backend:
        backend.queue("jobs").send([OutgoingMessage("one")])
    receiver = _start(RECEIVER, url, POSTROAD_FAILPOINTS="queue.ack.before_commit=kill9")

    assert receiver.communicate()[0] == "got one\n"
    assert _drain(url) == {"one": 1}


def test_an_ack_killed_after_its_commit_has_removed_the_message(url: str) -> None:
    with postroad.connect(url) as backend:
        backend.queue("jobs").send([OutgoingMessage("one")])
    receiver = _start(RECEIVER, url, POSTROAD_FAILPOINTS="queue.ack.after_commit=kill9")

    assert receiver.communicate()[0] == "got one\n"
    assert receiver.returncode == -signal.SIGKILL
    assert _drain(url) == {}


def test_a_receiver_killed_before_it_commits_a_dead_letter_leaves_it_to_the_next(url: str) -> None:
    with postroad.connect(url) as backend:
        backend.create_queue(QueueSpec("dead"))
        queue = backend.create_queue(QueueSpec("doomed", visibility=0.1, max_receives=1, dead_letter="dead"))
        queue.send([OutgoingMessage("one")])
        assert len(queue.receive()) == 1
        receiver = _start(RECEIVER.replace("jobs", "doomed"), url, POSTROAD_FAILPOINTS=f"{_DEAD_LETTER}=kill9")
        assert receiver.communicate()[0] == ""
        assert receiver.returncode == -signal.SIGKILL
        assert backend.queue("dead").stats().visible == 0

        assert queue.receive(wait=1) == []

        (dead,) = backend.queue("dead").receive(max_messages=10)
        assert dead.body == b"one"


def test_a_process_killed_while_it_checkpoints_loses_nothing(url: str) -> None:
    sender = _start(SENDER, url, 0, 100_000, POSTROAD_FAILPOINTS="engine.checkpoint.mid=kill9#2")

    acknowledged = sender.communicate()[0].split()

    assert sender.returncode == -signal.SIGKILL
    assert set(acknowledged) <= set(_drain(url))


def test_a_receiver_in_another_process_is_woken_by_the_bell_alone(url: str) -> None:
    without_the_slow_look = "import postroad.engine.wakeup as w; w.LOOK_EVERY = 3600\n" + RECEIVER
    receiver = _start(without_the_slow_look, url)
    assert receiver.stdout is not None

    with postroad.connect(url) as backend:
        queue = backend.queue("jobs")
        for n in range(20):
            queue.send([OutgoingMessage(str(n))])
            assert receiver.stdout.readline() == f"got {n}\n"
            assert receiver.stdout.readline() == f"acked {n}\n"
    _kill(receiver)


def test_several_processes_share_a_queue_without_a_duplicate(url: str) -> None:
    receivers = [_start(RECEIVER, url) for _ in range(2)]
    senders = [_start(SENDER, url, n, n + 150) for n in (0, 1_000)]

    for sender in senders:
        sender.communicate()
    with postroad.connect(url) as backend:
        queue = backend.queue("jobs")
        while (stats := queue.stats()).visible or stats.in_flight:
            time.sleep(0.01)
    got = [line for receiver in receivers for line in _kill(receiver) if line.startswith("got")]

    assert Counter(got) == {f"got {n}": 1 for base in (0, 1_000) for n in range(base, base + 150)}


@pytest.mark.long
@pytest.mark.parametrize("exists", [False, True], ids=["a new file", "an empty file"])
def test_processes_that_open_it_at_the_same_moment_all_get_it(tmp_path: Path, exists: bool) -> None:
    failures: list[str] = []
    for round_ in range(20):
        path = tmp_path / f"{round_}.db"
        if exists:
            path.touch()
        failures += _open_at_once(f"sqlite:///{path}", processes=6)
        with postroad.connect(f"sqlite:///{path}") as backend:
            assert backend.queue("jobs").stats().visible == 6
        assert path.stat().st_mode & 0o777 == 0o600

    assert failures == []


def _open_at_once(url: str, *, processes: int) -> list[str]:
    """What the processes that failed have to say."""
    gate, opens_gate = os.pipe()
    answer, answers = os.pipe()
    children = []
    for n in range(processes):
        child = os.fork()
        if child == 0:
            os.close(opens_gate)
            # It ends when the parent closes its end, for all of them at once.
            os.read(gate, 1)
            try:
                with postroad.connect(url) as backend:
                    backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage(str(n))])
            except BaseException as error:
                os.write(answers, f"{error!r}\n".encode())
            os._exit(0)
        children.append(child)
    for end in (gate, opens_gate, answers):
        os.close(end)
    for child in children:
        os.waitpid(child, 0)
    with os.fdopen(answer) as pipe:
        return pipe.read().splitlines()


def test_a_forked_child_is_refused_and_the_parent_goes_on(url: str) -> None:
    with postroad.connect(url) as backend:
        queue = backend.queue("jobs")
        queue.send([OutgoingMessage("before")])
        child = os.fork()
        if child == 0:
            os._exit(_in_the_child(url, queue))

        _, status = os.waitpid(child, 0)
        queue.send([OutgoingMessage("after")])

        assert os.waitstatus_to_exitcode(status) == 0
        assert [message.body for message in queue.peek()] == [b"before", b"child", b"after"]


def _in_the_child(url: str, inherited: postroad.Queue) -> int:
    try:
        inherited.send([OutgoingMessage("never")])
    except ConfigurationError as error:
        if "fork" not in str(error):
            return 2
    else:
        return 3
    with postroad.connect(url) as own:
        own.queue("jobs").send([OutgoingMessage("child")])
    return 0
