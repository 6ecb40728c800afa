"""Names of tables and columns that are written into statements, because no database binds them as values."""

from __future__ import annotations

import re

from postroad.errors import ConfigurationError

MOST = 63
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def check_identifier(name: object, field: str, *, most: int = MOST) -> str:
    """The name, or ConfigurationError naming the field. A name to which endings are added needs a lower `most`."""
    if not isinstance(name, str) or len(name) > most or _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{field}: {name!r} is no name of a table, schema or column", field=field,
            remedy=f"Use 1 to {most} of a-z, 0-9 and '_', not beginning with a digit.",
        )  # fmt: skip
    return name
