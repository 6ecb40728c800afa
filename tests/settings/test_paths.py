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
        ("sqlite:///my%20shop.db", Path("my shop.db"), Path("my shop.db.token")),
        ("memory://", None, Path("postroad.token")),
        ("aws://eu-west-1", None, Path("postroad.token")),
    ],
)
def test_companion_files_lie_beside_the_data(url: str, data: Path | None, token: Path) -> None:
    assert data_path(url) == data
    assert beside(url, "token") == token
