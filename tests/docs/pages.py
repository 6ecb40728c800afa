"""The pages of the documentation, and a run of their Python and shell blocks as a reader would type them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), *(ROOT / "docs").rglob("*.md")])
LONGEST_SECONDS = 120
_FENCE = re.compile(
    r'^```(?P<language>\S*)(?: title="(?P<file>[^"]+)")?(?P<rest>.*)\n(?P<code>(?:.*\n)*?)```$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    Args:
        language: The first word behind the fence.
        file: The file that the block is the content of, or None for a block that is run.
        rest: Whatever else stands behind the fence.
        code: Its lines.
    """

    language: str
    file: str | None
    rest: str
    code: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = _FENCE.finditer(page.read_text())
    return [Block(each["language"], each["file"], each["rest"], each["code"]) for each in found]


def has_something_to_run(page: Path) -> bool:
    """Return whether a page has a block of Python or of a shell."""
    return any(block.language in ("python", "sh") for block in blocks(page))


def run(page: Path, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page from top to bottom in this directory, with the command `postroad` on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROAD_", "AWS_", "PG"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-W", "error", "-P", __file__, str(page)]
    with subprocess.Popen(
        command,
        cwd=directory,
        # What pytest keeps for the reader to look at goes where the test cleans up.
        env={**kept, "PATH": path, "PYTEST_DEBUG_TEMPROOT": str(directory), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            # A command that never ends has children of its own.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _main(page: Path) -> None:
    """Run the blocks here: those of Python as one program, those of the shell each in a shell of its own.

    The program is a file, because the children of a worker import the file that defines their tasks.
    """
    from types import ModuleType

    program = Path("example.py").resolve()
    sys.path.insert(0, str(program.parent))
    found = blocks(page)
    parts = [block.code for block in found if block.language == "python" and block.file is None]
    program.write_text("\n".join(parts))
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(program)
    line = 0
    for block in found:
        if block.file is not None:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.code)
        elif block.language == "python":
            exec(compile("\n" * line + block.code, program, "exec"), module.__dict__)
            line += block.code.count("\n") + 1
        elif block.language == "sh":
            _shell(block.code)


def _shell(code: str) -> None:
    """Run a block in a shell that stops at a failed command or an unset variable; what it exports stays set."""
    reader, writer = os.pipe()
    script = f"{code}\nenv -0 >&{writer}"
    sys.stdout.flush()
    done = subprocess.Popen(["bash", "-euo", "pipefail", "-c", script], pass_fds=[writer])
    os.close(writer)
    with os.fdopen(reader) as exported:
        variables = dict(each.split("=", 1) for each in exported.read().split("\0") if each)
    if done.wait() != 0:
        sys.exit(f"exit code {done.returncode}:\n{code}")
    os.environ.update(variables)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
