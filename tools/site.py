"""Build the site of the documentation into build/site: stage the pages, rewrite links out of docs/, run Zensical."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STAGED = ROOT / "build" / "pages"
PROJECT = "project"
"""The folder of the site for files that do not lie below docs/."""
_LINK = re.compile(r"(?P<before>\]\()(?P<path>[^)\s#]+)(?P<after>(?:#[^)\s]*)?\))")

_OPTION = re.compile(r"(?<!`)`--[^`\s]+(?: [^`\s]+)?`(?![`{])")
"""An option of the command line in a sentence or a table, perhaps with its value."""


class Stage:
    """Copies pages, and every file of the repository that they link to, into one folder.

    Options get a class of their own, since a browser would break their names at hyphens.
    """

    def __init__(self) -> None:
        self._waiting = [page for page in sorted(DOCS.rglob("*")) if page.is_file()]
        self._copied: set[Path] = set()

    def fill(self) -> None:
        """Copy everything; a file that is linked to brings those along that it links to."""
        shutil.rmtree(STAGED, ignore_errors=True)
        while self._waiting:
            source = self._waiting.pop()
            if source not in self._copied:
                self._copied.add(source)
                self._copy(source)

    def _copy(self, source: Path) -> None:
        target = staged(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            text = _LINK.sub(lambda link: self._rewritten(source, link), source.read_text())
            target.write_text(_OPTION.sub(lambda option: f"{option[0]}{{ .option }}", text))
        else:
            shutil.copy(source, target)

    def _rewritten(self, page: Path, link: re.Match[str]) -> str:
        if "://" in link["path"] or link["path"].startswith("mailto:"):
            return link[0]
        linked = (page.parent / link["path"]).resolve()
        if linked.is_dir():
            linked /= "README.md"
        if not linked.is_file() or not linked.is_relative_to(ROOT):
            return link[0]  # Zensical reports it with its place.
        self._waiting.append(linked)
        return link["before"] + os.path.relpath(staged(linked), staged(page).parent) + link["after"]


def staged(source: Path) -> Path:
    """Return where a file of the repository lies among the pages of the site."""
    if source.is_relative_to(DOCS):
        return STAGED / source.relative_to(DOCS)
    return STAGED / PROJECT / source.relative_to(ROOT)


def main() -> int:
    """Build the site; a link that leads nowhere fails the build."""
    Stage().fill()
    zensical = Path(sys.executable).with_name("zensical")
    return subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
