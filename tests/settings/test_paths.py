from __future__ import annotations

from pathlib import Path

import pytest

from postroad.settings import beside, data_path


@pytest.mark.parametrize(
    ("url", "data", "token"),
    [
        ("sqlite:///postroad.db", Path("postroad.db"), Path("postroad.db.token")),
        ("sqlite:////var/lib/shop.db", Path("/var/lib/shop.db"), Path("/var/lib/shop.db.token")),
        ("sqlite:///a.db?mode=x", Path("a.db"), Path("a.db.token")),
        ("sqlite:///shop#1.db", Path("shop#1.db"), Path("shop#1.db.token")),
        ("sqlite:///shop%231.db", Path("shop#1.db"), Path("shop#1.db.token")),
        ("sqlite:///link.db", Path("target/shop.db"), Path("target/shop.db.token")),
        ("sqlite:///my%20shop.db", Path("my shop.db"), Path("my shop.db.token")),
        ("memory://", None, Path("postroad.token")),
        ("aws://eu-west-1", None, Path("postroad.token")),
    ],
)
def test_companion_files_lie_beside_the_data(
    url: str, data: Path | None, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.db").symlink_to("target/shop.db")

    assert data_path(url) == (None if data is None else tmp_path / data)
    assert beside(url, "token") == (token if data is None else tmp_path / token)
