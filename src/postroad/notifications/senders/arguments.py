"""What the senders' arguments may be. Refusals name the argument and never show what it holds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from postroad.errors import ConfigurationError

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_:-]|\.(?!\.)){0,254}")


@contextmanager
def needing_extra() -> Iterator[None]:
    """Say how to install what an import inside does not find."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is not installed", remedy="pip install 'postroad[push]'") from error


def checked_name(value: object, field: str) -> str:
    """The name, fit for a URL, a header and a token's claim."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ConfigurationError(f"{field}: is not a name of letters, digits, dots and hyphens", field=field)
    return value


def checked_seconds(value: object, field: str) -> float:
    """The number of seconds, above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"{field}: {value!r} is not a number of seconds above 0", field=field)
    return float(value)


def checked_lifetime(value: object, field: str) -> int:
    """The whole number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{field}: {value!r} is not a whole number of seconds of 0 or more", field=field)
    return value
