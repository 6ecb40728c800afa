"""The dashboard with the keyboard alone, and without JavaScript."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from tests.dashboard.conftest import NewContext, new_page
from tests.dashboard.server import PAGES, Served

pytestmark = pytest.mark.slow

FOCUSED = """() => {
  const element = document.activeElement;
  const style = getComputedStyle(element), over = getComputedStyle(element, "::after");
  const outlined = (found) => found.outlineStyle !== "none" && parseFloat(found.outlineWidth) >= 2;
  return [element.tagName, element.textContent.trim().slice(0, 40), outlined(style) || outlined(over)];
}"""


def test_the_first_tab_is_a_link_to_the_content(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/queues")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
    box = page.locator(".skip").bounding_box()
    assert box is not None
    assert box["x"] >= 0

    page.keyboard.press("Enter")

    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("path", ["/ui/", "/ui/queues/orders", "/ui/dead-letters"])
def test_everything_can_be_reached_and_shows_its_focus(page: Page, server: Served, path: str) -> None:
    page.goto(server.url + path)
    wanted = page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
            .filter((element) => element.type !== "hidden" && element.checkVisibility()).length"""
    )
    seen = 0
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        tag, text, outlined = page.evaluate(FOCUSED)
        if tag == "BODY":
            break
        seen += 1
        assert outlined, (tag, text)

    assert seen >= wanted


def test_slash_focuses_the_search_question_mark_lists_shortcuts_and_escape_closes_them(
    page: Page, server: Served
) -> None:
    page.goto(f"{server.url}/ui/queues")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.matches('[data-search]')")
    page.keyboard.type("?/")
    expect(page.locator("[data-search]")).to_have_value("?/")
    expect(page.locator("dialog[data-shortcuts]")).not_to_be_visible()
    page.locator("h1").click()

    page.keyboard.press("?")

    expect(page.locator("dialog[data-shortcuts]")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog[data-shortcuts]")).not_to_be_visible()


def test_slash_on_a_page_without_a_search_finds_queues_and_ids(page: Page, server: Served) -> None:
    for wanted, there in (
        ("orders", "/ui/queues/orders"),
        ("ord", "/ui/queues?name=ord"),
        ("0190b5b8-0000-7000-8000-000000000001", "/ui/events/0190b5b8-0000-7000-8000-000000000001"),
        ("a/../b", "/ui/events/a%2F..%2Fb"),
    ):
        page.goto(f"{server.url}/ui/")
        page.keyboard.press("/")
        page.keyboard.type(wanted)
        page.keyboard.press("Enter")
        page.wait_for_url(server.url + there)


def test_a_group_is_redriven_with_the_keyboard_alone(page: Page, server: Served) -> None:
    server.make_queue("keys-dlq")
    server.make_queue("keys", dead_letter="keys-dlq")
    server.fail("keys", 2, "ValueError: typed")
    page.goto(f"{server.url}/ui/dead-letters?queue=keys-dlq")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    def tab_to(selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches('{selector}')"):
                return
        raise AssertionError(selector)

    tab_to('[name="reason"]')
    page.keyboard.type("repaired")
    tab_to('[name="dry_run"]')
    page.keyboard.press("Enter")
    expect(page.locator("[data-result]")).to_contain_text("2 messages match and would move")
    tab_to('[name="confirm"]')
    page.keyboard.press("Enter")

    expect(page.locator("[data-operation]")).to_have_attribute("data-state", "done", timeout=20_000)


def test_without_javascript_every_page_can_be_read_and_every_form_works(
    new_context: NewContext, server: Served
) -> None:
    # With a session of its own, which it ends.
    page = new_page(new_context(java_script_enabled=False), server, server.token("admin"))
    for path, name in PAGES.items():
        page.goto(server.url + path)
        expect(page.locator(f'main[data-page="{name}"] h1')).to_be_visible()
    server.make_queue("plain-dlq")
    server.make_queue("plain", dead_letter="plain-dlq")
    server.fail("plain", 2, "ValueError: plain")

    page.goto(f"{server.url}/ui/dead-letters?queue=plain-dlq")
    page.locator('button[name="dry_run"]').click()
    expect(page.locator("[data-result]")).to_contain_text("2 messages match and would move to plain")
    page.locator('button[name="confirm"]').click()
    operation = page.locator("[data-operation]")
    # A browser without scripts loads the page again by itself; here the link does it.
    for _ in range(100):
        if operation.get_attribute("data-state") == "done":
            break
        page.get_by_role("link", name="Look again").click()
    expect(operation).to_contain_text("2 of 2 messages moved")

    page.goto(f"{server.url}/ui/queues/plain")
    page.get_by_text("Send a message").click()
    page.fill('form[data-action="send"] textarea', "without script")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("[data-result]")).to_contain_text("Sent message")
    page.get_by_text("Purge", exact=True).first.click()
    purge = page.locator('form[data-action="purge"]')
    purge.locator("[name=confirm]").fill("plain")
    purge.locator("[name=reason]").fill("test")
    purge.locator("button").click()
    expect(page.locator("[data-result]")).to_have_text(re.compile("Purged: 3 messages deleted"))

    page.goto(f"{server.url}/logout")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    page.goto(f"{server.url}/ui/")
    assert page.url.endswith("/login")
