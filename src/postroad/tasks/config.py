"""The numbers of a worker, and what its children see of its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from postroad.errors import ConfigurationError
from postroad.queues.spec import MAX_LIFE, MAX_VISIBILITY, MAX_WAIT
from postroad.tasks.registry import check_timeout, check_variables, check_whole, is_number

MAX_REUSE = 1_000
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,256}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The numbers of a worker; seconds unless the name says otherwise."""

    concurrency: int = 3
    wait: float = 20.0
    visibility_extension: float = 30.0
    extension_interval: float = 20.0
    timeout: float = 200.0
    kill_grace: float = 5.0
    max_attempts: int = 3
    retry_base: float = 1.0
    retry_cap: float = 30.0
    drain_timeout: float = 30.0
    pass_env: tuple[str, ...] = ()
    max_output_bytes: int = 5_242_880
    child_reuse: int = 1
    unknown_grace: float = 600.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_attempts", "max_output_bytes"):
            check_whole(getattr(self, name), name)
        check_whole(self.child_reuse, "child_reuse", MAX_REUSE)
        check_timeout(self.timeout)
        _between(self.wait, "wait", 0, MAX_WAIT)
        for name in ("kill_grace", "retry_base", "retry_cap", "drain_timeout", "unknown_grace"):
            _between(getattr(self, name), name, 0, MAX_VISIBILITY)
        _between(self.extension_interval, "extension_interval", 0.001, MAX_VISIBILITY)
        # A message is hidden for one and a half extensions, which must stay within what queues allow.
        _between(self.visibility_extension, "visibility_extension", 0.001, MAX_VISIBILITY / 1.5)
        if self.visibility_extension <= self.extension_interval:
            raise ConfigurationError(
                f"visibility_extension: {self.visibility_extension:g} s end before the next extension, which comes "
                f"after {self.extension_interval:g} s",
                field="visibility_extension",
                remedy="Extend by more than the interval between two extensions, such as 30 s every 20 s.",
            )
        check_variables(self.pass_env)

    @property
    def visibility(self) -> float:
        """How long a message is hidden at first, and how long a lease lasts without a refresh."""
        return 1.5 * self.visibility_extension


def check_worker_id(worker_id: Any) -> str:
    """Return the id of a worker, or refuse it."""
    if not isinstance(worker_id, str) or _ID.fullmatch(worker_id) is None:
        raise ConfigurationError(
            f"worker_id: {worker_id!r} is not 1 to 256 letters, digits, '_', '.', ':' or '-'", field="worker_id"
        )
    return worker_id


def check_seconds(value: Any, field: str) -> None:
    """Refuse what is not a number of seconds."""
    _between(value, field, 0, MAX_LIFE)


def _between(value: Any, field: str, low: float, high: float) -> None:
    if not is_number(value) or not low <= value <= high:
        raise ConfigurationError(f"{field}: {value!r} is not from {low:g} to {high:g} seconds", field=field)


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
