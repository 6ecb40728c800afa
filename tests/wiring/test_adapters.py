"""An adapter of a third party: the example of CONTRIBUTING.md, installed and used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest

import postroad
from postroad.errors import ConfigurationError
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.settings import adapter, load
from postroad.testing import BlobsConformance, BlobsFixture, FakeClock

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def example() -> str:
    [code] = re.findall(r'```python\n("""Blobs in a table.*?)```', CONTRIBUTING.read_text(), re.DOTALL)
    return str(code)


def entry_points() -> str:
    [lines] = re.findall(r'entry-points."postroad.adapters"\]\n(.*?)```', CONTRIBUTING.read_text(), re.DOTALL)
    return "[postroad.adapters]\n" + str(lines).replace(chr(34), "")


Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make an installed package of one module with these entry points."""
    packages = tmp_path / "packages"
    (packages / "blobtable-1.0.dist-info").mkdir(parents=True)

    def installed(points: str) -> None:
        (packages / "blobtable.py").write_text(example())
        (packages / "blobtable-1.0.dist-info" / "METADATA").write_text("Name: blobtable\nVersion: 1.0\n")
        (packages / "blobtable-1.0.dist-info" / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(packages))
        monkeypatch.chdir(tmp_path)
        invalidate_caches()
        adapter.cache_clear()

    yield installed
    sys.modules.pop("blobtable", None)
    adapter.cache_clear()


@pytest.fixture
def blobtable(install: Install) -> Any:
    install(entry_points())
    return import_module("blobtable")


class TestTheExample(BlobsConformance):
    @pytest.fixture
    def ground(self, blobtable: Any, tmp_path: Path) -> Iterator[BlobsFixture]:
        clock = FakeClock()
        blobs = blobtable.TableBlobs(str(tmp_path / "blobs.db"), clock)
        yield BlobsFixture(blobs=blobs, advance=clock.advance)
        blobs.close()


def test_an_address_of_the_adapter_opens_its_ports_and_the_embedded_file(blobtable: Any, tmp_path: Path) -> None:
    with postroad.connect(f"blobtable://user:secret@host{tmp_path}/blobs.db?token=secret") as backend:
        queue = backend.create_queue(QueueSpec("orders"))
        queue.send([OutgoingMessage("x" * 2_000_000)])
        [received] = queue.receive()
        blobs = backend.blobs()

    assert isinstance(blobs, blobtable.TableBlobs)
    assert received.body == b"x" * 2_000_000
    assert (tmp_path / "postroad.db").exists()
    assert (backend.kind, backend.url) == ("blobtable", f"blobtable://***@host{tmp_path}/blobs.db")


def test_the_adapters_ports_are_closed_with_the_backend(blobtable: Any, tmp_path: Path) -> None:
    with postroad.connect(f"blobtable://{tmp_path}/blobs.db") as backend:
        blobs: Any = backend.blobs()
        assert not backend.joins_writes

    with pytest.raises(Exception, match="closed"):
        blobs.put("overflow/a", b"x")


def test_settings_accept_the_scheme_of_an_adapter_that_is_installed(install: Install) -> None:
    adapter.cache_clear()
    with pytest.raises(ConfigurationError, match="url"):
        load(env={"POSTROAD_URL": "blobtable:///x.db"})

    install(entry_points())

    assert load(env={"POSTROAD_URL": "blobtable:///x.db"}).url == "blobtable:///x.db"


def test_a_scheme_that_nobody_installed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown scheme 'nobody'"):
        postroad.connect("nobody://host")


def test_an_adapter_that_cannot_be_imported_is_named_and_leaves_the_file_closed(
    install: Install, tmp_path: Path
) -> None:
    install("[postroad.adapters]\nblobtable = blobtable:nothing\n")

    with pytest.raises(ConfigurationError, match="blobtable:nothing of blobtable:// cannot be imported"):
        postroad.connect(f"blobtable://{tmp_path}/blobs.db")

    postroad.connect("sqlite:///postroad.db").close()
