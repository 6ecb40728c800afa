"""No page points at something that is not there, and the navigation of the site has every page."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT

ENTRIES = {
    "Start": ["Why Postroad", "Quickstart", "Tutorial: a shop in 20 minutes"],
    "Guides": [
        *("Events", "Bus", "Async", "Sessions and request/response", "Outbox and inbox", "Tasks", "Schedules", "Jobs"),
        *("Agents", "Notifications", "Dead letters and redrive", "Testing your code", "Going to AWS", "Deploying"),
        "Upgrading",
    ],
    "Reference": ["CLI", "HTTP", "Settings", "Errors", "Events and metrics", "Python API"],
    "Operations": ["Runbooks", "Alerts", "Backup and restore", "Capacity", "Security"],
    "Inside": ["Map", "Engine", "Decisions", "Benchmarks", "Proof"],
    "Coming from": ["Celery", "FastStream", "Home-made SQS loops", "dramatiq, huey, Temporal and DBOS"],
}
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The places of a page that a link can name."""
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in _HEADING.findall(page.read_text()))
    return {heading.replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    return [
        link
        for link in _LINK.findall(page.read_text())
        if not link.startswith("http") and not leads_somewhere(page, link)
    ]


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = (link.partition("#")[0] for link in _LINK.findall(page.read_text()) if not link.startswith("http"))
        waiting += [(page.parent / link).resolve() for link in links if link]

    assert set(PAGES) <= reached


def named(nav: object) -> Iterator[str]:
    """Yield the pages that the navigation names, however deep."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list | dict):
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from named(each)


def test_the_navigation_has_every_page_once() -> None:
    """Decisions are listed on a page of their own."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    docs = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    decisions = {page for page in docs if page.startswith("decisions/0")}

    pages = list(named(nav))

    assert sorted(pages) == sorted(docs - decisions)


def test_the_navigation_has_the_entries_that_readers_look_for() -> None:
    """An entry may hold several pages; further pages stand below the entry that they belong to."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]

    found = {title: [name for entry in entries for name in entry] for part in nav for title, entries in part.items()}

    assert found == ENTRIES
    assert list(found) == list(ENTRIES)
