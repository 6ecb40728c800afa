"""The shape of a blob's key, so that it can name nothing outside the blobs' own place."""

from __future__ import annotations

import re

from postroad.errors import InvalidInput

MAX_KEY_CHARACTERS = 400
# No name begins with a dot, so none means this folder or the one above.
_KEY = re.compile(r"[a-z0-9][a-z0-9_-]*(/[a-zA-Z0-9_:-][a-zA-Z0-9_.:=-]*)*")
_REMEDY = (
    "Use names joined by '/', such as 'overflow/20300101/0f3c', the first of them in lower case and none beginning "
    f"with a dot, {MAX_KEY_CHARACTERS} characters at most."
)


def check_key(key: object) -> str:
    """Return the key, or refuse one that Postroad would not have built."""
    fits = isinstance(key, str) and len(key) <= MAX_KEY_CHARACTERS and _KEY.fullmatch(key) is not None
    if not isinstance(key, str) or not fits:
        raise InvalidInput(
            f"key: {str(key)[:MAX_KEY_CHARACTERS]!r} is not the key of a blob", field="key", remedy=_REMEDY
        )
    return key


def check_prefix(prefix: object) -> str:
    """Return the prefix of keys, a key with '/' at its end, or refuse it."""
    if not isinstance(prefix, str) or not prefix.endswith("/"):
        raise InvalidInput(f"prefix: {prefix!r} does not end with '/'", field="prefix", remedy="Name a folder of keys.")
    check_key(prefix[:-1])
    return prefix
