"""One `postroad up` and one Chromium for all tests of the dashboard that a process runs."""

from __future__ import annotations

import asyncio
import shutil
from asyncio import events
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright
from tests.dashboard.server import Served, furnish, served
from tests.dashboard.work import working
from tests.waiting import NEVER_SECONDS

NewContext = Callable[..., BrowserContext]
_cookies: dict[tuple[str, str], Any] = {}
"""The cookies of those who have logged in, by server and token."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with queues, messages and dead letters. Tests that change them make queues of their own."""
    with served(tmp_path_factory.mktemp("dashboard")) as running:
        furnish(running)
        yield running


@pytest.fixture(scope="session")
def chromium() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    """A headless Chromium, Debian's or the one that playwright has downloaded, and the event loop of playwright."""
    with sync_playwright() as playwright:
        loop = asyncio.get_running_loop()
        path = shutil.which("chromium") or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("absent: Chromium; `make setup` installs it where it can, or apt install chromium")
        # The sandbox needs rights that containers do not have; the tests load only our own pages.
        launched = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        expect.set_options(timeout=NEVER_SECONDS * 1_000)
        events._set_running_loop(None)
        yield launched, loop
        events._set_running_loop(loop)
        launched.close()


@pytest.fixture
def browser(chromium: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """The browser of this process.

    Playwright leaves its event loop running in the main thread. Other tests must not meet it there: no loop of
    their own could start. So it counts as running only while a test has the browser.
    """
    launched, loop = chromium
    events._set_running_loop(loop)
    yield launched
    events._set_running_loop(None)


@pytest.fixture
def new_context(browser: Browser, server: Served) -> Iterator[NewContext]:
    """Make windows that keep a list of what may not happen: errors on the console, requests to other servers."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        # A page with an error status is itself listed as a failed resource.
        if message.type == "error" and "the server responded with a status of" not in message.text:
            wrong.append(f"console: {message.text}")

    def on_request(request: Request) -> None:
        if not request.url.startswith((server.url, "data:", "http://127.0.0.1")):
            wrong.append(f"request: {request.url}")

    def make(**options: object) -> BrowserContext:
        context = browser.new_context(**options)  # type: ignore[arg-type]  # playwright checks them
        context.set_default_timeout(NEVER_SECONDS * 1_000)
        context.on("console", on_console)
        context.on("weberror", lambda error: wrong.append(f"error: {error.error}"))
        context.on("request", on_request)
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def page(new_context: NewContext, server: Served) -> Page:
    """An empty page of 1440 pixels, logged in as admin."""
    return new_page(new_context(viewport={"width": 1440, "height": 900}), server)


def new_page(context: BrowserContext, server: Served, token: str | None = None) -> Page:
    """Return an empty page of a person who has filled in the form; who did so before still has the cookie."""
    person = server.url, token or server.ready["token"]
    context.set_default_timeout(NEVER_SECONDS * 1_000)
    page = context.new_page()
    if person in _cookies:
        context.add_cookies(_cookies[person])
        return page
    page.goto(f"{server.url}/login")
    page.fill("input[name=token]", person[1])
    page.click("form[data-login] button")
    page.wait_for_url(f"{server.url}/ui/")
    _cookies[person] = context.cookies()
    return page


def logged_in(context: BrowserContext, server: Served, token: str | None = None) -> Page:
    """Return the overview as that person sees it."""
    page = new_page(context, server, token)
    page.goto(f"{server.url}/ui/")
    return page


@pytest.fixture(scope="session")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with tasks, jobs, agents and a chat user."""
    with working(tmp_path_factory.mktemp("work")) as running:
        yield running
