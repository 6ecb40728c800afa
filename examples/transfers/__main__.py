"""Runs the whole system once and prints what it came to, as one JSON object."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from examples.transfers import bus, report
from examples.transfers.database import make_tables
from examples.transfers.supervisor import Supervisor

import postroad

_LOOK_SECONDS = 0.2


def main(
    dsn: Annotated[str, typer.Option(help="The services' database: postgresql://… or sqlite:///path.")],
    transfers: Annotated[int, typer.Option(min=0, help="How many transfers to make.")],
    url: Annotated[str | None, typer.Option(help="Backend of topic and queues; an embedded file by default.")] = None,
    routes: Annotated[int, typer.Option(min=0, help="How many routes change.")] = 3,
    dispatchers: Annotated[int, typer.Option(min=1, help="How many dispatchers share the outboxes.")] = 2,
    kills: Annotated[int, typer.Option(min=0, help="How many dispatchers and consumers to kill.")] = 0,
    seed: Annotated[int, typer.Option(help="Who is killed, and when.")] = 1,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds after which to give up.")] = 60,
) -> None:
    """Make transfers, let all services work, kill some of them, and wait until every transfer is settled."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="transfers-") as directory:
        url = url or f"sqlite:///{Path(directory) / 'bus.db'}"
        make_tables(dsn)
        with postroad.connect(url) as backend:
            bus.make(backend)
            children = Supervisor(dsn, url, dispatchers, kills, random.Random(seed))  # noqa: S311  # a plan that can be repeated
            with children:
                makers = [children.start("cts", transfers), children.start("directory", routes)]
                settled, found = False, report.Report()
                while not settled and time.monotonic() - started < timeout:
                    children.tend()
                    time.sleep(_LOOK_SECONDS)
                    if children.killed == kills and not any(maker.is_alive() for maker in makers):
                        found = report.read(dsn, backend)
                        settled = report.is_settled(found, backend, transfers=transfers, routes=routes)
                for maker in makers:
                    maker.kill()
                    maker.join()
            found = found or report.read(dsn, backend)
    print(json.dumps({**found, "kills": children.killed, "seconds": round(time.monotonic() - started, 3)}))
    sys.exit(0 if settled else 1)


if __name__ == "__main__":
    typer.run(main)
