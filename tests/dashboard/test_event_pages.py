"""The journal, stories, notifications and the map in the browser."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Page, expect
from tests.dashboard.conftest import NewContext, new_page
from tests.dashboard.server import Served
from tests.dashboard.work import HOSTILE, SHOWN, submit
from tests.waiting import eventually

from postroad.dashboard import Chrome, map_drawing, place_of, render
from postroad.dashboard.drawings import MOST_MAPPED, fitted
from postroad.dashboard.stories import failure_of, later, next_of, said, visible
from postroad.journal import Step, Story
from postroad.notifications import UserShown
from postroad.notifications.users import DeviceShown, PushShown
from postroad.views import Map, MapEdge, MapNode, Timeline

BROWSER = pytest.mark.slow
NOW = datetime(2030, 1, 31, 8, 0, tzinfo=UTC)
INDEXES = {
    (): "PK",
    ("entity",): "GSI1",
    ("app",): "GSI2",
    ("app", "entity"): "GSI3",
    ("type",): "GSI4",
    ("entity", "type"): "GSI5",
    ("app", "type"): "GSI6",
    ("app", "entity", "type"): "GSI7",
}
EVENTS = "rows => rows.map(row => row.dataset.event)"
FILTERS = {"entity": "TASK#five.price-check", "app": "postroad", "type": "Task Failed"}


@pytest.fixture
def page(new_context: NewContext, works: Served) -> Page:
    """An empty page of 1440 pixels without JavaScript, logged in as admin."""
    return new_page(new_context(viewport={"width": 1440, "height": 900}, java_script_enabled=False), works)


@BROWSER
def test_the_journal_is_searched_with_every_combination_of_filters(page: Page, works: Served) -> None:
    for names, index in INDEXES.items():
        page.goto(f"{works.url}/ui/events")
        for name in names:
            page.fill(f"input[name={name}]", FILTERS[name])
        page.fill("input[name=from]", "2020-01-01")
        page.get_by_role("button", name="Search").last.click()

        expect(page.locator("[data-index]")).to_have_attribute("data-index", index)
        rows = page.locator("tr[data-event]")
        expect(rows.first).to_be_visible()
        asked = {name: FILTERS[name] for name in names} | {"limit": "50"}
        answer = works.client.get("/timeline", params=asked).json()
        assert answer["index"] == index
        assert rows.evaluate_all(EVENTS) == [item["event_id"] for item in answer["items"]]


@BROWSER
def test_an_event_leads_to_its_story_and_so_does_an_id(page: Page, works: Served) -> None:
    page.goto(f"{works.url}/ui/events?{urlencode({'type': 'Task Failed', 'entity': 'TASK#five.price-check'})}")
    page.locator("tr[data-event] a").click()
    page.wait_for_url(f"{works.url}/ui/events/five.price-check")

    page.goto(f"{works.url}/ui/events")
    page.fill("input[name=id]", "  five.price-check ")
    page.get_by_role("button", name="Search").first.click()

    page.wait_for_url(f"{works.url}/ui/events/five.price-check")


@BROWSER
def test_the_summary_of_a_story_does_not_repeat_its_heading(page: Page, works: Served) -> None:
    page.goto(f"{works.url}/ui/events/five.price-check")

    expect(page.locator("h1")).to_contain_text("five.price-check")
    expect(page.locator("[data-summary]")).not_to_contain_text("five.price-check")


@BROWSER
def test_the_next_page_keeps_the_filters(page: Page, works: Served) -> None:
    for number in range(50):
        submit(works, f"listed-{number}")
    page.goto(f"{works.url}/ui/events?app=postroad")
    first = page.locator("tr[data-event]").evaluate_all(EVENTS)

    page.get_by_role("link", name="Next page").click()

    assert page.locator("[data-index]").get_attribute("data-index") == "GSI2"
    following = page.locator("tr[data-event]").evaluate_all(EVENTS)
    assert following
    assert not set(first) & set(following)


@BROWSER
def test_a_wrong_filter_is_refused_beside_the_form_that_holds_it(page: Page, works: Served) -> None:
    for path, name in (("/ui/events", "from"), ("/ui/tasks", "since")):
        answer = page.goto(f"{works.url}{path}?{name}=yesterday")

        assert answer is not None
        assert answer.status == 400
        expect(page.locator('main [role="alert"]')).to_contain_text("'yesterday' is not a time")
        expect(page.locator(f"input[name={name}]")).to_have_value("yesterday")


@BROWSER
def test_an_unknown_id_is_404_with_a_remedy(page: Page, works: Served) -> None:
    answer = page.goto(f"{works.url}/ui/events/{quote(HOSTILE.replace('/', ''), safe='')}")

    assert answer is not None
    assert answer.status == 404
    expect(page.locator("main")).to_contain_text("nothing is known of")
    expect(page.locator("main")).to_contain_text("Give the id of an event")


@BROWSER
def test_the_story_of_a_failed_task_says_what_where_how_often_and_what_to_do(page: Page, works: Served) -> None:
    page.goto(f"{works.url}/ui/events/five.price-check")

    story = works.client.get("/why/five.price-check").json()
    expect(page.locator("h1 [data-verdict]")).to_have_attribute("data-verdict", "failed")
    expect(page.locator("[data-step]")).to_have_count(len(story["steps"]))
    error = page.locator("[data-error]")
    expect(error.locator(".failure-type")).to_have_text("ConnectionError")
    expect(error.locator(".failure-message")).to_have_text(f"store price-check answered 503: {SHOWN}")
    expect(error).to_contain_text("shop_tasks.py:")
    expect(error).to_contain_text("scrape_store")
    expect(error.locator("pre").first).to_be_hidden()
    error.locator("summary", has_text="Traceback").click()
    expect(error.locator("pre").first).to_contain_text("in fetch")
    expect(error).to_contain_text("First seen")
    assert {each.get_attribute("data-related") for each in page.locator("[data-related]").all()} == {
        each["id"] for each in story["related"]
    }
    expect(page.locator("[data-next]")).to_contain_text("postroad job resume five")
    assert page.locator("[data-next] form").get_attribute("action") == "/ui/jobs/five/resume"
    page.locator('[data-related="five"] a').click()
    page.wait_for_url(f"{works.url}/ui/jobs/five")


@BROWSER
def test_the_story_of_a_dead_letter_leads_to_its_queue(page: Page, works: Served) -> None:
    works.make_queue("mourned-dlq")
    works.make_queue("mourned", dead_letter="mourned-dlq", max_receives=1)
    works.fail("mourned", 1, f"ValueError: {HOSTILE} [orders.py:handle_order]")
    [dead] = works.client.get("/queues/mourned-dlq/messages").json()["items"]

    page.goto(f"{works.url}/ui/events/{dead['message_id']}")

    expect(page.locator("h1 [data-verdict]")).to_have_attribute("data-verdict", "dead")
    expect(page.locator("[data-error] .failure-type")).to_have_text("ValueError")
    expect(page.locator("[data-error]")).to_contain_text("handle_order")
    expect(page.locator("[data-next]")).to_contain_text("redrive queue mourned-dlq")
    assert page.locator("[data-next] a").get_attribute("href") == "/ui/dead-letters?queue=mourned-dlq"
    assert "doomed" not in page.content()


@BROWSER
def test_a_user_is_found_with_devices_waiting_messages_and_results(page: Page, works: Served) -> None:
    page.goto(f"{works.url}/ui/notifications")
    page.fill("input[name=user]", "ann")
    page.get_by_role("button", name="Search").click()

    expect(page.locator("tr[data-device]")).to_have_count(1)
    expect(page.locator('tr[data-pending="m1"]')).to_be_visible()
    assert "phone-token" not in page.content()
    page.fill("input[name=user]", HOSTILE)
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".empty")).to_contain_text("nothing is known of user")


@BROWSER
def test_the_map_draws_what_is_connected_and_each_box_is_a_link(page: Page, works: Served) -> None:
    def draws_the_document() -> bool:
        page.goto(f"{works.url}/ui/map")
        document = works.client.get("/map").json()
        drawn = {each.get_attribute("data-node") for each in page.locator("svg[data-map] g[data-node]").all()}
        listed = {each.get_attribute("data-rest") for each in page.locator("[data-rest]").all()}
        connected = {end for edge in document["edges"] for end in (edge["from"], edge["to"])}
        return drawn == connected and drawn | listed == {node["id"] for node in document["nodes"]}

    # What is drawn was measured a moment ago, when another test had not made its queues yet.
    eventually(draws_the_document)
    page.locator('g[data-node="queue:tasks"] a').click()
    page.wait_for_url(f"{works.url}/ui/queues/tasks")


def test_a_map_of_very_many_things_draws_the_busy_ones_and_lists_the_rest() -> None:
    queues = [MapNode(f"queue:q{number}", "queue", f"q{number}", number) for number in range(300)]
    ways = [MapEdge(f"queue:q{number}", f"queue:q{number + 1}", "dead_letter") for number in range(299)]

    drawing, rest = map_drawing(Map(queues, ways))

    assert drawing is not None
    assert len(drawing.nodes) == MOST_MAPPED
    assert "queue:q299" in drawing.nodes
    assert len(rest) == 300 - MOST_MAPPED


def test_each_thing_on_the_map_has_a_page() -> None:
    assert place_of(MapNode("queue:a b", "queue", "a b")) == "/ui/queues/a%20b"
    assert place_of(MapNode("handler:task:scrape", "handler", "scrape")) == "/ui/tasks?name=scrape"
    assert place_of(MapNode("handler:orders:OrderPlaced", "handler", "OrderPlaced")) == "/ui/queues/orders"
    assert place_of(MapNode("agent:ann", "agent", "ann")) == "/ui/agents?agent=ann"
    assert place_of(MapNode("outbox", "outbox", "outbox")) == "/ui/outbox"


def test_long_labels_are_shortened_by_their_width() -> None:
    assert fitted("orders", 8) == "orders"
    assert fitted("compile-result", 8) == "compile…"
    assert fitted("倉庫の在庫", 8) == "倉庫の…"


def test_pushes_and_dropped_devices_are_shown_without_tokens() -> None:
    device = DeviceShown(
        token_hash="a" * 64, platform="fcm", registered_at=NOW, dropped_at=NOW, drop_reason=f"gone {HOSTILE}"
    )
    push = PushShown(
        push_id="p1",
        token_hash="a" * 64,
        outcome="dead_token",
        attempts=2,
        status=410,
        reason="Unregistered",
        provider_id=None,
        updated_at=NOW,
    )
    user = UserShown(user_id="ann", devices=[device], pending=[], pending_total=0, results=[push])

    text = render("notifications", Chrome(version="1", now=NOW), doc=user, user="ann", problem=None)

    assert "dead token" in text
    assert "&lt;script&gt;" in text
    assert "\\u202e" in text
    assert "<script>alert" not in text


def story(verdict: str, *steps: Step, following: str = "nothing: done") -> Story:
    return Story(id="x", kind="message", verdict=verdict, summary="x", steps=list(steps), next=following)  # type: ignore[arg-type]


def failed(at: str, detail: str | None, **given: object) -> Step:
    return Step(at=at, what="failed", ok=False, detail=detail, where="orders", **given)  # type: ignore[arg-type]


def test_equal_failures_are_counted_from_the_first_to_the_last() -> None:
    steps = [failed(f"2030-01-31T08:00:0{second}Z", "ValueError: no order 7 [orders.py:handle]") for second in range(3)]

    dead = Step(at="2030-01-31T08:00:03Z", what="dead", ok=False, detail=steps[-1].detail, where="orders")

    found = failure_of(story("dead", failed("2030-01-31T07:00:00Z", "OSError: disk"), *steps, dead))

    assert found is not None
    assert (found.type, found.message) == ("ValueError", "no order 7")
    assert (found.place, found.handler, found.where) == ("orders.py", "handle", "orders")
    assert (found.count, found.first_at, found.last_at) == (3, "2030-01-31T08:00:00Z", "2030-01-31T08:00:02Z")


def test_a_story_that_ended_well_shows_no_failure() -> None:
    assert failure_of(story("handled", failed("2030-01-31T08:00:00Z", "ValueError: x"))) is None
    assert failure_of(story("dead")) is None


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        ("max-retries: Max retries exhausted: ConnectionError: no answer", ("ConnectionError", "no answer")),
        ("ValueError: a [orders.py:handle]", ("ValueError", "a")),
        ("unknown task 'x'", ("unknown task 'x'", "")),
        (None, ("no error recorded", "")),
    ],
)
def test_an_error_is_split_into_type_and_message(error: str | None, parts: tuple[str, str]) -> None:
    assert said(error) == parts


@pytest.mark.parametrize(
    ("text", "action", "href", "command"),
    [
        ("run it again: postroad task retry a.b", "/ui/tasks/a.b/retry", None, "postroad task retry a.b"),
        ("run it again: postroad job resume j", "/ui/jobs/j/resume", None, "postroad job resume j"),
        ("postroad agent redrive ann", "/ui/agents/ann/redrive", None, "postroad agent redrive ann"),
        (
            "postroad agent resume bob ann",
            "/ui/agents/bob/subscriptions/ann/resume",
            None,
            "postroad agent resume bob ann",
        ),
        ("redrive queue q-dlq", None, "/ui/dead-letters?queue=q-dlq", "postroad queue redrive q-dlq"),
        ("waits for its key's head m1", None, "/ui/events/m1", None),
        ("purge queue q", None, "/ui/queues/q", None),
        ("visible again in 12 s", None, None, None),
        ("nothing: done", None, None, None),
    ],
)
def test_the_next_step_has_its_form_page_or_command(
    text: str, action: str | None, href: str | None, command: str | None
) -> None:
    found = next_of(story("dead", following=text))

    assert (found.action, found.href, found.command) == (action, href, command)
    assert found.explained == text


def test_steps_are_shown_by_how_much_later_they_were() -> None:
    assert ">+350 ms<" in later("2030-01-31T08:00:00.350Z", "2030-01-31T08:00:00Z")
    assert ">+12.0 s<" in later("2030-01-31T08:00:12Z", "2030-01-31T08:00:00Z")
    assert ">+5 min<" in later("2030-01-31T08:05:00Z", "2030-01-31T08:00:00Z")


def test_what_cannot_be_seen_is_escaped() -> None:
    assert visible("a\u202eb\x1b[31m\u2066") == "a\\u202eb\\x1b[31m\\u2066"
    assert visible("línea\n\tzwei 倉庫 😀") == "línea\n\tzwei 倉庫 😀"
    assert visible(7) == 7


def test_a_health_check_in_the_journal_leads_to_the_page_of_health() -> None:
    item = {"event_id": "e1", "app": "shop", "timestamp": 0, "eventType": "Task Health Check", "entityType": "HEALTH"}
    asked = dict.fromkeys(("tenant", "app", "type", "entity", "from", "to"))
    found = Timeline("PK", [{**item, "entityId": "shop"}], None)
    given = {"asked": asked, "filtered": False, "path": "/ui/events", "meaning": "all", "tenant": "default"}

    text = render("events", Chrome(version="1", now=NOW), doc=found, problem=None, **given)

    assert 'href="/ui/health"><span' in text
