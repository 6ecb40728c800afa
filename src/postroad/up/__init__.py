"""Up: what `postroad up` starts and supervises, part by part."""

from postroad.up.command import run_up

__all__ = ["run_up"]
