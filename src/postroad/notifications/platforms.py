"""Which provider a device token belongs to."""

from __future__ import annotations

import re
from typing import Final, Literal

from postroad.errors import InvalidInput

Platform = Literal["apns", "fcm"]
PLATFORMS: Final[tuple[Platform, ...]] = ("apns", "fcm")
_OF_APPLE = re.compile(r"[0-9A-Fa-f]{64,200}")


def platform_of(token: str, registered: Platform | None) -> Platform:
    """What the device was registered as, else what the token's prefix or form says."""
    if registered is not None:
        return registered
    for platform in PLATFORMS:
        if token.startswith(f"{platform}:"):
            return platform
    return "apns" if _OF_APPLE.fullmatch(token) else "fcm"


def bare(token: str, platform: Platform) -> str:
    """The token as its provider knows it."""
    return token.removeprefix(f"{platform}:")


def checked_platform(value: object) -> Platform | None:
    """The platform, or None where the token itself has to tell."""
    if value is None:
        return None
    for platform in PLATFORMS:
        if value == platform:
            return platform
    raise InvalidInput("platform: is neither 'apns' nor 'fcm'", field="platform")
