"""What Postroad ships with: the requirements, bill of materials, audit and lock of what `postroad[all]` needs."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
_BIN = Path(sys.executable).parent


def requirements() -> list[str]:
    """Return the installed version of everything that `postroad[all]` needs."""
    found: dict[str, str] = {}
    _follow("postroad", frozenset({"all"}), found)
    del found["postroad"]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _follow(name: str, extras: frozenset[str], found: dict[str, str], seen: frozenset[str] = frozenset()) -> None:
    found[canonicalize_name(name)] = distribution(name).version
    for text in distribution(name).requires or ():
        needed = Requirement(text)
        applies = any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
        if applies and text not in seen:
            _follow(needed.name, frozenset(needed.extras), found, seen | {text})


def sbom() -> int:
    """Write build/sbom.json, a bill of materials in the form of CycloneDX."""
    BUILD.mkdir(exist_ok=True)
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--of", "JSON", "-o", str(BUILD / "sbom.json")]
    return subprocess.run(
        [_BIN / "cyclonedx-py", "requirements", "-", *options], input="\n".join(requirements()), text=True
    ).returncode


def audit() -> int:
    """Look the dependencies up in the database of vulnerabilities; say so if it cannot be reached."""
    BUILD.mkdir(exist_ok=True)
    listed = BUILD / "requirements.txt"
    listed.write_text("\n".join(requirements()) + "\n")
    command = [
        _BIN / "pip-audit",
        "-r",
        listed,
        "--disable-pip",
        "--no-deps",
        "--progress-spinner",
        "off",
        "-f",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    return report(done.stdout, done.stderr)


def report(answer: str, errors: str) -> int:
    """Print what an audit answered; return 1 if it found something, and 0 otherwise."""
    try:
        audited = json.loads(answer)["dependencies"]
    except (ValueError, KeyError):
        print(f"not audited: the database cannot be reached: {errors.strip().splitlines()[-1:]}")
        return 0
    skipped = [each for each in audited if "skip_reason" in each]
    weak = [each for each in audited if each.get("vulns")]
    for each in weak:
        print(f"{each['name']} {each['version']}: {', '.join(found['id'] for found in each['vulns'])}")
    for each in skipped[:1]:
        print(f"not audited: {len(skipped)} of {len(audited)} packages, such as {each['name']}: {each['skip_reason']}")
    print(f"{len(audited) - len(skipped)} packages audited, {len(weak)} with known vulnerabilities")
    return 1 if weak else 0


def lock() -> int:
    """Write build/requirements.lock: what pip would install here, with versions and hashes."""
    BUILD.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = subprocess.run([*command, f"{ROOT}[all]"], stdout=subprocess.PIPE, text=True, check=True)
    (BUILD / "requirements.lock").write_text(locked(json.loads(done.stdout)))
    return 0


def locked(report: dict[str, list[dict[str, dict[str, dict[str, dict[str, str]]]]]]) -> str:
    """Return the lines of a lock file from a report of pip; Postroad itself is not one of them."""
    lines = []
    for each in report["install"]:
        hashes = each["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" in hashes:
            lines.append(f"{each['metadata']['name']}=={each['metadata']['version']} --hash=sha256:{hashes['sha256']}")
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


if __name__ == "__main__":
    if sys.argv[1] == "requirements":
        print("\n".join(requirements()))
    else:
        sys.exit({"sbom": sbom, "audit": audit, "lock": lock}[sys.argv[1]]())
