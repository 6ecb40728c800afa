"""The tasks of the example job: a store is scraped, looked at from several sides, and summed up in one result."""

from __future__ import annotations

from typing import Any

from postroad.tasks import TaskContext, task

Input = dict[str, Any]
PAGE = "<p>" * 80_000
"""More than an event can hold, so that it travels in a blob."""


@task("scrape-store")
def scrape_store(input: Input, ctx: TaskContext) -> Any:
    return {"storeId": input["storeId"], "page": PAGE}


@task("analyze-competitors")
def analyze_competitors(input: Input, ctx: TaskContext) -> Any:
    return {"market": input["market"]}


@task("color-tags")
def color_tags(input: Input, ctx: TaskContext) -> Any:
    scraped = ctx.dependency_outputs["task-A"]
    return {"style": input["style"], "of": scraped["storeId"], "read": len(scraped["page"])}


@task("font-pairing")
def font_pairing(input: Input, ctx: TaskContext) -> Any:
    return {"of": ctx.dependency_outputs["task-A"]["storeId"]}


@task("compile-result")
def compile_result(input: Input, ctx: TaskContext) -> Any:
    return ctx.dependency_outputs
