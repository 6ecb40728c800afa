"""Where files that belong to a backend lie, the audit file among them, and who acts."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from postroad.settings.settings import PREFIX

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


_FILE_NAME = "postroad-audit.jsonl"
_VARIABLE = PREFIX + "AUDIT_LOG"


def audit_is_named(env: Mapping[str, str] | None = None) -> bool:
    """Whether `$POSTROAD_AUDIT_LOG` says where the file lies."""
    return bool((os.environ if env is None else env).get(_VARIABLE))


def audit_path(url: str, env: Mapping[str, str] | None = None) -> Path:
    """`$POSTROAD_AUDIT_LOG`, else a file beside the backend's data, else one in the working directory."""
    told = (os.environ if env is None else env).get(_VARIABLE)
    if told:
        return Path(told)
    data = data_path(url)
    return Path(_FILE_NAME) if data is None else data.with_name(_FILE_NAME)


def actor(env: Mapping[str, str] | None = None) -> str:
    """Who acts: `$POSTROAD_ACTOR`, else the user of this process."""
    told = (os.environ if env is None else env).get(PREFIX + "ACTOR")
    if told:
        return told
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a number that no name belongs to.
        return f"uid-{os.getuid()}"
