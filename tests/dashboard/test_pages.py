"""What the pages show: the overview, queues, one queue, health and audit."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from tests.dashboard.server import PAGES, Served

pytestmark = pytest.mark.slow

LISTS = (
    *("/ui/", "/ui/queues", "/ui/dead-letters", "/ui/outbox", "/ui/tasks", "/ui/jobs", "/ui/events", "/ui/agents"),
    *("/ui/health", "/ui/map", "/ui/audit", "/ui/schedules", "/ui/workers", "/ui/notifications"),
)


def test_every_page_names_itself_and_links_all_lists(page: Page, server: Served) -> None:
    for path, name in PAGES.items():
        answer = page.goto(server.url + path)

        assert answer is not None
        assert answer.status == 200
        expect(page.locator("main#main")).to_have_attribute("data-page", name)
        assert page.locator("h1").count() == 1
        links = page.locator('nav[aria-label="Main"] a').evaluate_all("all => all.map(a => a.getAttribute('href'))")
        assert sorted(links) == sorted(LISTS)
        current = page.locator('nav[aria-label="Main"] [aria-current="page"]')
        assert current.get_attribute("href") == ("/ui/queues" if name == "queue" else path)


def test_the_overview_draws_three_charts_that_say_their_latest_value(page: Page, server: Served) -> None:
    server.send("orders", "drawn")
    page.goto(f"{server.url}/ui/?window=300")

    for kind in ("sent", "acked", "backlog"):
        chart = page.locator(f'svg[data-chart="{kind}"][role="img"]')
        assert chart.count() == 1
        label = chart.get_attribute("aria-label") or ""
        latest = (chart.get_attribute("data-values") or "").split()[-1]
        assert re.search(rf"\b{int(latest):,} latest", label), label
    expect(page.locator('svg[data-chart="sent"] path')).to_have_attribute("d", re.compile("^M"), timeout=60_000)
    expect(page.locator(".switch [aria-current]")).to_have_text("5 min")


def test_the_overview_shows_the_last_hour_unless_another_window_is_chosen(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/")
    expect(page.locator(".switch [aria-current]")).to_have_text("1 h")

    page.get_by_role("link", name="24 h").click()

    expect(page.locator(".switch [aria-current]")).to_have_text("24 h")
    expect(page.locator("figure .axis").first).to_contain_text("1 d ago")


def test_numbers_change_without_reload_and_equal_those_of_the_api(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/?window=300")
    page.evaluate("window.stays = true")
    shown = page.locator('main [data-live="totals.sent"]')
    # The page may be a second older than what was sent before it.
    expect(shown).to_have_text(f"{server.sent():,}", timeout=60_000)
    server.send("orders", "one", "two", "three")

    expect(shown).to_have_text(f"{server.sent():,}", timeout=60_000)

    assert page.evaluate("window.stays") is True
    expect(page.locator('nav [data-tally="backlog.visible"]')).to_have_text(
        f"{server.client.get('/overview').json()['backlog']['visible']:,}"
    )
    chart = page.locator('svg[data-chart="sent"]')
    total = sum(server.client.get("/overview?window=300").json()["series"]["sent"])
    expect(chart).to_have_attribute("aria-label", re.compile(rf"Sent: {total:,} in the last 5 min"))


def test_attention_items_lead_to_the_place_of_repair_and_appear_by_themselves(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/")
    server.make_queue("parcels-dlq")
    server.make_queue("parcels", dead_letter="parcels-dlq")
    server.fail("parcels", 1, "OSError: the printer has no paper")
    item = page.locator('[data-attention="dead-letters"]', has_text="1 dead letter in parcels-dlq")

    item.click(timeout=60_000)

    page.wait_for_url("**/ui/dead-letters?queue=parcels-dlq")
    expect(page.locator("[data-group] h3")).to_have_text("OSError")
    server.client.post("/queues/parcels-dlq/purge", json={"confirm": "parcels-dlq", "reason": "test"})
    page.goto(f"{server.url}/ui/")
    expect(item).to_have_count(0, timeout=60_000)


def test_queues_have_numbers_and_sparklines_and_rows_can_be_clicked_whole(page: Page, server: Served) -> None:
    server.make_queue("clicks")
    server.send("clicks", "one", "two")
    page.wait_for_timeout(1_100)
    page.goto(f"{server.url}/ui/queues")
    row = page.locator('tr[data-queue="clicks"]')

    expect(row.locator("svg.spark")).to_have_attribute("aria-label", "2 sent in the last 10 minutes")
    expect(row.locator('[data-label="Visible"]')).to_have_text("2")
    # The link of the row lies over its cells.
    row.locator('[data-label="Delayed"]').click(force=True)

    page.wait_for_url("**/ui/queues/clicks")
    expect(page.locator("h1")).to_have_text("clicks")


def test_queues_are_found_by_the_beginning_of_their_names(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/queues")
    page.fill("[data-search]", "order")
    page.press("[data-search]", "Enter")

    page.wait_for_url("**name=order")
    names = page.locator("tr[data-queue]").evaluate_all("all => all.map(row => row.dataset.queue)")
    assert set(names) == {"orders", "orders-dlq"}
    page.goto(f"{server.url}/ui/queues?name=nothing")
    expect(page.locator(".empty")).to_contain_text("No queue has a name that begins with")


def test_a_queue_shows_its_messages_without_payload_until_asked_and_that_is_recorded(
    page: Page, server: Served
) -> None:
    server.make_queue("secrets-q")
    server.send("secrets-q", "<script>document.title = 'hacked'</script>\u202e")
    page.goto(f"{server.url}/ui/queues/secrets-q")
    assert "hacked" not in page.content()

    page.get_by_role("link", name="Show payloads").click()

    page.wait_for_url("**payload=1")
    expect(page.locator("pre.payload")).to_have_text("<script>document.title = 'hacked'</script>\\u202e")
    assert page.title() == "secrets-q · Postroad"
    record = server.audit()[0]
    assert (record["action"], record["target"], record["actor"]) == ("queue.peek", "secrets-q", "admin")
    assert record["detail"]["request_id"]


def test_a_message_is_sent_purged_and_the_queue_deleted_by_forms(page: Page, server: Served) -> None:
    server.make_queue("forms")
    page.goto(f"{server.url}/ui/queues/forms")
    page.get_by_text("Send a message").click()
    page.fill('form[data-action="send"] textarea', "by hand")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("[data-result]")).to_contain_text("Sent message")
    expect(page.locator("tr[data-message]")).to_have_count(1)

    page.get_by_text("Purge", exact=True).first.click()
    purge = page.locator('form[data-action="purge"]')
    expect(purge).to_contain_text("Deletes 1 message for good")
    purge.locator("[name=confirm]").fill("wrong")
    purge.locator("[name=reason]").fill("test")
    purge.locator("button").click()
    expect(page.locator("[role=alert]")).to_contain_text("is not")
    assert server.client.get("/queues/forms").json()["visible"] == 1
    page.get_by_text("Purge", exact=True).first.click()
    purge.locator("[name=confirm]").fill("forms")
    purge.locator("[name=reason]").fill("test")
    purge.locator("button").click()
    expect(page.locator("[data-result]")).to_contain_text("Purged: 1 message")

    page.get_by_text("Delete", exact=True).first.click()
    delete = page.locator('form[data-action="delete"]')
    delete.locator("[name=confirm]").fill("forms")
    delete.locator("[name=reason]").fill("done")
    delete.locator("button").click()
    page.wait_for_url("**/ui/queues?deleted=forms")
    expect(page.locator("[data-result]")).to_contain_text("The queue forms was deleted")
    assert server.client.get("/queues/forms").status_code == 404
    actions = [record["action"] for record in server.audit() if record["target"] == "forms"]
    assert actions == ["queue.delete", "queue.purge.end", "queue.purge.start", "queue.send", "queue.create"]


def test_health_shows_every_part_and_the_audit_every_change(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/health")
    names = page.locator("tr[data-part]").evaluate_all("all => all.map(row => row.dataset.part)")
    assert set(names) == {part["name"] for part in server.client.get("/status").json()["parts"]}
    expect(page.locator('tr[data-part="worker"]')).to_have_attribute("data-state", "running")

    page.goto(f"{server.url}/ui/audit")
    newest = server.audit()[0]
    expect(page.locator(f'tr[data-seq="{newest["seq"]}"]')).to_contain_text(newest["action"])


def test_times_are_relative_with_the_exact_time_beside_them(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/queues/orders")
    shown = page.locator("time").first

    assert re.fullmatch(r"now|\d+ \w+ ago", shown.inner_text())
    exact = shown.get_attribute("datetime") or ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", exact)
    assert shown.get_attribute("title") == exact


def test_what_does_not_exist_is_a_page_with_a_remedy(page: Page, server: Served) -> None:
    answer = page.goto(f"{server.url}/ui/queues/ordrs")

    assert answer is not None
    assert answer.status == 404
    expect(page.locator("main")).to_contain_text('queue "ordrs" does not exist')
    expect(page.locator("main")).to_contain_text('Did you mean "orders"?')
    assert page.locator("nav").count() == 1


def test_an_unknown_page_says_so_once(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/nothing")

    assert page.locator("main").inner_text().lower().count("there is nothing at this address") == 1
