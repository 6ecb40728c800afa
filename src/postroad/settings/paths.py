"""Where files that belong to a backend lie."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

_SQLITE = "sqlite:///"


def data_path(url: str) -> Path | None:
    """The file that a backend keeps its data in; None where the backend is no file."""
    if not url.startswith(_SQLITE):
        return None
    return Path(unquote(urlsplit(url).path[1:]))


def beside(url: str, suffix: str) -> Path:
    """The companion file `X.db.<suffix>`; `postroad.<suffix>` in the working directory where the backend is no file."""
    data = data_path(url)
    return Path(f"postroad.{suffix}") if data is None else data.with_name(f"{data.name}.{suffix}")
