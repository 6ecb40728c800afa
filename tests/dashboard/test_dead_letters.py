"""Dead letters in the browser: groups, a dry run that changes nothing, and a redrive with its progress."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from tests.dashboard.conftest import NewContext, new_page
from tests.dashboard.server import Served

pytestmark = pytest.mark.slow


def groups_of(server: Served, queue: str) -> dict[str, int]:
    found = server.client.get(f"/queues/{queue}/groups").json()["items"]
    return {group["fingerprint"]: group["count"] for group in found}


def letters(server: Served, name: str) -> str:
    """A queue of its own with dead letters in two groups; the name of its dead-letter queue."""
    server.make_queue(f"{name}-dlq")
    server.make_queue(name, dead_letter=f"{name}-dlq")
    server.fail(name, 3, "ValueError: the amount is negative [ledger.py:book]")
    server.fail(name, 1, "TimeoutError: no answer <b>at all</b> [warehouse.py:reserve]")
    return f"{name}-dlq"


def test_groups_are_listed_as_the_api_counts_them_with_type_message_place_and_samples(
    page: Page, server: Served
) -> None:
    queue = letters(server, "refunds")
    page.goto(f"{server.url}/ui/dead-letters?queue={queue}")

    shown = page.locator("[data-group]").evaluate_all(
        "all => all.map(g => [g.dataset.group, Number(g.querySelector('[data-count]').textContent)])"
    )
    assert dict(shown) == groups_of(server, queue)
    first = page.locator("[data-group]").first
    expect(first.locator("h3")).to_have_text("ValueError")
    expect(first.locator(".message")).to_have_text("the amount is negative")
    expect(first.locator("code")).to_have_text("ledger.py:book")
    expect(first).to_contain_text("refunds")
    expect(first.locator("time")).to_have_count(2)
    sample = first.locator('a[href^="/ui/events/"]').first.get_attribute("href") or ""
    assert server.client.get("/why/" + sample.rpartition("/")[2]).status_code in (200, 404)
    expect(page.locator("[data-group]").nth(1)).to_contain_text("no answer <b>at all</b>")


def test_a_group_shows_the_traceback_of_a_sample_folded_and_so_does_its_story(page: Page, server: Served) -> None:
    server.make_queue("crates-dlq")
    server.make_queue("crates", dead_letter="crates-dlq")
    traceback = 'Traceback (most recent call last):\n  File "depot.py", line 7, in weigh\nValueError: too <i>heavy</i>'
    server.fail("crates", 1, f"ValueError: too <i>heavy</i> [depot.py:weigh]\n{traceback}")
    page.goto(f"{server.url}/ui/dead-letters?queue=crates-dlq")
    group = page.locator("[data-group]")
    expect(group.locator("pre")).to_be_hidden()

    group.locator("summary", has_text="Traceback").click()

    expect(group.locator("pre")).to_contain_text('File "depot.py", line 7, in weigh')
    group.locator('a[href^="/ui/events/"]').first.click()
    failure = page.locator("[data-error]")
    expect(failure.locator(".failure-message")).to_have_text("too <i>heavy</i>")
    expect(failure).to_contain_text("depot.py:7 in weigh")
    expect(failure.locator("pre")).to_be_hidden()


def test_a_dry_run_counts_and_changes_nothing_and_then_a_redrive_shows_its_progress(page: Page, server: Served) -> None:
    queue = letters(server, "invoices")
    before = groups_of(server, queue)
    page.goto(f"{server.url}/ui/dead-letters?queue={queue}")
    form = page.locator("[data-group]").first.locator('form[data-action="redrive"]')
    assert form.locator('button[name="confirm"]').count() == 0

    form.locator('[name="reason"]').fill("the ledger is repaired")
    form.locator('button[name="dry_run"]').click()

    expect(page.locator("[data-result]")).to_contain_text(
        "3 messages match and would move to invoices. Nothing was changed."
    )
    assert groups_of(server, queue) == before
    expect(form.locator('[name="reason"]')).to_have_value("the ledger is repaired")

    form.locator('button[name="confirm"]').click()

    operation = page.locator("[data-operation]")
    expect(operation).to_have_attribute("data-state", "done", timeout=20_000)
    expect(operation).to_contain_text("Redriven: 3 of 3 messages moved")
    expect(operation.locator("progress")).to_have_attribute("value", "3")
    assert server.client.get(f"/operations/{operation.get_attribute('data-operation')}").json()["moved"] == 3
    assert sorted(groups_of(server, queue).values()) == [1]
    # What is left is counted again without a reload.
    expect(page.locator("[data-group] [data-count]")).to_have_text("1")
    start = next(record for record in server.audit() if record["action"] == "queue.redrive.start")
    assert (start["target"], start["actor"]) == (queue, "admin")
    assert start["detail"]["reason"] == "the ledger is repaired"


def test_without_javascript_a_redrive_shows_its_progress_and_its_end_by_itself(
    new_context: NewContext, server: Served
) -> None:
    queue = letters(server, "depots")
    page = new_page(new_context(java_script_enabled=False), server)
    page.goto(f"{server.url}/ui/dead-letters?queue={queue}")
    form = page.locator("[data-group]").first.locator('form[data-action="redrive"]')
    form.locator('[name="reason"]').fill("the depot is repaired")
    form.locator('[name="rate"]').fill("2")
    form.locator('button[name="dry_run"]').click()

    form.locator('button[name="confirm"]').click()

    operation = page.locator("[data-operation]")
    expect(operation).to_contain_text(re.compile("Redriving: (counting the messages|. of 3 messages moved)"))
    expect(operation).to_contain_text("Redriven: 3 of 3 messages moved")


def test_bounds_are_obeyed_and_wrong_ones_explained(page: Page, server: Served) -> None:
    queue = letters(server, "returns")
    page.goto(f"{server.url}/ui/dead-letters?queue={queue}")
    form = page.locator("[data-group]").first.locator('form[data-action="redrive"]')
    form.locator('[name="limit"]').fill("2")
    form.locator('button[name="dry_run"]').click()
    expect(page.locator("[data-result]")).to_contain_text("3 messages match; 2 would move to returns.")

    form.evaluate("form => { form.noValidate = true; form.limit.value = '0'; }")
    form.locator('button[name="dry_run"]').click()

    expect(page.locator("[role=alert]")).to_contain_text("limit")
    assert sum(groups_of(server, queue).values()) == 4


def test_a_page_examines_some_messages_and_leads_to_the_next(page: Page, server: Served) -> None:
    server.make_queue("many-dlq")
    server.make_queue("many", dead_letter="many-dlq")
    for _ in range(3):
        server.fail("many", 100, "ValueError: again")

    page.goto(f"{server.url}/ui/dead-letters?queue=many-dlq")
    expect(page.locator("main")).to_contain_text("The oldest 110 of 300 were examined")
    expect(page.locator("[data-count]")).to_have_text("110")
    page.get_by_role("link", name="Examine the next").click()

    expect(page.locator("main")).to_contain_text("111 to 220 of 300 were examined")
    page.get_by_role("link", name="Examine the next").click()
    expect(page.locator("[data-count]")).to_have_text("80")
    expect(page.get_by_role("link", name="Begin again")).to_be_visible()
    server.client.post("/queues/many-dlq/purge", json={"confirm": "many-dlq", "reason": "test"})


def test_a_group_without_a_recorded_error_says_so(page: Page, server: Served) -> None:
    server.make_queue("silent-dlq")
    server.make_queue("silent", dead_letter="silent-dlq", max_receives=1, visibility=0)
    server.send("silent", "nobody knows")
    for _ in range(3):
        server.client.post("/queues/silent/leases", json={"visibility": 0})

    page.goto(f"{server.url}/ui/dead-letters?queue=silent-dlq")

    expect(page.locator("[data-group] h3")).to_have_text(re.compile("no error recorded"))
