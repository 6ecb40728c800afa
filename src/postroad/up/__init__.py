"""Up: what `postroad up` starts and supervises, part by part."""

from typing import TYPE_CHECKING

from postroad.lazy import lazy_names

if TYPE_CHECKING:
    from postroad.up.command import run_up
else:  # it needs the HTTP server; parts that other commands use do not
    __getattr__ = lazy_names(__name__, {"postroad.up.command": "run_up"})

__all__ = ["run_up"]
