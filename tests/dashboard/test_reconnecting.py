"""A page whose server dies says so, and catches up when it is back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.dashboard.conftest import logged_in
from tests.dashboard.server import furnish, served
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def test_a_page_says_that_it_reconnects_and_then_catches_up(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path) as server:
        furnish(server)
        context = browser.new_context()
        page = logged_in(context, server)
        shown = page.locator('main [data-live="totals.sent"]')
        expect(shown).to_have_text("11", timeout=10_000)
        [pid] = {part["pid"] for part in server.client.get("/status").json()["parts"] if part["name"] == "server"}

        os.kill(pid, signal.SIGKILL)

        expect(page.locator("[data-stream]")).to_have_text("Reconnecting …", timeout=10_000)
        expect(shown).to_have_text("11")
        eventually(lambda: server.client.get("/ready").status_code == 200)
        server.send("orders", "one more")
        expect(shown).to_have_text("12", timeout=20_000)
        expect(page.locator("[data-stream]")).to_be_hidden()
        context.close()
