"""Draw docs/images/terminal.svg: a real run of the command `postroad`, as a terminal shows it."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "terminal.svg"
WIDTH = 96
_FILL = """
import postroad
with postroad.connect() as backend:
    backend.create_queue(postroad.QueueSpec("orders-dlq"))
    orders = backend.create_queue(postroad.QueueSpec("orders", dead_letter="orders-dlq"))
    orders.send([postroad.OutgoingMessage(f'{{"order_id": "A-{n}"}}') for n in range(12)])
    for delivery in orders.receive(max_messages=2):
        orders.reject([delivery], reason="handler", error="PaymentRefused: card expired")
    orders.ack(orders.receive(max_messages=4))
"""
SCRIPT = (
    "postroad queue list",
    "postroad queue peek orders-dlq --limit 1",
    "postroad queue redrive orders-dlq --yes",
    """postroad queue send orders --body '{"order_id": "A-13"}'""",
    "postroad queue list",
)


def record(directory: Path) -> Console:
    """Run the script in the directory and record what a terminal would show."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
    environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    subprocess.run([sys.executable, "-c", _FILL], cwd=directory, env=environment, check=True)
    for line in SCRIPT:
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        command = [sys.executable, "-m", *shlex.split(line)]
        console.print(Text.from_ansi(output_on_a_terminal(command, directory, environment).rstrip()))
        console.print()
    return console


def output_on_a_terminal(command: list[str], directory: Path, environment: dict[str, str]) -> str:
    """Run a command whose output is a pseudo-terminal, for which it is coloured, and return what it wrote."""
    terminal, theirs = pty.openpty()
    running = subprocess.Popen(command, cwd=directory, env=environment, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    written = b""
    with suppress(OSError):  # that is how a pseudo-terminal ends
        while chunk := os.read(terminal, 65_536):
            written += chunk
    os.close(terminal)
    if running.wait() != 0:
        raise SystemExit(f"{' '.join(command)} ended with {running.returncode}")
    return written.decode().replace("\r\n", "\n")


def without_foreign_fonts(svg: str) -> str:
    """Return the picture without the fonts that it would load from elsewhere."""
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="postroad-picture-") as directory:
        drawn = record(Path(directory)).export_svg(title="postroad", theme=MONOKAI, unique_id="postroad")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(without_foreign_fonts(drawn))
