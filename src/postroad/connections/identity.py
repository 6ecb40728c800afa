"""What the files of the embedded engine say of themselves."""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x706F7374  # "post"
