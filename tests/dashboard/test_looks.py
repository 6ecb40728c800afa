"""How pages look: themes, contrast, widths, weight, empty states."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.dashboard.conftest import NewContext, logged_in, new_page
from tests.dashboard.server import PAGES, Served, served

from postroad.dashboard import asset

pytestmark = pytest.mark.slow

CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((value, at) => (at === 3 ? value / 255 : value));
  };
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
  const background = (element) => {
    const found = [];
    for (let each = element; each; each = each.parentElement) found.push(rgba(getComputedStyle(each).backgroundColor));
    return found.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (!text || !element.checkVisibility({ visibilityProperty: true })) continue;
    const below = background(element), style = getComputedStyle(element);
    const color = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [light(over(rgba(color), below)), light(below)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${element.tagName} ${text.slice(0, 40)}`);
  }
  return low;
}"""


TEXT_LINES = """cells => cells.map(cell => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return new Set([...text.getClientRects()].map(part => Math.round(part.top))).size;
})"""
LINES = "each => each.map(one => Math.round(one.clientHeight / parseFloat(getComputedStyle(one).lineHeight)))"


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_scrolls_sideways_and_all_text_can_be_read(
    new_context: NewContext, server: Served, theme: str, width: int
) -> None:
    page = new_page(new_context(color_scheme=theme, viewport={"width": width, "height": 900}), server)
    wrong: list[str] = []

    for path in (*PAGES, "/ui/queues/orders?payload=1", "/ui/queues/none", "/logout"):
        page.goto(server.url + path)
        page.locator("main details").evaluate_all("all => all.forEach((details) => { details.open = true; })")
        wrong += [f"{path}: {low}" for low in page.evaluate(CONTRASTS)]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wrong.append(f"{path}: scrolls sideways")

    assert wrong == []


def test_the_login_page_can_be_read_in_both_themes(new_context: NewContext, server: Served) -> None:
    for theme in ("light", "dark"):
        page = new_context(color_scheme=theme, viewport={"width": 390, "height": 800}).new_page()
        page.goto(f"{server.url}/login")
        assert page.evaluate(CONTRASTS) == []


def test_the_theme_follows_the_system_until_one_is_chosen_and_is_remembered(
    new_context: NewContext, server: Served
) -> None:
    page = logged_in(new_context(color_scheme="dark"), server)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.evaluate("document.documentElement.dataset.theme") is None

    page.locator("button[data-theme-toggle]").click()

    assert page.locator("html").get_attribute("data-theme") == "light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.locator("button[data-theme-toggle]").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_tables_are_cards_on_narrow_screens_and_the_navigation_is_at_the_bottom(
    new_context: NewContext, server: Served
) -> None:
    page = new_page(new_context(viewport={"width": 390, "height": 844}), server)
    page.goto(f"{server.url}/ui/queues")

    assert page.locator('tr[data-queue="orders"]').evaluate("row => getComputedStyle(row).display") == "flex"
    nav = page.locator("header.side").bounding_box()
    assert nav is not None
    assert nav["y"] + nav["height"] == 844
    audit = page.locator('nav a[href="/ui/audit"]')
    expect(audit).not_to_be_visible()
    page.get_by_text("More", exact=True).click()
    audit.click()
    page.wait_for_url("**/ui/audit")


def test_wide_screens_are_used_and_numbers_are_tabular(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/queues")

    table = page.locator("table").bounding_box()
    assert table is not None
    assert table["width"] > 1_100
    assert page.evaluate("getComputedStyle(document.body).fontVariantNumeric") == "tabular-nums"
    cell = page.locator('tr[data-queue="orders"] td.num').first
    assert cell.evaluate("cell => getComputedStyle(cell).textAlign") == "right"
    assert page.locator("thead th").first.evaluate("head => getComputedStyle(head).position") == "sticky"


def test_nothing_moves_whether_or_not_less_motion_is_wanted(page: Page, server: Served) -> None:
    page.goto(f"{server.url}/ui/")
    sent = page.locator('main [data-live="totals.sent"]')
    before = sent.inner_text()

    server.send("orders", "one more")
    expect(sent).not_to_have_text(before, timeout=60_000)

    assert page.evaluate("document.getAnimations().length") == 0
    style = asset("style.css")
    assert style is not None
    assert not re.search(rb"animation|transition|@keyframes", style[0])


def test_red_is_for_dead_letters_and_failures_only(page: Page, server: Served) -> None:
    server.make_queue("calm")
    server.send("calm", "one")
    page.goto(f"{server.url}/ui/queues/calm")
    page.locator("main details").evaluate_all("all => all.forEach(each => { each.open = true; })")

    red = page.evaluate(
        """() => {
            const probe = document.body.appendChild(document.createElement("i"));
            probe.className = "bad";
            const red = getComputedStyle(probe).color;
            probe.remove();
            return [...document.querySelectorAll("main *")].filter((each) => getComputedStyle(each).color === red)
                .map((each) => each.textContent);
        }"""
    )

    assert red == []


def test_the_overview_weighs_at_most_150_kb_and_the_script_less_than_20(server: Served) -> None:
    page = server.client.get("/ui/").content
    style, script = asset("style.css"), asset("script.js")
    assert style is not None
    assert script is not None

    print(len(page), len(style[0]), len(script[0]))
    assert len(page) + len(style[0]) + len(script[0]) <= 150_000
    assert len(script[0]) < 20_000
    assert httpx.get(f"{server.url}/static/favicon.svg", verify=False).headers["content-type"] == "image/svg+xml"


def test_the_audit_keeps_the_names_of_actions_targets_and_people_whole(page: Page, server: Served) -> None:
    server.make_queue("audited-with-a-long-name")
    purge = {"confirm": "audited-with-a-long-name", "reason": "orders of the old shop " * 20}
    server.client.post("/queues/audited-with-a-long-name/purge", json=purge).raise_for_status()

    page.goto(f"{server.url}/ui/audit")

    row = page.locator("tr[data-seq]", has_text="orders of the old shop").first
    lines = row.locator("[data-label=Action], [data-label=Target], [data-label=Who]").evaluate_all(TEXT_LINES)
    assert lines == [1, 1, 1]


def test_an_empty_server_says_on_every_page_what_would_appear_and_how(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path) as empty:
        page = logged_in(browser.new_context(viewport={"width": 390, "height": 844}), empty)
        expect(page.locator("[data-attentions] .well")).to_have_text("All well. Nothing needs attention.")
        for path in ("/ui/dead-letters", "/ui/outbox", "/ui/audit", "/ui/health", "/ui/queues?name=x"):
            page.goto(empty.url + path)
            assert page.locator(".empty").count() >= 1, path
        for path in ("/ui/dead-letters", "/ui/outbox", "/ui/audit", "/ui/health"):
            page.goto(empty.url + path)
            assert "postroad " in " ".join(page.locator(".empty code").all_inner_texts()), path
            assert set(page.locator(".empty code span").evaluate_all(LINES)) == {1}, path
        page.context.close()
