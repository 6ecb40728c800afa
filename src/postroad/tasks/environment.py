"""The environment of task children: a short list of names, and what was asked for by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

_PASSED = frozenset(
    (
        *("PATH", "HOME", "USER", "SHELL", "TMPDIR", "PWD", "LANG", "TZ"),
        *("TERM", "COLORTERM", "FORCE_COLOR", "PYTHONPATH"),
    )
)


def for_children(pass_env: Iterable[str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of this process's environment its children may see."""
    asked = set(pass_env)
    here = os.environ if env is None else env
    return {name: value for name, value in here.items() if name in _PASSED or name.startswith("LC_") or name in asked}


def named(names: Iterable[str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of these names that are set."""
    here = os.environ if env is None else env
    return {name: here[name] for name in names if name in here}
