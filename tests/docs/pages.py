"""The pages of the documentation, and a run of their Python and shell blocks as a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
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
        line: The line of the page at which its code begins.
    """

    language: str
    file: str | None
    rest: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            found["language"], found["file"], found["rest"], found["code"], text.count("\n", 0, found.start("code")) + 1
        )
        for found in _FENCE.finditer(text)
    ]


def has_something_to_run(page: Path) -> bool:
    """Return whether a page has a block of Python or of a shell."""
    return any(block.language in ("python", "sh") for block in blocks(page))


def run(page: Path, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page from top to bottom in this directory, with the command `postroad` on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROAD_", "AWS_", "PG"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-W", "error", "-P", __file__, str(page)],
        cwd=directory,
        env={**kept, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
    )


def _main(page: Path) -> None:
    """Run the blocks here: those of Python in one module, those of the shell each in a shell of its own."""
    from types import ModuleType

    sys.path.insert(0, "")
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(page)
    for block in blocks(page):
        if block.file is not None:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.code)
        elif block.language == "python":
            # The lines before make tracebacks point into the page.
            exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), module.__dict__)
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
