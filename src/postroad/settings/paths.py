"""Where files that belong to a backend lie."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

_SQLITE = "sqlite:///"


def data_path(url: str) -> Path | None:
    """The file that a backend keeps its data in, without links; None where the backend is no file."""
    if not url.startswith(_SQLITE):
        return None
    # Not urlsplit, which would cut a name at its '#'.
    path = Path(unquote(url.removeprefix(_SQLITE).partition("?")[0]))
    try:
        return Path(os.path.realpath(path))
    except OSError:
        # The working directory is gone: `connect` refuses the path.
        return path


def beside(url: str, suffix: str) -> Path:
    """The companion file `X.db.<suffix>`; `postroad.<suffix>` in the working directory where the backend is no file."""
    data = data_path(url)
    return Path(f"postroad.{suffix}") if data is None else data.with_name(f"{data.name}.{suffix}")
