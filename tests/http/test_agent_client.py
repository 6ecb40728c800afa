"""`postroad.AgentClient`: an agent over HTTP that survives lost connections and restarts of the server."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.http.agent_servers import KillableServer
from tests.http.village import Village
from tests.waiting import NEVER_SECONDS, eventually

import postroad
from postroad import AgentClient, NonRetryable, Retryable
from postroad.agents import AgentEvent, ReceivedEvent
from postroad.errors import (
    AgentNotFound,
    ConfigurationError,
    ConsentRequired,
    InvalidEvent,
    InvalidInput,
    Unauthorized,
    Unavailable,
)


def client_of(village: Village, name: str, **options: Any) -> AgentClient:
    return AgentClient(str(village.api.client.base_url), village.tokens[name], **options)


@pytest.fixture
def cat(village: Village) -> Iterator[AgentClient]:
    with client_of(village, "cat") as client:
        yield client


@contextmanager
def running(agent: AgentClient, **options: Any) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,), kwargs=options)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(120)
        assert not thread.is_alive()


@contextmanager
def moving(village: Village) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=village.runner.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(120)


def is_empty(village: Village) -> bool:
    stats = village.agents.stats("cat")
    return stats.visible == stats.in_flight == stats.delayed == 0


def test_a_client_handles_and_publishes_with_nothing_but_a_token(village: Village, cat: AgentClient) -> None:
    seen: list[ReceivedEvent] = []
    cat.on(producer="ann", event_type="order.*")(seen.append)

    with moving(village), running(cat), client_of(village, "ann") as ann:
        first = ann.publish("order.placed", {"n": 1}, event_id="e-1")
        ann.publish("paid", {})
        ann.publish("order.sent", {"n": 2})
        eventually(lambda: len(seen) == 2 and is_empty(village))

    assert (first.ok, first.event_id) == (True, "e-1")
    assert (seen[0].event_id, seen[0].data) == ("e-1", {"n": 1})
    assert (seen[1].agent_id, seen[1].subscriber_id, seen[1].receive_count) == ("ann", "cat", 1)


def test_async_handlers_run_on_the_callers_loop(village: Village, cat: AgentClient) -> None:
    loops: list[object] = []

    @cat.on()
    async def handle(event: ReceivedEvent) -> None:
        loops.append(asyncio.get_running_loop())
        await cat.apublish("answer", {})

    async def main() -> object:
        stop = asyncio.Event()
        run = asyncio.create_task(cat.arun(stop))
        await asyncio.to_thread(village.publish, 1)
        await asyncio.to_thread(eventually, lambda: loops and is_empty(village))
        stop.set()
        await run
        return asyncio.get_running_loop()

    assert asyncio.run(main()) is loops[0]


def test_a_cancelled_run_lets_a_running_handler_end_and_a_later_run_goes_on(village: Village, cat: AgentClient) -> None:
    counts: list[int] = []
    may_end = threading.Event()

    @cat.on()
    async def handle(event: ReceivedEvent) -> None:
        counts.append(event.receive_count)
        while not may_end.is_set():
            await asyncio.sleep(0.01)

    async def cancelled() -> None:
        run = asyncio.create_task(cat.arun())
        await asyncio.to_thread(village.publish, 1, 2)
        await asyncio.to_thread(eventually, lambda: counts)
        run.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancelled())
    held = village.agents.stats("cat").in_flight
    with running(cat):
        eventually(lambda: is_empty(village))

    assert held == 0
    assert counts == [1, 1]


def test_what_a_handler_refuses_is_a_dead_letter(village: Village, cat: AgentClient) -> None:
    @cat.on()
    def refuse(event: ReceivedEvent) -> None:
        raise NonRetryable("no")

    with running(cat):
        village.publish(1)
        eventually(lambda: village.agents.stats("cat").dead == 1)


def test_an_event_that_always_fails_takes_none_of_those_behind_it_along(village: Village, cat: AgentClient) -> None:
    seen: list[int] = []

    class Soon(Retryable):
        def __init__(self) -> None:
            super().__init__("never")
            self.after = 0.01

    @cat.on()
    def fail(event: ReceivedEvent) -> None:
        if event.data["n"] == 1:
            raise Soon
        seen.append(event.data["n"])

    village.publish(1, 2, 3)
    with running(cat):
        eventually(lambda: seen == [2, 3] and is_empty(village))

    [dead] = village.agents.dead_letters("cat")
    assert json.loads(dead.body)["data"] == {"n": 1}


def test_a_client_grants_subscribes_to_types_and_unsubscribes(village: Village) -> None:
    with client_of(village, "ann") as ann, client_of(village, "bob") as bob:
        with pytest.raises(ConsentRequired):
            bob.subscribe("ann")
        ann.grant("bob")
        bob.subscribe("ann", event_types=["paid"])
        [pair] = village.agents.subscriptions("bob").items
        bob.unsubscribe("ann", discard=True)

    assert pair.event_types == ("paid",)
    assert village.agents.subscriptions("bob").items == []


def test_total_order_is_kept_over_http(village: Village) -> None:
    token = village.agents.register("dan", order="total").token
    village.agents.subscribe_many([("dan", "ann"), ("dan", "bob")])
    seen: list[int] = []
    busy = threading.Lock()

    with AgentClient(str(village.api.client.base_url), token) as dan:

        @dan.on()
        def one_at_a_time(event: ReceivedEvent) -> None:
            with suppress(RuntimeError):
                assert busy.acquire(blocking=False)
                seen.append(event.data["n"])
                busy.release()

        for n in range(10):
            village.agents.publish([AgentEvent("ann" if n % 2 else "bob", "counted", {"n": n})])
            village.move()
        with running(dan, concurrency=4):
            eventually(lambda: len(seen) == 10)

    assert seen == list(range(10))


class LossyProxy:
    """Forwards connections to a server, and loses answers on demand after the server has received the request."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.losing: bytes | None = None
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server, suppress(OSError):
            threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
            while request := client.recv(65_536):
                loses = self.losing is not None and self.losing in request
                server.sendall(request)
                if loses:
                    self.lost += 1
                    self.losing = None
                    # The server does its work, and nobody hears of it.
                    client.shutdown(socket.SHUT_RDWR)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while answer := server.recv(65_536):
                client.sendall(answer)
            client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(village: Village) -> Iterator[LossyProxy]:
    proxy = LossyProxy(village.api.port)
    yield proxy
    proxy.close()


def test_an_ack_whose_answer_is_lost_is_sent_again_and_nothing_is_handled_twice(
    village: Village, proxy: LossyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    with AgentClient(proxy.url, village.tokens["cat"]) as cat:
        cat.on()(lambda event: seen.append(event.data["n"]))
        with running(cat):
            proxy.losing = b"/acks"
            village.publish(1, 2)
            eventually(lambda: proxy.lost == 1 and len(seen) == 2 and is_empty(village))
            village.publish(3)
            eventually(lambda: len(seen) == 3 and is_empty(village))

    assert seen == [1, 2, 3]
    assert "receiver_ack_failed" not in caplog.text


def test_a_publish_whose_answer_is_lost_is_one_event(village: Village, proxy: LossyProxy) -> None:
    with AgentClient(proxy.url, village.tokens["ann"]) as ann:
        proxy.losing = b"POST /events"
        published = ann.publish("counted", {"n": 1})
    village.move()

    assert proxy.lost == 1
    assert [each["eventId"] for each in village.lease()] == [published.event_id]


def test_leases_whose_answer_is_lost_come_again(village: Village, proxy: LossyProxy) -> None:
    seen: list[int] = []
    village.publish(1)
    with AgentClient(proxy.url, village.tokens["cat"]) as cat:
        cat.on()(lambda event: seen.append(event.receive_count))
        proxy.losing = b"/leases"
        with running(cat):
            eventually(lambda: proxy.lost == 1)
            # Nobody extends the lease that was lost; the operator does not wait for its end.
            eventually(lambda: seen or not village.agents.replay("cat", "ann"), every=1)
            eventually(lambda: seen and is_empty(village))


def test_a_token_that_is_no_longer_valid_ends_the_run_with_the_error(village: Village, cat: AgentClient) -> None:
    cat.on()(lambda event: None)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            cat.run()
        except PostroadRefusal as error:
            raised.append(error)

    PostroadRefusal = (Unauthorized, AgentNotFound)
    thread = threading.Thread(target=run)
    thread.start()
    village.publish(1)
    eventually(lambda: is_empty(village))
    village.agents.delete("cat")
    thread.join(120)

    assert raised


def test_a_token_that_was_never_valid_ends_an_async_run_too(village: Village) -> None:
    wrong = village.tokens["cat"][:-3] + "abc"
    with AgentClient(str(village.api.client.base_url), wrong) as cat:
        cat.on()(lambda event: None)

        with pytest.raises(Unauthorized):
            asyncio.run(cat.arun())
        with pytest.raises(Unauthorized):
            cat.publish("a", {})


def test_a_server_that_cannot_be_reached_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with AgentClient(f"http://127.0.0.1:{port}", "pr_ann." + "x" * 43, timeout=0.1) as ann:
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
            ann.publish("a", {})


@pytest.mark.parametrize(
    ("url", "token", "options", "field"),
    [
        ("ftp://x", "pr_ann." + "x" * 43, {}, "url"),
        ("127.0.0.1:8787", "pr_ann." + "x" * 43, {}, "url"),
        ("http://", "pr_ann." + "x" * 43, {}, "url"),
        ("http://x?token=1", "pr_ann." + "x" * 43, {}, "url"),
        ("http://x:port", "pr_ann." + "x" * 43, {}, "url"),
        ("http://[::1", "pr_ann." + "x" * 43, {}, "url"),
        ("http://x\n", "pr_ann." + "x" * 43, {}, "url"),
        ("http://ann:secret@x", "pr_ann." + "x" * 43, {}, "url"),
        (5, "pr_ann." + "x" * 43, {}, "url"),
        ("http://x", "secret", {}, "token"),
        ("http://x", None, {}, "token"),
        ("http://x", "pr_ann." + "x" * 43, {"timeout": -1}, "timeout"),
    ],
)
def test_what_cannot_work_is_refused_by_name_and_shows_no_token(
    url: Any, token: Any, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        AgentClient(url, token, **options)

    assert refused.value.field == field
    assert "secret" not in str(refused.value)


def test_a_bad_event_is_refused_before_anything_is_sent(cat: AgentClient) -> None:
    with pytest.raises(InvalidEvent):
        cat.publish("", {})
    with pytest.raises(InvalidInput):
        cat.subscribe("ann", event_types=["order*"])
    with pytest.raises(InvalidInput):
        cat.subscribe("../admin")


def test_a_program_with_a_client_makes_no_file_and_says_what_is_missing(village: Village, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    script = f"""
import os, sys, postroad
agent = postroad.AgentClient({str(village.api.client.base_url)!r}, {village.tokens["ann"]!r})
agent.publish("counted", {{"n": 1}})
print(os.listdir("."))
sys.modules["httpx"] = None
try:
    postroad.AgentClient("http://x", {village.tokens["ann"]!r})
except postroad.errors.ConfigurationError as error:
    print(error.remedy)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=empty, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["[]", "Run: pip install 'postroad[client]'"]


@pytest.mark.slow
def test_a_client_survives_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    server = KillableServer(tmp_path)
    server.start()
    with postroad.connect(server.data) as backend:
        agents = backend.agents()
        tokens = {name: agents.register(name).token for name in ("ann", "bob")}
        agents.subscribe("bob", "ann")
        handled: list[int] = []
        try:
            # A busy machine takes its time to start the server.
            patient = AgentClient(server.url, tokens["ann"], timeout=NEVER_SECONDS)
            with patient as ann, AgentClient(server.url, tokens["bob"]) as bob:
                bob.on()(lambda event: handled.append(event.data["n"]))
                with running(bob):
                    for n in range(60):
                        if n in (20, 40):
                            server.kill()
                            starting = threading.Timer(1.0, server.start)
                            starting.start()
                        ann.publish("counted", {"n": n})
                        if n in (20, 40):
                            # It has answered, but whoever started it may still be asking whether it is ready.
                            starting.join()
                    eventually(lambda: len(set(handled)) == 60)
                    eventually(lambda: agents.stats("bob").visible == agents.stats("bob").in_flight == 0)
        finally:
            server.kill()

        assert handled == list(range(60)), json.dumps(handled)
        assert agents.dead_letters("bob") == []
