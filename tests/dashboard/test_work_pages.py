"""Tasks, jobs, schedules, workers and agents in the browser, and the forms that change them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.dashboard.conftest import NewContext, new_page
from tests.dashboard.server import Served
from tests.dashboard.test_looks import CONTRASTS
from tests.dashboard.work import MANY, SHOWN, WORK_PAGES, job, submit, wait_for_job, wait_for_task
from tests.waiting import eventually

from postroad.dashboard import Chrome, render
from postroad.tasks.presence import RunningTask, WorkerShown
from postroad.views import Page as Rows

pytestmark = pytest.mark.slow


@pytest.fixture
def page(new_context: NewContext, works: Served) -> Page:
    """An empty page of 1440 pixels, logged in as admin."""
    return new_page(new_context(viewport={"width": 1440, "height": 900}), works)


@pytest.fixture
def plain_page(new_context: NewContext, works: Served) -> Page:
    """The same without JavaScript."""
    return new_page(new_context(viewport={"width": 1440, "height": 900}, java_script_enabled=False), works)


def do(form_of: Locator, label: str) -> None:
    """Open what a button would do, and confirm it."""
    form_of.locator("summary", has_text=label).click()
    form_of.locator("form").get_by_role("button", name=label).click()


def test_every_page_names_itself(page: Page, works: Served) -> None:
    for path, name in WORK_PAGES.items():
        answer = page.goto(works.url + path)

        assert answer is not None
        assert answer.status == 200
        expect(page.locator("main#main")).to_have_attribute("data-page", name)
        assert page.locator("h1").count() == 1
        current = page.locator('nav[aria-label="Main"] [aria-current="page"]')
        assert current.get_attribute("href") == {"job": "/ui/jobs", "event": "/ui/events"}.get(name, f"/ui/{name}")


SCROLLS = """() => {
  const scrolls = () => document.documentElement.scrollWidth > innerWidth;
  const found = scrolls() ? ["nothing"] : [];
  for (const details of document.querySelectorAll("main details")) {
    details.open = true;
    if (scrolls()) found.push(details.textContent.trim().slice(0, 40));
    details.open = false;
  }
  return found;
}"""
"""With what open, one at a time, the page is wider than the window."""


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_scrolls_sideways_and_all_text_can_be_read(
    new_context: NewContext, works: Served, theme: str, width: int
) -> None:
    page = new_page(new_context(color_scheme=theme, viewport={"width": width, "height": 900}), works)
    wrong: list[str] = []

    for path in (*WORK_PAGES, "/ui/tasks?state=failed", "/ui/tasks?name=none", "/ui/events/nothing"):
        page.goto(works.url + path)
        wrong += [f"{path}: {low}" for low in page.evaluate(CONTRASTS)]
        wrong += [f"{path}: scrolls sideways with {opened} open" for opened in page.evaluate(SCROLLS)]

    assert wrong == []


def test_a_reader_sees_no_form_that_changes_something(new_context: NewContext, works: Served) -> None:
    page = new_page(new_context(), works, works.token("read"))

    for path in (*WORK_PAGES, "/ui/tasks?state=failed"):
        page.goto(works.url + path)
        assert page.locator('main form[method="post"]').count() == 0, path


def test_tasks_are_filtered_by_state_name_and_time(page: Page, works: Served) -> None:
    page.goto(f"{works.url}/ui/tasks")
    page.get_by_role("link", name="Failed").click()

    failed = page.locator("tr[data-task]")
    assert {tag.get_attribute("data-state") for tag in failed.locator("[data-state]").all()} == {"failed"}
    expect(page.locator('tr[data-task="five.price-check"]')).to_contain_text("<script>alert")
    page.fill("input[name=name]", "no-such-task")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".empty")).to_contain_text("No task matches")
    page.goto(f"{works.url}/ui/tasks?state=failed&since=2099-01-01")
    expect(page.locator(".empty")).to_be_visible()
    page.goto(f"{works.url}/ui/tasks?state=failed&since=1h&name=scrape-store")
    expect(page.locator('tr[data-task="five.price-check"]')).to_be_visible()


def test_a_failed_task_is_retried_after_its_form_has_said_so(plain_page: Page, works: Served) -> None:
    task = submit(works, "retry-me", fail=True)
    wait_for_task(works, task, "failed")
    plain_page.goto(f"{works.url}/ui/tasks?state=failed")
    row = plain_page.locator(f'tr[data-task="{task}"]')
    expect(row.locator("form")).to_be_hidden()

    row.locator("summary").click()
    expect(row.locator("form")).to_contain_text("Run this task again, as run 2")
    row.get_by_role("button", name="Retry").click()

    plain_page.wait_for_url(f"{works.url}/ui/events/{task}")
    wait_for_task(works, task, "failed", run=2)
    assert task in [each["target"] for each in works.audit() if each["action"].startswith("task.retry")]


def test_a_task_that_waits_is_cancelled(page: Page, works: Served) -> None:
    task = submit(works, "cancel-me", name="nobody-knows-it")
    page.goto(f"{works.url}/ui/tasks?state=pending")

    do(page.locator(f'tr[data-task="{task}"]'), "Cancel")

    page.wait_for_url(f"{works.url}/ui/events/{task}")
    expect(page.locator("[data-summary]")).to_contain_text("cancelled")
    wait_for_task(works, task, "cancelled")


def test_all_tasks_that_match_are_retried_with_progress(plain_page: Page, works: Served) -> None:
    tasks = [submit(works, f"many-{number}", name="nobody-knows-it") for number in range(3)]
    for task in tasks:
        assert works.client.post(f"/tasks/{task}/cancel").status_code == 200
    plain_page.goto(f"{works.url}/ui/tasks?state=cancelled&name=nobody-knows-it")
    panel = plain_page.locator('form[data-action="retry-all"]')

    plain_page.locator("summary", has_text="Retry all that match").click()
    expect(panel).to_contain_text("Run every cancelled task named nobody-knows-it again")
    panel.locator("input[name=limit]").fill("2")
    panel.locator("input[name=reason]").fill("a worker knows it now")
    panel.get_by_role("button").click()

    expect(plain_page.locator("[data-operation]")).to_be_visible()
    eventually(lambda: plain_page.reload() and "2 of" in plain_page.locator("[data-result]").inner_text(), every=0.2)
    states = [works.client.get(f"/tasks/{task}").json()["state"] for task in tasks]
    assert sorted(states) == ["cancelled", "pending", "pending"]


def test_a_wrong_number_in_the_form_is_refused(page: Page, works: Served) -> None:
    page.goto(f"{works.url}/ui/tasks")
    token = page.locator('meta[name="csrf-token"]').get_attribute("content") or ""

    answer = page.request.post(f"{works.url}/ui/tasks/retry", form={"csrf_token": token, "limit": "none"})

    assert answer.status == 400
    assert "limit" in answer.text()


_DRAWN = """svg => ({
    tasks: Object.fromEntries([...svg.querySelectorAll("g[data-task]")].map(task => [
        task.dataset.task, {state: task.dataset.state, box: task.querySelector("rect").getBoundingClientRect().toJSON()}
    ])),
    edges: [...svg.querySelectorAll("path[data-edge]")].map(edge => edge.dataset.edge),
})"""


def test_a_job_draws_its_graph_from_left_to_right_without_overlap(page: Page, works: Served) -> None:
    for name, count in (("five", 5), ("sixty", 60)):
        page.goto(f"{works.url}/ui/jobs/{name}")
        graph = page.locator(f'svg[data-dag="{name}"]')
        tasks = works.client.get(f"/jobs/{name}").json()["tasks"]

        # Read in one step: the page may draw it anew at any moment.
        shown = graph.evaluate(_DRAWN)
        assert len(shown["tasks"]) == count
        assert {name: each["state"] for name, each in shown["tasks"].items()} == {
            task["taskId"]: task["status"] for task in tasks
        }
        edges = {(need, task["taskId"]) for task in tasks for need in task["dependsOn"]}
        assert set(shown["edges"]) == {f"{a}->{b}" for a, b in edges}
        boxes = {name: each["box"] for name, each in shown["tasks"].items()}
        for one, other in combinations(boxes.values(), 2):
            beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert beside or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
        for source, target in edges:
            left, right = boxes[source], boxes[target]
            assert left["x"] + left["width"] < right["x"]


def test_the_state_of_a_task_is_shown_in_words_too(page: Page, works: Served) -> None:
    page.goto(f"{works.url}/ui/jobs/five")

    expect(page.locator('g[data-task="price-check"] .note')).to_have_text("✕ failed")
    expect(page.locator('g[data-task="send-mail"] .note')).to_have_text("· waiting")
    page.locator('g[data-task="price-check"] a').click()
    page.wait_for_url(f"{works.url}/ui/events/five.price-check")


def test_a_job_of_more_than_60_tasks_is_a_table_with_the_failed_path_drawn(page: Page, works: Served) -> None:
    page.goto(f"{works.url}/ui/jobs/{MANY}")

    drawn = [each.get_attribute("data-task") for each in page.locator("svg[data-dag] g[data-task]").all()]
    assert drawn == ["t0", "t1", "t2", "t3", "t4"]
    assert page.locator("tr[data-row]").count() == 70
    assert page.locator("tr[data-row]").first.get_attribute("data-row") == "t4"
    page.get_by_role("link", name="Show in the graph").click()
    expect(page.locator('g[data-task="t4"]')).to_be_in_viewport()


def test_what_failed_in_a_job_is_shown_and_runs_again(plain_page: Page, works: Served) -> None:
    job(works, "resume-me", [{"taskId": "a", "name": "scrape-store", "input": {"store": "s9", "fail": True}}])
    wait_for_job(works, "resume-me", "partial_failure")
    plain_page.goto(f"{works.url}/ui/jobs/resume-me")
    error = plain_page.locator("[data-error]")
    expect(error.locator(".failure-type")).to_have_text("ConnectionError")
    expect(error.locator(".failure-message")).to_contain_text("store s9 answered 503: <script>alert")

    do(plain_page.locator(".buttons"), "Resume")

    plain_page.wait_for_url(f"{works.url}/ui/jobs/resume-me")
    wait_for_task(works, "resume-me.a", "failed", run=2)


def test_an_open_job_is_shown_as_it_goes_on_and_what_is_unfolded_stays(page: Page, works: Served) -> None:
    job(works, "watched", [{"taskId": "a", "name": "scrape-store", "input": {"store": "s9", "fail": True}}])
    wait_for_job(works, "watched", "partial_failure")
    page.goto(f"{works.url}/ui/jobs/watched")
    page.locator("[data-error] summary").click()
    page.locator("h1").click()

    works.client.post("/jobs/watched/cancel")

    expect(page.locator("h1 [data-state]")).to_have_attribute("data-state", "cancelled", timeout=20_000)
    expect(page.locator("tr[data-row] [data-state]")).to_have_attribute("data-state", "failed")
    expect(page.get_by_text("Resume", exact=True)).to_have_count(0)
    expect(page.locator("[data-error] pre")).to_be_visible()


def test_a_job_is_cancelled(page: Page, works: Served) -> None:
    job(works, "cancel-job", [{"taskId": "a", "name": "nobody-knows-it"}])
    page.goto(f"{works.url}/ui/jobs/cancel-job")

    do(page.locator(".buttons"), "Cancel")

    expect(page.locator("h1 [data-state]")).to_have_attribute("data-state", "cancelled")
    page.goto(f"{works.url}/ui/jobs?status=cancelled")
    expect(page.locator('tr[data-job="cancel-job"]')).to_be_visible()
    assert page.locator('tr[data-job="five"]').count() == 0


def test_a_schedule_is_paused_resumed_and_run_now(plain_page: Page, works: Served) -> None:
    row = plain_page.locator('tr[data-schedule="nightly-report"]')
    plain_page.goto(f"{works.url}/ui/schedules")
    expect(row).to_contain_text("Europe/Athens")
    expect(row.locator("time").first).to_contain_text("in ")

    do(row.locator("details", has_text="Pause"), "Pause")
    expect(row.locator("[data-state]")).to_have_attribute("data-state", "paused")
    do(row.locator("details", has_text="Resume"), "Resume")
    expect(row.locator("[data-state]")).to_have_attribute("data-state", "active")
    do(row.locator("details", has_text="Run now"), "Run now")

    plain_page.wait_for_url(f"{works.url}/ui/events/**")
    [schedule] = works.client.get("/schedules").json()["items"]
    wait_for_task(works, schedule["last_request_id"], "completed")
    actions = [each["action"] for each in works.audit()]
    assert {"schedule.pause", "schedule.resume", "schedule.run"} <= set(actions)


def test_the_worker_of_the_server_is_listed(page: Page, works: Served) -> None:
    [worker] = works.client.get("/workers").json()["items"]

    page.goto(f"{works.url}/ui/workers")

    row = page.locator(f'tr[data-worker="{worker["worker_id"]}"]')
    expect(row).to_contain_text(worker["host"])
    expect(row).to_contain_text(str(worker["pid"]))


def test_a_worker_is_shown_with_what_it_runs_its_memory_and_its_last_heartbeat() -> None:
    now = datetime(2030, 1, 31, 8, 0, tzinfo=UTC)
    run = RunningTask("r1", "scrape-store", now.replace(minute=0, second=0), 52_428_800)
    rows = Rows([WorkerShown("w1", "vm", 7, ["tasks"], 3, now, [run])], None)

    text = render("workers", Chrome(version="1", now=now.replace(minute=2)), doc=rows)

    assert 'data-running="r1"' in text
    assert "52 MB" in text
    assert "1 of 3" in text
    assert "2 min ago" in text


def test_a_subscription_of_an_agent_is_paused_and_resumed(plain_page: Page, works: Served) -> None:
    plain_page.goto(f"{works.url}/ui/agents")
    plain_page.locator('tr[data-agent="auditor"] a').click()
    row = plain_page.locator('tr[data-subscription="collector"]')

    do(row, "Pause")
    expect(row.locator("[data-state]")).to_have_attribute("data-state", "paused")
    expect(plain_page.locator('tr[data-agent="auditor"]')).to_contain_text("paused")
    do(row, "Resume")
    expect(row.locator("[data-state]")).to_have_attribute("data-state", "active")


def test_the_dead_letters_of_an_agent_are_shown_and_redriven(page: Page, works: Served) -> None:
    works.client.post("/agents", json={"agentId": "mourner", "accept": "all"})
    works.client.put("/agents/mourner/subscriptions/collector", json={"eventTypes": ["order.doomed"]})
    works.client.post("/events", json={"agentId": "collector", "eventType": "order.doomed", "data": {}})
    eventually(lambda: works.client.get("/agents/mourner/stats").json()["visible"] == 1, every=0.1)
    [leased] = works.client.post("/agents/mourner/leases", json={}).json()["deliveries"]
    rejected = {"receipts": [leased["receipt"]], "reason": "handler_failed", "error": f"ValueError: {SHOWN}"}
    assert works.client.post("/agents/mourner/rejections", json=rejected).is_success
    page.goto(f"{works.url}/ui/agents?agent=mourner")
    expect(page.locator("tr[data-dead]")).to_contain_text("order.doomed")

    do(page.locator(".chosen .buttons"), "Redrive")

    expect(page.locator("tr[data-dead]")).to_have_count(0)
    eventually(lambda: works.client.get("/agents/mourner/stats").json()["dead"] == 0, every=0.1)
