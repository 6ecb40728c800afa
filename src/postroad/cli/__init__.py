"""The command line: `postroad <noun> <verb>`."""

from postroad.cli.app import main

__all__ = ["main"]
