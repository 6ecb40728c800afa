"""Rules of every test run: it has its own temporary directory and leaves nothing behind."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import hypothesis
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

_SESSION = "PR_TEST_SESSION"
_ABSENT = "absent: "
_MANY_LINES = 400
_ROOM = 4 << 30
_SERVERS = {"http", "aws", "senders"}
_ONE_BROWSER = "dashboard"
_NOT_CI = {"", "0", "false"}
_ENDS_WITH_US = "multiprocessing.resource_tracker"
_directory = pytest.StashKey[Path]()
_findings = pytest.StashKey[list[str]]()
_data_before = pytest.StashKey[set[Path]]()


hypothesis.settings.register_profile(
    # A busy machine is slow; that makes no example wrong.
    "postroad",
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
hypothesis.settings.register_profile(
    # New examples in every run, for `pytest tests/faults/models --hypothesis-profile=soak`; a failing one is kept.
    "soak",
    parent=hypothesis.settings.get_profile("postroad"),
    max_examples=2_000,
    database=DirectoryBasedExampleDatabase(".hypothesis/soak"),
    print_blob=True,
)
hypothesis.settings.load_profile("postroad")


def pytest_configure(config: pytest.Config) -> None:
    """Give the whole run one temporary directory, short because Unix sockets live in it, and mark its processes."""
    # What is collected stays until the end: to look for garbage in it takes time and finds none.
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background ignores Ctrl-C, and the processes that tests start would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_worker(config):
        return
    memory = _roomy_memory()
    if memory is not None:
        _remove_those_of_dead_runs(memory)
    directory = Path(tempfile.mkdtemp(prefix=f"pr-{os.getpid()}-", dir=memory))
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    os.environ[_SESSION] = uuid.uuid4().hex
    config.stash[_directory] = directory
    config.stash[_data_before] = _data_files(config)
    if config.option.basetemp is None:
        config.option.basetemp = str(directory / "t")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that run on PostgreSQL, by fixture or parameter, and tests that each start a server."""
    for item in items:
        if _SERVERS & set(item.path.parts):
            item.add_marker(pytest.mark.slow)
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if any("postgres" in name for name in (*fixtures, item.name.partition("[")[2])):
            item.add_marker(pytest.mark.postgres)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Look for garbage again, but only among what the tests make."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_start_long_tests_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test process its share of the long tests first, so that none of them is still running at the end.

    Those of one file stay together: they may share a server. So do all that share a browser and the servers it shows,
    which take long to start. Short tests keep their random order.
    """
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    long: dict[Path, list[pytest.Item]] = {}
    for item in filter(_is_long, items):
        long.setdefault(item.path.parent if _has_the_browser(item) else item.path, []).append(item)
    for together in long.values():
        min(shares, key=len).extend(together)
    short = iter([item for item in items if not _is_long(item)])
    left, ordered = len(items), []
    for index, share in enumerate(shares):
        # xdist deals the list out in parts of this size, the first part to the first process.
        size = left // (workers - index)
        ordered += [*share, *itertools.islice(short, max(0, size - len(share)))]
        left -= size
    items[:] = [*ordered, *short]


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None or _has_the_browser(item)


def _has_the_browser(item: pytest.Item) -> bool:
    return item.path.parent.name == _ONE_BROWSER


@pytest.fixture(scope="session", autouse=True)
def _descriptions_of_aws_are_read_once() -> Iterator[None]:
    """Let all sessions of boto3 share what they read: each would parse megabytes of JSON for its first clients."""

    class Paths(list[str]):
        def append(self, path: str) -> None:
            # Each session of boto3 adds its own folder.
            if path not in self:
                super().append(path)

    @functools.cache
    def loader(search_path_string: str | None = None) -> Any:
        made = create_loader(search_path_string)
        made._search_paths = Paths(made.search_paths)
        return made

    module: Any = botocore.session
    create_loader = module.create_loader
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "create_loader", loader)
        yield


@pytest.fixture
def logs_as_they_were() -> Iterator[None]:
    """Restore logging: a command sends log lines to the stderr of its test, which is closed afterwards."""
    root, own = logging.getLogger(), logging.getLogger("postroad")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level = before[0], before[1]
    own.setLevel(before[2])


def pytest_report_header(config: pytest.Config) -> str:
    """List the files that are about to become too long."""
    files = (
        path for folder in ("src", "tests", "benchmarks", "tools") for path in (config.rootpath / folder).rglob("*.py")
    )
    long = sorted(
        str(path.relative_to(config.rootpath)) for path in files if path.read_bytes().count(b"\n") > _MANY_LINES
    )
    return f"files above {_MANY_LINES} lines: {', '.join(long) or 'none'}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a process or file was left behind or, in CI, if a store was missing."""
    if _is_worker(session.config):
        return
    findings = [f"process left behind: {line}" for line in _processes_left()]
    findings += [f"file left behind: {path}" for path in _files_left(session.config)]
    if os.environ.get("CI", "") not in _NOT_CI:
        findings += [f"not run in CI: {reason}" for reason in _absent_stores(session.config)]
    session.config.stash[_findings] = findings
    if findings and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if not findings and session.exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(session.config.stash[_directory], ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was left behind."""
    for finding in config.stash.get(_findings, []):
        terminalreporter.write_line(finding, red=True)


def _roomy_memory() -> Path | None:
    """Return a file system in memory, on which syncs take no time; None if it is small or TMPDIR is set."""
    memory = Path("/dev/shm")
    is_roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _ROOM
    return memory if is_roomy and "TMPDIR" not in os.environ else None


def _remove_those_of_dead_runs(memory: Path) -> None:
    """Remove what failed runs left for inspection, because it takes up memory."""
    for left in memory.glob("pr-*-*"):
        if not Path(f"/proc/{left.name.split('-')[1]}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _processes_left() -> list[str]:
    """Return the command lines of the run's processes that do not end within two seconds."""
    deadline = time.monotonic() + 2
    while (left := _marked_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _marked_processes() -> list[str]:
    mark = f"{_SESSION}={os.environ[_SESSION]}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
        except OSError:
            continue
    return [line for line in found if _ENDS_WITH_US not in line]


def _files_left(config: pytest.Config) -> list[Path]:
    ours = [path for path in config.stash[_directory].iterdir() if path.name != "t"]
    before = config.stash[_data_before]
    return sorted([*ours, *(_data_files(config) - before)])


def _data_files(config: pytest.Config) -> set[Path]:
    return {*config.rootpath.glob("postroad.*"), *config.rootpath.glob("postroad-*")}


def _absent_stores(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    reasons = {report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)}
    return sorted(reason for reason in reasons if _ABSENT in reason)
