"""The numbers of a worker, and what its children see of its environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from postroad.arguments import check_settings, text
from postroad.errors import ConfigurationError
from postroad.queues import MAX_LIFE, MAX_VISIBILITY, MAX_WAIT
from postroad.tasks.registry import Timeout, check_variables

MAX_REUSE = 1_000
WorkerId = text(r"[A-Za-z0-9_.:-]{1,256}", "1 to 256 letters, digits, '_', '.', ':' or '-'")
Positive = Annotated[int, Meta(ge=1)]
Lifetime = Annotated[float, Meta(ge=0, le=MAX_LIFE, description=f"is not from 0 to {MAX_LIFE:g} seconds")]
Pause = Annotated[float, Meta(ge=0, le=MAX_VISIBILITY, description=f"is not from 0 to {MAX_VISIBILITY:g} seconds")]
Interval = Annotated[
    float, Meta(ge=0.001, le=MAX_VISIBILITY, description=f"is not from 0.001 to {MAX_VISIBILITY:g} seconds")
]
# A message is hidden for one and a half extensions, which must stay within what queues allow.
Extension = Annotated[
    float, Meta(ge=0.001, le=MAX_VISIBILITY / 1.5, description=f"is not from 0.001 to {MAX_VISIBILITY / 1.5:g} seconds")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The numbers of a worker; seconds unless the name says otherwise."""

    concurrency: Positive = 3
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT, description="is not from 0 to 20 seconds")] = 20.0
    visibility_extension: Extension = 30.0
    extension_interval: Interval = 20.0
    timeout: Timeout = 200.0
    kill_grace: Pause = 5.0
    max_attempts: Positive = 3
    retry_base: Pause = 1.0
    retry_cap: Pause = 30.0
    drain_timeout: Pause = 30.0
    pass_env: tuple[str, ...] = ()
    max_output_bytes: Positive = 5_242_880
    child_reuse: Annotated[int, Meta(ge=1, le=MAX_REUSE)] = 1
    unknown_grace: Pause = 600.0

    def __post_init__(self) -> None:
        check_settings(self)
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
