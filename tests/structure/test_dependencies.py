"""What `pip install postroad` brings along: few packages, few megabytes, and nothing that an extra should bring."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
MOST_PACKAGES = 14
MOST_MEGABYTES = 26


@pytest.fixture(scope="module")
def base() -> dict[str, Distribution]:
    """The packages of an install without extras, as they are installed here."""
    found: dict[str, Distribution] = {}
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    while wanted:
        requirement = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = distribution(requirement.name)
        assert requirement.specifier.contains(installed.version, prereleases=True), (
            f"{installed.name} {installed.version} is not {requirement}: run pip install -e '.[dev]'"
        )
        if installed.name.lower() not in found:
            found[installed.name.lower()] = installed
            wanted += [Requirement(text) for text in installed.requires or ()]
    return found


def test_a_base_install_has_few_packages(base: dict[str, Distribution]) -> None:
    print(*sorted(base))

    assert len(base) <= MOST_PACKAGES


def test_a_base_install_is_small(base: dict[str, Distribution]) -> None:
    files = (Path(str(file.locate())) for each in base.values() for file in each.files or ())
    size = sum(path.stat().st_size for path in files if path.is_file())

    print(f"{size / 1e6:.1f} MB with bytecode")
    assert size <= MOST_MEGABYTES * 1_000_000


@pytest.mark.parametrize(
    "name", ["pydantic", "boto3", "psycopg", "litestar", "httpx", "cryptography", "opentelemetry-api"]
)
def test_what_is_optional_is_not_in_a_base_install(name: str, base: dict[str, Distribution]) -> None:
    assert name not in base


EVERYDAY = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())

import sqlite3
import postroad
from postroad.cli import main
from postroad.outbox import Outbox, OutboxDispatcher

@postroad.event(name="tests.order-placed")
class OrderPlaced:
    order_id: str

with postroad.connect("sqlite:///postroad.db") as backend, Outbox.sqlite("shop.db") as outbox:
    bus = backend.bus("orders", "billing")
    bus.subscribe(OrderPlaced, print)
    bus.publish(OrderPlaced("A-1")).raise_if_errors()
    outbox.init()
    connection = sqlite3.connect("shop.db")
    with connection:
        outbox.add(connection, OrderPlaced("A-2"), key={"orderId": "A-2"})
    connection.close()
    OutboxDispatcher(outbox, backend.topic("orders")).drain()
    bus.receive_once()
sys.argv = ["postroad", "queue", "list"]
main()
"""


def test_events_an_outbox_and_the_command_need_nothing_but_a_base_install(
    base: dict[str, Distribution], tmp_path: Path
) -> None:
    homes = packages_distributions()
    absent = {name for name, owners in homes.items() if not {owner.lower() for owner in owners} & {*base, "postroad"}}
    assert {"opentelemetry", "pydantic", "httpx"} <= absent

    program = EVERYDAY.replace("ABSENT", repr(absent))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "OrderPlaced(order_id='A-1')\nOrderPlaced(order_id='A-2')\n" in done.stdout
    assert "orders--billing" in done.stdout
