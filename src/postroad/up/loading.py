"""Importing the modules that the operator named, so that they register their event types and handlers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from postroad.errors import ConfigurationError


def load_modules(names: Iterable[str]) -> None:
    """Import each module; the working directory is looked in last."""
    for name in names:
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ConfigurationError(
                f"load: module {name!r} cannot be imported: {type(error).__name__}: {error}",
                field="load",
                remedy="Name a module that `python -c 'import …'` finds from this directory.",
            ) from error
