"""Many who wait at one server: what they cost, and how their streams end."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.up.up import POSTROAD, Up
from tests.waiting import eventually

from postroad.agents import AgentEvent, Agents, Registered
from postroad.http.tokens import TokenFile
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.wiring import connect
from postroad.wiring.backend import Backend

pytestmark = pytest.mark.slow
MAX_THREADS = 20


@pytest.fixture
def backend(up: Up) -> Iterator[Backend]:
    """The file that the server serves, open in this process too."""
    with connect(f"sqlite:///{up.ready['data']}") as opened:
        yield opened


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Stream:
    """A bare connection to an agent's stream."""

    def __init__(self, up: Up, agent_id: str, token: str, *, sockets: ExitStack) -> None:
        address = urlsplit(up.ready["url"])
        self.socket = sockets.enter_context(socket.create_connection((address.hostname, address.port), timeout=60))
        self.socket.sendall(
            f"GET /agents/{agent_id}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        self.received = b""
        self.read_until(lambda text: b": connected" in text or b"application/problem+json" in text)

    @property
    def status(self) -> int:
        return int(self.received.split(b" ", 2)[1])

    def read_until(self, enough: Callable[[bytes], bool]) -> bytes:
        while not enough(self.received):
            more = self.socket.recv(65_536)
            assert more, f"the stream ended: {self.received!r}"
            self.received += more
        return self.received

    def is_over(self) -> bool:
        """Read until the server says that nothing follows."""
        return self.read_until(lambda text: text.endswith(b"0\r\n\r\n")) != b""


def threads(up: Up) -> int:
    status = Path(f"/proc/{up.parts()['server']['pid']}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Threads:")))


def log(up: Up) -> str:
    return (Path(up.ready["data"]).parent / "log").read_text()


def crowd(agents: Agents, count: int) -> list[Registered]:
    """Agents that all listen to `ann`."""
    agents.register("ann")
    made = agents.register_many(count)
    agents.subscribe_many([(each.agent_id, "ann") for each in made])
    return made


def test_streams_and_long_polls_of_hundreds_of_agents_share_a_few_threads(
    up: Up, backend: Backend, sockets: ExitStack
) -> None:
    agents = backend.agents()
    made = crowd(agents, 300)
    with ThreadPoolExecutor(20) as opening:
        streams = list(opening.map(lambda each: Stream(up, each.agent_id, each.token, sockets=sockets), made[:200]))
    with ThreadPoolExecutor(100) as polling:
        polls = [polling.submit(lease, up, each, wait=20) for each in made[200:]]
        eventually(lambda: open_files(up) >= 300)
        busiest = threads(up)
        agents.publish([AgentEvent("ann", "told", {"n": 1})])
        told = [stream.read_until(lambda text: b'"n":1' in text) for stream in streams]
        answers = [poll.result() for poll in polls]

    assert {stream.status for stream in streams} == {200}
    assert busiest <= MAX_THREADS
    assert threads(up) <= MAX_THREADS
    assert all(text.count(b"event: message") == 1 for text in told)
    assert [len(answer["deliveries"]) for answer in answers] == [1] * 100
    assert "Traceback" not in log(up)


def lease(up: Up, agent: Registered, **options: Any) -> dict[str, Any]:
    answer = httpx.post(
        f"{up.ready['url']}/agents/{agent.agent_id}/leases",
        json=options,
        headers={"Authorization": f"Bearer {agent.token}"},
        timeout=60,
        verify=False,
    )
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    # On a busy machine the time of a poll may be over before something is published.
    return document if document["deliveries"] else lease(up, agent, **options)


def open_files(up: Up) -> int:
    folder = Path(f"/proc/{up.parts()['server']['pid']}/fd")
    return sum(1 for _ in folder.iterdir())


def test_long_polls_of_many_queues_share_a_few_threads(up: Up, backend: Backend) -> None:
    names = [f"orders-{number}" for number in range(100)]
    for name in names:
        backend.create_queue(QueueSpec(name))

    def poll(name: str) -> list[dict[str, Any]]:
        answer = httpx.post(
            f"{up.ready['url']}/queues/{name}/leases",
            json={"wait": 20},
            headers={"Authorization": f"Bearer {up.ready['token']}"},
            timeout=60,
            verify=False,
        )
        deliveries: list[dict[str, Any]] = answer.json()["deliveries"]
        # On a busy machine the time of a poll may be over before something is sent.
        return deliveries or poll(name)

    with ThreadPoolExecutor(100) as polling:
        polls = [polling.submit(poll, name) for name in names]
        eventually(lambda: open_files(up) >= 100)
        busiest = threads(up)
        for name in names:
            backend.queue(name).send([OutgoingMessage(name)])
        bodies = [[each["body"] for each in answer.result()] for answer in polls]

    assert busiest <= MAX_THREADS
    assert bodies == [[name] for name in names]


def test_streams_opened_at_once_above_the_limit_are_429_and_the_others_work(
    up: Up, backend: Backend, sockets: ExitStack
) -> None:
    agents = backend.agents()
    [made] = crowd(agents, 1)
    with ThreadPoolExecutor(30) as opening:
        streams = list(opening.map(lambda _: Stream(up, made.agent_id, made.token, sockets=sockets), range(30)))

    accepted = [stream for stream in streams if stream.status == 200]
    refused = [stream for stream in streams if stream.status == 429]
    for stream in accepted[1:]:
        stream.socket.close()
    agents.publish([AgentEvent("ann", "told", {"n": 1})])

    assert (len(accepted), len(refused)) == (8, 22)
    assert all(b"retry-after" in stream.received.lower() for stream in refused)
    assert accepted[0].read_until(lambda text: b'"n":1' in text)
    assert "Traceback" not in log(up)


def test_deleting_an_agent_ends_its_streams_and_no_others(up: Up, backend: Backend, sockets: ExitStack) -> None:
    agents = backend.agents()
    one, other = crowd(agents, 2)
    agents.publish([AgentEvent("ann", "told", {"n": n}) for n in range(12)])
    ended, full, goes_on = (Stream(up, each.agent_id, each.token, sockets=sockets) for each in (one, one, other))
    # One of both holds as many as a stream may hold, so that it waits for acks and not for events.
    eventually(lambda: agents.stats(one.agent_id).in_flight == 10)

    deleted = httpx.delete(
        f"{up.ready['url']}/agents/{one.agent_id}",
        headers={"Authorization": f"Bearer {one.token}"},
        timeout=20,
        verify=False,
    )
    agents.publish([AgentEvent("ann", "told", {"n": 99})])

    assert deleted.status_code == 200
    assert ended.is_over()
    assert full.is_over()
    assert goes_on.read_until(lambda text: text.count(b"event: message") == 10)
    assert "Traceback" not in log(up)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["by the server", "by another process"])
def test_a_token_that_is_void_ends_its_streams_and_the_new_one_goes_on(
    up: Up, backend: Backend, sockets: ExitStack, elsewhere: bool
) -> None:
    agents = backend.agents()
    [made] = crowd(agents, 1)
    stream = Stream(up, made.agent_id, made.token, sockets=sockets)

    if elsewhere:
        command = [*POSTROAD, "agent", "token", made.agent_id, "--overlap", "0", "--json"]
        data = f"sqlite:///{up.ready['data']}"
        told = subprocess.run([*command, "--url", data], capture_output=True, text=True, check=True).stdout
        token = json.loads(told)["token"]
    else:
        answer = httpx.post(
            f"{up.ready['url']}/agents/{made.agent_id}/token",
            json={"overlap": 0},
            headers={"Authorization": f"Bearer {made.token}"},
            timeout=20,
            verify=False,
        )
        token = answer.json()["token"]

    assert stream.is_over()
    renewed = Stream(up, made.agent_id, token, sockets=sockets)
    agents.publish([AgentEvent("ann", "told", {"n": 1})])
    assert renewed.read_until(lambda text: b'"n":1' in text)
    assert "Traceback" not in log(up)


def test_a_revoked_token_of_an_operator_ends_the_streams_it_opened(
    up: Up, backend: Backend, sockets: ExitStack
) -> None:
    [made] = crowd(backend.agents(), 1)
    tokens = TokenFile(Path(f"{up.ready['data']}.tokens.json"))
    _, secret = tokens.create("gateway", "publish")
    stream = Stream(up, made.agent_id, secret, sockets=sockets)

    tokens.revoke("gateway")

    assert stream.is_over()
    assert "Traceback" not in log(up)
