"""The outbox in the browser: what it holds, and unblocking a key."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.dashboard.conftest import logged_in
from tests.dashboard.server import Served, served

from postroad.events import DomainEvent
from postroad.outbox import Outbox

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an outbox in which three keys are held back."""
    with Outbox.open(f"sqlite:///{tmp_path}/app.db") as outbox:
        outbox.init()
        connection = sqlite3.connect(tmp_path / "app.db")
        with connection:
            for key in ("tr_1", "tr_1", "tr_2", "tr_3"):
                event = DomainEvent(type="transfers.submitted", key={"transferId": key}, payload={"amount": 1})
                outbox.add(connection, event)
            connection.execute(
                "UPDATE outbox SET state = 'FAILED', lasterror = 'InvalidMessage: the topic refuses it', attempts = 10 "
                "WHERE seq IN (1, 3, 4)"
            )
        connection.close()
    return tmp_path


@pytest.fixture
def outbox(folder: Path) -> Iterator[Served]:
    with served(folder, POSTROAD_OUTBOX_DSN=f"sqlite:///{folder}/app.db") as server:
        yield server


@pytest.fixture
def page(browser: Browser, outbox: Served) -> Iterator[Page]:
    context = browser.new_context()
    yield logged_in(context, outbox)
    context.close()


def test_keys_that_are_held_back_are_listed_redriven_and_skipped(page: Page, outbox: Served) -> None:
    page.goto(f"{outbox.url}/ui/outbox")
    keys = outbox.client.get("/outbox").json()["keys"]["items"]
    lanes = page.locator("tr[data-key]").evaluate_all("all => all.map(row => row.dataset.key)")
    assert lanes == [key["lane"] for key in keys]
    assert len(keys) == 3
    expect(page.locator("[data-group] h3")).to_have_text("InvalidMessage")
    expect(page.locator("[data-count]")).to_have_text("3")

    first = page.locator("tr[data-key]").first
    first.get_by_text("Unblock").click()
    redrive = first.locator('form[data-action="outbox-redrive"]')
    expect(redrive).to_contain_text("pending again")
    redrive.locator("[name=reason]").fill("the topic is back")
    redrive.locator("button").click()
    expect(page.locator("[data-result]")).to_contain_text("1 event will be published again")

    row = page.locator("tr[data-key]").last
    row.get_by_text("Unblock").click()
    skip = row.locator('form[data-action="outbox-skip"]')
    skip.locator("[name=reason]").fill("refunded by hand")
    skip.locator("button").click()
    expect(page.locator("[data-result]")).to_contain_text("was given up; its key goes on")
    status = outbox.client.get("/outbox").json()["status"]
    assert (status["failed"], status["skipped"]) == (1, 1)
    actions = [record["action"] for record in outbox.audit()]
    assert actions == ["outbox.skip.end", "outbox.skip.start", "outbox.redrive.end", "outbox.redrive.start"]


def test_a_reason_is_needed_and_nothing_changes_without(page: Page, outbox: Served) -> None:
    page.goto(f"{outbox.url}/ui/outbox")
    form = page.locator('[data-group] form[data-action="outbox-redrive"]')
    page.locator("[data-group]").get_by_text("Unblock").click()
    form.evaluate("form => { form.noValidate = true; }")
    form.locator("button").click()

    expect(page.locator("[role=alert]")).to_contain_text("reason")
    assert outbox.client.get("/outbox").json()["status"]["failed"] == 3
