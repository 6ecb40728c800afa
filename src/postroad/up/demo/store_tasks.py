"""The tasks of the demo's jobs, and one that runs by schedule; the workers load this module by its name."""

from __future__ import annotations

import random
import time
from typing import Any

from postroad.tasks import TaskContext, task

Input = dict[str, Any]
COLORS = ("ivory", "coral", "teal", "navy", "olive", "plum")
FONTS = ("Garamond", "Futura", "Bodoni", "Avenir")
_BUSY_CHANCE = 0.1


def _work(least: float, most: float) -> None:
    time.sleep(random.uniform(least, most))  # noqa: S311  # no secret


@task("scrape-store", max_attempts=4, retry_on=(ConnectionError,), retry_base=0.5)
def scrape_store(input: Input, ctx: TaskContext) -> Any:
    """Fetch the pages of a store, which is sometimes too busy to answer at first."""
    _work(0.1, 0.6)
    if ctx.attempt == 1 and random.random() < _BUSY_CHANCE:  # noqa: S311  # no secret
        raise ConnectionError(f"{input['store']} does not answer")
    return {"store": input["store"], "pages": random.randint(3, 40)}  # noqa: S311  # no secret


@task("analyze-competitors")
def analyze_competitors(input: Input, ctx: TaskContext) -> Any:
    """Compare the store with others in its market."""
    _work(0.2, 0.9)
    return {"market": input["market"], "competitors": random.randint(2, 9)}  # noqa: S311  # no secret


@task("color-tags")
def color_tags(input: Input, ctx: TaskContext) -> Any:
    """Find the colours of the scraped pages."""
    _work(0.1, 0.4)
    return random.sample(COLORS, k=3)


@task("font-pairing")
def font_pairing(input: Input, ctx: TaskContext) -> Any:
    """Find two fonts that suit the scraped pages."""
    _work(0.1, 0.4)
    return random.sample(FONTS, k=2)


@task("compile-result")
def compile_result(input: Input, ctx: TaskContext) -> Any:
    """Put together what the other tasks have found."""
    return dict(ctx.dependency_outputs)


@task("count-stock", every="30s")
def count_stock() -> int:
    """Count what the warehouse holds; this runs by schedule, beside the jobs."""
    _work(0.1, 0.3)
    return random.randint(900, 1_100)  # noqa: S311  # no secret
