"""The errors that real clients raise when a real server is away, silent, cut off, busy or locked."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import socket
import sqlite3
import ssl
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import boto3
import botocore.config
import httpx
import psycopg
import psycopg_pool
import pytest
import requests
import sqlalchemy
import urllib3
from tests.postgres import postgres, postgres_dsn

from postroad.errors import Unavailable
from postroad.tasks import Retryable
from postroad.tasks.error_categories import classify_exception

__all__ = ["postgres", "postgres_dsn"]
asyncpg: Any = importlib.import_module("asyncpg")
SECONDS = 0.2
"""How long clients wait for a server that never answers."""
RETRYABLE = {"rate-limit", "server-error", "network", "timeout"}


@dataclass(frozen=True)
class Servers:
    """Ports of servers that fail, each in its own way."""

    away: int
    silent: int
    hangs_up: int
    cut_off: int
    busy: int
    throttles: int

    def __getitem__(self, name: str) -> str:
        return f"http://127.0.0.1:{getattr(self, name)}/"


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """A server that reads a request, answers so and hangs up; None: it answers nothing and holds on."""
    listening = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            if answer is None:
                held.append(connection)
                continue
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        # A thread that accepts holds a closed socket open.
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
        for connection in held:
            connection.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with socket.create_server(("127.0.0.1", 0)) as once:
        away = once.getsockname()[1]
    throttled = b'{"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException", "message": "slow down"}'
    answers = {
        "silent": None,
        "hangs_up": b"",
        "cut_off": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
        "busy": b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "throttles": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        % (len(throttled), throttled),
    }
    with ExitStack() as stack:
        yield Servers(away, **{name: stack.enter_context(server(answer)) for name, answer in answers.items()})


def by_httpx(url: str, seconds: float) -> None:
    httpx.get(url, timeout=seconds, trust_env=False).raise_for_status()


def by_requests(url: str, seconds: float) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=seconds).raise_for_status()


def by_urllib3(url: str, seconds: float) -> None:
    with urllib3.PoolManager(retries=False, timeout=seconds) as pool:
        assert pool.request("GET", url).status == 200


def by_urllib3_with_retries(url: str, seconds: float) -> None:
    retries = urllib3.Retry(total=1, status_forcelist=[503], backoff_factor=0)
    with urllib3.PoolManager(retries=retries, timeout=seconds) as pool:
        pool.request("GET", url)


def by_urllib(url: str, seconds: float) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=seconds) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def by_http_client(url: str, seconds: float) -> None:
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=seconds)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    finally:
        connection.close()


def by_aiohttp(url: str, seconds: float) -> None:
    async def get() -> None:
        timeout = aiohttp.ClientTimeout(total=None, connect=seconds, sock_read=seconds)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            answer.raise_for_status()
            await answer.read()

    asyncio.run(get())


def by_botocore(url: str, seconds: float) -> None:
    config = botocore.config.Config(
        connect_timeout=seconds, read_timeout=seconds, retries={"total_max_attempts": 1}, proxies={}
    )
    known = {"region_name": "eu-central-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client: Any = boto3.client("dynamodb", endpoint_url=url, config=config, **known)  # type: ignore[call-overload]
    client.list_tables()


CLIENTS: dict[str, Callable[[str, float], None]] = {
    "httpx": by_httpx,
    "requests": by_requests,
    "urllib3": by_urllib3,
    "urllib3 with retries": by_urllib3_with_retries,
    "urllib": by_urllib,
    "http.client": by_http_client,
    "aiohttp": by_aiohttp,
    "botocore": by_botocore,
}


@pytest.mark.parametrize(
    ("client", "failure", "category"),
    [
        ("httpx", "away", "network"),
        ("httpx", "silent", "timeout"),
        ("httpx", "hangs_up", "network"),
        ("httpx", "cut_off", "network"),
        ("httpx", "busy", "server-error"),
        ("requests", "away", "network"),
        ("requests", "silent", "timeout"),
        ("requests", "hangs_up", "network"),
        ("requests", "cut_off", "network"),
        ("requests", "busy", "server-error"),
        ("urllib3", "away", "network"),
        ("urllib3", "silent", "timeout"),
        ("urllib3", "hangs_up", "network"),
        ("urllib3", "cut_off", "network"),
        ("urllib3 with retries", "away", "network"),
        ("urllib3 with retries", "silent", "timeout"),
        ("urllib3 with retries", "busy", "server-error"),
        ("urllib", "away", "network"),
        ("urllib", "silent", "timeout"),
        ("urllib", "hangs_up", "network"),
        ("urllib", "cut_off", "network"),
        ("urllib", "busy", "server-error"),
        ("http.client", "away", "network"),
        ("http.client", "silent", "timeout"),
        ("http.client", "hangs_up", "network"),
        ("http.client", "cut_off", "network"),
        ("aiohttp", "away", "network"),
        ("aiohttp", "silent", "timeout"),
        ("aiohttp", "hangs_up", "network"),
        ("aiohttp", "cut_off", "network"),
        ("aiohttp", "busy", "server-error"),
        ("botocore", "away", "network"),
        ("botocore", "silent", "timeout"),
        ("botocore", "hangs_up", "network"),
        ("botocore", "busy", "server-error"),
        ("botocore", "throttles", "rate-limit"),
    ],
)
def test_the_error_of_a_client_is_known(client: str, failure: str, category: str, servers: Servers) -> None:
    # Whoever waits for an answer that comes waits for long: the machine may be busy.
    seconds = SECONDS if failure == "silent" else 60.0
    error = raised_by(lambda: CLIENTS[client](servers[failure], seconds))

    found = classify_exception(error)

    assert (found.category, found.retryable) == (category, category in RETRYABLE), repr(error)


def raised_by(work: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # which one is the question
        work()
    return caught.value


def test_a_name_that_nobody_resolves_is_the_networks() -> None:
    error = raised_by(lambda: socket.create_connection(("no-such-host.invalid", 80), timeout=5))

    assert classify_exception(error).category == "network"


def test_a_handshake_that_breaks_off_is_the_networks(servers: Servers) -> None:
    def connect() -> None:
        with socket.create_connection(("127.0.0.1", servers.hangs_up)) as plain:
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")

    error = raised_by(connect)

    assert isinstance(error, ssl.SSLEOFError | ConnectionResetError)
    assert classify_exception(error).category == "network"


def test_a_socket_that_gets_no_answer_times_out(servers: Servers) -> None:
    def read() -> None:
        with socket.create_connection(("127.0.0.1", servers.silent), timeout=SECONDS) as connection:
            connection.recv(1)

    assert classify_exception(raised_by(read)).category == "timeout"


@pytest.mark.parametrize("number", [101, 103, 112, 113])
def test_a_network_that_is_not_there_is_known_by_its_number(number: int) -> None:
    assert classify_exception(OSError(number, "unreachable")).category == "network"
    assert classify_exception(OSError(f"Multiple exceptions: [Errno {number}] x, [Errno 111] y")).category == "network"


def test_a_number_in_the_text_that_is_too_long_for_an_errno_is_none() -> None:
    assert classify_exception(RuntimeError(f"[Errno {'9' * 5_000}] x")) == classify_exception(RuntimeError("x"))


def test_a_locked_file_of_sqlite_is_tried_again_and_a_wrong_statement_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with sqlite3.connect(path) as first, sqlite3.connect(path, timeout=0) as second:
        first.execute("CREATE TABLE t (x UNIQUE)")
        first.execute("INSERT INTO t VALUES (1)")
        locked = raised_by(lambda: second.execute("INSERT INTO t VALUES (2)"))
        first.commit()
        twice = raised_by(lambda: second.execute("INSERT INTO t VALUES (1)"))
        wrong = raised_by(lambda: second.execute("SELECT no_such_column FROM t"))
    first.close()
    second.close()

    assert [classify_exception(error).category for error in (locked, twice, wrong)] == [
        "server-error",
        "validation",
        "programming",
    ]


def test_a_locked_file_is_tried_again_through_sqlalchemy(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})
    holder = sqlite3.connect(path)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("INSERT INTO t VALUES (1)")

    def insert() -> None:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("INSERT INTO t VALUES (1)"))

    error = raised_by(insert)
    holder.close()
    engine.dispose()

    assert classify_exception(error).category == "server-error"


def test_a_locked_file_is_tried_again_with_apsw(tmp_path: Path) -> None:
    first, second = (apsw.Connection(str(tmp_path / "a.db")) for _ in range(2))
    first.execute("CREATE TABLE t (x); BEGIN IMMEDIATE")

    error = raised_by(lambda: second.execute("BEGIN IMMEDIATE"))
    first.close()
    second.close()

    assert classify_exception(error).category == "server-error"


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("statement", "category"),
    [
        ("SET statement_timeout = 10; SELECT pg_sleep(60)", "timeout"),
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$", "server-error"),
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$", "server-error"),
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53300'; END $$", "server-error"),
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '08006'; END $$", "network"),
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '42501'; END $$", "auth"),
        ("SELECT 1 / 0", "validation"),
        ("SELECT no_such_column", "programming"),
    ],
)
def test_an_error_of_postgresql_is_known_through_every_driver(statement: str, category: str, postgres_dsn: str) -> None:
    def by_psycopg() -> None:
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            connection.execute(statement)

    def by_sqlalchemy() -> None:
        engine = sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(postgres_dsn), poolclass=sqlalchemy.NullPool
        )
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)

    async def by_asyncpg() -> None:
        connection = await asyncpg.connect(**asyncpg_options(postgres_dsn))
        try:
            await connection.execute(statement)
        finally:
            connection.terminate()

    errors = [raised_by(by_psycopg), raised_by(by_sqlalchemy), raised_by(lambda: run(by_asyncpg()))]

    assert [classify_exception(error).category for error in errors] == [category] * 3, errors


@pytest.mark.postgres
def test_a_connection_that_postgresql_ends_is_tried_again_through_every_driver(postgres_dsn: str) -> None:
    end = "SELECT pg_terminate_backend(pg_backend_pid())"

    def by_psycopg() -> None:
        with psycopg.connect(postgres_dsn) as connection:
            connection.execute(end)

    def after_the_end() -> None:
        with psycopg.connect(postgres_dsn) as connection:
            raised_by(lambda: connection.execute(end))
            connection.execute("SELECT 1")

    async def by_asyncpg() -> None:
        connection = await asyncpg.connect(**asyncpg_options(postgres_dsn))
        await connection.execute(end)

    async def by_asyncpg_after_the_end() -> None:
        connection = await asyncpg.connect(**asyncpg_options(postgres_dsn))
        connection.terminate()
        await connection.execute("SELECT 1")

    errors = [
        *(raised_by(by_psycopg), raised_by(after_the_end)),
        *(raised_by(lambda: run(by_asyncpg())), raised_by(lambda: run(by_asyncpg_after_the_end()))),
    ]

    assert all(classify_exception(error).retryable for error in errors), errors


def asyncpg_options(dsn: str) -> dict[str, Any]:
    known = psycopg.conninfo.conninfo_to_dict(dsn)
    names = {"host": "host", "port": "port", "user": "user", "dbname": "database", "password": "password"}
    return {names[name]: value for name, value in known.items() if name in names}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.mark.parametrize("failure", ["away", "hangs_up"])
def test_a_postgresql_that_is_away_is_the_networks_through_every_driver(failure: str, servers: Servers) -> None:
    port = getattr(servers, failure)

    async def by_asyncpg() -> None:
        await asyncpg.connect(host="127.0.0.1", port=port, user="x", database="x", timeout=20)

    async def by_psycopg_async() -> None:
        await psycopg.AsyncConnection.connect(f"host=127.0.0.1 port={port} user=x dbname=x")

    errors = [
        raised_by(lambda: psycopg.connect(f"host=127.0.0.1 port={port} user=x dbname=x")),
        raised_by(lambda: run(by_psycopg_async())),
        raised_by(lambda: run(by_asyncpg())),
    ]

    assert [classify_exception(error).category for error in errors] == ["network"] * 3, errors


def test_a_pool_that_gets_no_connection_times_out(servers: Servers) -> None:
    def take() -> None:
        dsn = f"host=127.0.0.1 port={servers.away} user=x dbname=x"
        with psycopg_pool.ConnectionPool(dsn, min_size=1, open=True, reconnect_timeout=0.1) as pool:
            pool.getconn(timeout=SECONDS)

    assert classify_exception(raised_by(take)).category == "timeout"


@pytest.mark.parametrize(
    "text", ['FATAL:  password authentication failed for user "x"', 'FATAL:  no pg_hba.conf entry for host "::1"']
)
def test_a_refused_password_is_not_tried_again(text: str) -> None:
    assert classify_exception(psycopg.OperationalError(f"connection failed: {text}")).category == "auth"


def test_an_error_of_our_own_stores_is_tried_again() -> None:
    assert classify_exception(Unavailable("no answer")).retryable


class OwnError(Exception):
    pass


def test_an_error_without_a_class_is_known_by_its_cause_or_context_whatever_stands_between(servers: Servers) -> None:
    def with_cause() -> None:
        try:
            by_httpx(servers["away"], 60.0)
        except httpx.HTTPError as error:
            raise OwnError("cannot load the page") from error

    def with_context() -> None:
        try:
            with_cause()
        except OwnError:
            raise RuntimeError("the step failed")  # noqa: B904  # what stands behind it is the question

    def without_context() -> None:
        try:
            with_cause()
        except OwnError:
            raise RuntimeError("the step failed") from None

    found = [classify_exception(raised_by(work)) for work in (with_cause, with_context, without_context)]

    assert [(each.category, each.retryable) for each in found] == [
        ("network", True),
        ("network", True),
        ("unknown", False),
    ]


def test_a_chain_without_an_end_is_followed_once() -> None:
    one, other = OwnError("one"), OwnError("other")
    one.__cause__, other.__cause__ = other, one

    assert classify_exception(one).category == "unknown"


def test_a_retryable_inside_another_error_decides() -> None:
    error = OwnError("outside")
    error.__cause__ = Retryable("inside", category="rate-limit")

    assert classify_exception(error) == classify_exception(Retryable("x", category="rate-limit"))


class Warns(Exception):
    @property
    def code(self) -> int:
        warnings.warn("use status instead", DeprecationWarning, stacklevel=2)
        return 503

    @property
    def response(self) -> object:
        raise RuntimeError("there is none")


def test_an_error_whose_attributes_warn_or_raise_is_classified() -> None:
    assert classify_exception(Warns("no")).category == "server-error"
