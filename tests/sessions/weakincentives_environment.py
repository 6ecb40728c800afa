"""Where weakincentives runs: an environment of its own, since it needs a newer Python than Postroad does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.environments import ROOT, environment_with

PACKAGE = "weakincentives==0.16.0"
_VERSIONS = ("3.14", "3.13", "3.12")
NO_PYTHON = "no Python from 3.12.3 on is found, which weakincentives needs"
# Its generic dataclasses cannot be made before 3.12.3 (https://github.com/python/cpython/issues/115165).
_IS_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 12, 3))"


def weakincentives_python() -> Path:
    """A Python that has weakincentives and what Postroad needs; skips where none is new enough."""
    base = installed_python()
    if base is None:
        pytest.skip(NO_PYTHON)
    return environment_with("weakincentives", [PACKAGE, "pytest>=8.3", "pytest-timeout>=2.3"], base=base)


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script beside weakincentives, with Postroad's own sources."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(weakincentives_python()), "-W", "error", str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def installed_python() -> str | None:
    """A Python that weakincentives can run on: this one, one on the path or one beside this one."""
    beside = Path(sys.base_prefix).parent
    names = [name for version in _VERSIONS for name in (f"python{version}", *beside.glob(f"*{version}*/bin/python3"))]
    return next((str(name) for name in (sys.executable, *names) if _is_new_enough(str(name))), None)


def _is_new_enough(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", _IS_NEW_ENOUGH], capture_output=True).returncode == 0
    except OSError:
        return False
