"""The results as data: what `results.json` holds, and how a new run joins an older one."""

from __future__ import annotations

import ast
import functools
import hashlib
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.frame import NOISY, Durability, Row, Samples, Scale, Unit, met, noise, ratio, unequal
from benchmarks.machine import Machine

FORMAT = 1
ROOT = Path(__file__).parents[1]


class RowResult(msgspec.Struct, frozen=True):
    """One row as measured. `checked` says that every round's result was verified before its time counted."""

    name: str
    what: str
    ours: str
    peer: str
    unit: Unit
    ours_samples: tuple[float, ...]
    peer_samples: tuple[float, ...]
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    target: float | None
    met: bool | None
    checked: bool
    note: str
    noisy: bool = False
    quick: bool = False
    ours_durability: Durability | None = None
    peer_durability: Durability | None = None
    commit: str | None = None
    code: str = ""


class Absent(msgspec.Struct, frozen=True):
    """A row that could not be measured because its peer is not installed."""

    name: str
    peer: str
    reason: str


class Results(msgspec.Struct, frozen=True):
    """One run."""

    machine: Machine
    started_at: str
    quick: bool
    rows: tuple[RowResult, ...] = ()
    absent: tuple[Absent, ...] = ()
    commit: str | None = None
    format: int = FORMAT


def row_result(row: Row, samples: Samples, *, scale: Scale, code: str) -> RowResult:
    """Judge what the rounds gave."""
    found = ratio(row.unit, samples.ours, samples.peer)
    spread = max(noise(samples.ours), noise(samples.peer))
    return RowResult(
        name=row.name,
        what=row.what,
        ours=row.ours.version() or row.ours.label,
        peer=row.peer.version() or row.peer.label,
        unit=row.unit,
        ours_samples=samples.ours,
        peer_samples=samples.peer,
        ratio=found.median,
        ratio_low=found.low,
        ratio_high=found.high,
        target=row.target,
        met=met(row, samples, scale=scale, found=found),
        checked=True,
        note=_note(row, samples, scale=scale, spread=spread),
        noisy=spread > NOISY,
        quick=scale != "full",
        ours_durability=samples.ours_durability,
        peer_durability=samples.peer_durability,
        commit=commit(),
        code=code,
    )


def wrong_result(row: Row, why: str, *, scale: Scale, code: str) -> RowResult:
    """A row of which a round came out wrong: no time counts."""
    return RowResult(
        name=row.name,
        what=row.what,
        ours=row.ours.version() or row.ours.label,
        peer=row.peer.version() or row.peer.label,
        unit=row.unit,
        ours_samples=(),
        peer_samples=(),
        ratio=None,
        ratio_low=None,
        ratio_high=None,
        target=row.target,
        met=False,
        checked=False,
        note=f"wrong result: {why}",
        quick=scale != "full",
        commit=commit(),
        code=code,
    )


def merge(old: Results | None, new: Results) -> Results:
    """The new run's rows, and the old ones it did not measure again; worst first."""
    seen = {row.name for row in new.rows} | {row.name for row in new.absent}
    kept = [row for row in (old.rows if old else ()) if row.name not in seen]
    missing = [row for row in (old.absent if old else ()) if row.name not in seen]
    rows = sorted([*new.rows, *kept], key=_worst_first)
    return msgspec.structs.replace(new, rows=tuple(rows), absent=(*new.absent, *missing))


def read(path: Path) -> Results | None:
    """An earlier run; None when there is none of this format."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.DecodeError):
        return None


def now() -> str:
    """The moment, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit that is checked out; None outside a clone."""
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def code_hash(module: str, folders: tuple[str, ...], root: Path = ROOT) -> str:
    """A name for the code that the rows of a module measure, committed or not: when it changes, results are stale.

    This is the code of the folders of `src/postroad`, of the files beside these folders, and of the module with what it
    imports of the benchmarks. Comments, docstrings and layout do not count.
    """
    package = root / "src" / "postroad"
    files = {*package.glob("*.py"), *(file for folder in folders for file in (package / folder).rglob("*.py"))}
    digest = hashlib.sha256()
    for path in sorted(files | _with_imports(root / "benchmarks" / f"{module}.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0{_statements(path)}\0".encode())
    return digest.hexdigest()[:16]


def _with_imports(path: Path) -> frozenset[Path]:
    """The file, and the files beside it that it or they import."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module == path.parent.name:
                waiting += [path.with_name(f"{alias.name}.py") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{path.parent.name}."):
                waiting.append(path.with_name(f"{(node.module or '').partition('.')[2]}.py"))
    return frozenset(found)


@functools.cache
def _statements(path: Path) -> str:
    """The syntax tree of a file without its docstrings."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if body := getattr(node, "body", None):
            is_text = isinstance(body, list) and isinstance(body[0], ast.Expr)
            if is_text and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                del body[0]
    return ast.dump(tree)


def _worst_first(row: RowResult) -> tuple[bool, bool, float]:
    """Wrong ones, then by how far they are from their target; information last."""
    if row.ratio is None:
        return (False, False, 0.0)
    return (True, row.target is None, row.ratio / (row.target or 1))


def _note(row: Row, samples: Samples, *, scale: Scale, spread: float) -> str:
    parts = [row.note] if row.note else []
    if unequal(samples):
        parts.append("not comparable: a commit does not promise the same on both sides")
    if spread > NOISY:
        parts.append(f"noisy: rounds lie {spread:.0%} apart")
    if row.target is None:
        parts.append("information")
    if row.loads.at(scale).crowd != row.loads.full.crowd:
        parts.append(f"measured at {row.loads.at(scale).crowd:,} instead of {row.loads.full.crowd:,}")
    return "; ".join(parts)
