"""Print the notes of a release, and refuse a tag that does not fit: python tools/release_notes.py TAG ADDRESS

The notes are the section of CHANGELOG.md for the version. ADDRESS is that of the repository which releases.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Refused(Exception):
    """The tag and the repository do not fit together."""


def notes(root: Path, tag: str, address: str) -> str:
    """Return the notes of the version that the tag names."""
    initial = (root / "src" / "postroad" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', initial, re.M)
    if version is None or tag != f"v{version[1]}":
        raise Refused(f"the tag is {tag}, and the package is {version and version[1]}; repair: tag that version")
    source = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    if address != source:
        raise Refused(f"{address} releases, and pyproject.toml names {source}; repair: replace it in all files")
    sections = re.split(r"^## \[(.+?)\].*$", (root / "CHANGELOG.md").read_text(), flags=re.M)
    found = dict(zip(sections[1::2], sections[2::2], strict=True)).get(version[1], "").strip()
    if not found:
        raise Refused(f"CHANGELOG.md has no section [{version[1]}]; repair: rename [Unreleased] and add a new one")
    return found


if __name__ == "__main__":
    try:
        print(notes(ROOT, *sys.argv[1:]))
    except Refused as refused:
        sys.exit(f"failed: {refused}")
