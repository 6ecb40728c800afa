"""The command line: `postroad <noun> <verb>`."""

import sys

from postroad import signals

__all__ = ["main"]


def main() -> None:
    """Run the command `postroad`."""
    # Loading the verbs takes a while. Signals are held first, so that one that comes meanwhile does not kill a
    # command that would have stopped in order.
    signals.hold()
    from postroad.cli.app import run

    sys.exit(run(sys.argv[1:]))
