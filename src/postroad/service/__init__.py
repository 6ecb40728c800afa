"""Service: what `postroad up` starts and supervises, part by part."""

from postroad.service.up import run_up

__all__ = ["run_up"]
