"""The command line: `postroad <noun> <verb>`."""

import sys

from postroad import signals

__all__ = ["main"]


def main() -> None:
    """The entry point of the command `postroad`."""
    # Loading the verbs takes a while, so signals are held first: one that comes meanwhile is not to kill a command
    # that would have stopped in order.
    signals.hold()
    from postroad.cli.app import run

    sys.exit(run(sys.argv[1:]))
