"""Writing the results down: `results.json`, `RESULTS.md` and a chart per row, all from the same data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.chart import amount, draw, verdict
from benchmarks.frame import Durability
from benchmarks.results import Results, RowResult

_RULES = """
Both sides run in one process tree on one machine, in turns (A B, B A, …), with the same messages and durability.
`ratio` is the median of the rounds' ratios, with the lowest and the highest; above 1 Postroad ("ours") is better. For
seconds, bytes and requests, less is better, and the ratio is inverted. A round counts only if its result was correct:
everything arrived, once, and in order where order is promised. Journal mode and `synchronous` are read back from each
side's connection, and commits are counted in its log; a row in which these settings differ is not judged. Rows that are
furthest below their targets come first. [Benchmarks](../docs/benchmarks.md) explains the notes.
"""


def write(results: Results, out: Path, *, code: Mapping[str, str]) -> None:
    """Write all files under `out`, replacing those of an earlier run. `code` names the present code of each row."""
    charts = out / "charts"
    charts.mkdir(parents=True, exist_ok=True)
    document = msgspec.json.format(msgspec.json.encode(results), indent=1)
    (out / "results.json").write_bytes(document + b"\n")
    (out / "RESULTS.md").write_text(markdown(results, code=code))
    for row in results.rows:
        (charts / f"{row.name}.svg").write_text(draw(row))


def markdown(results: Results, *, code: Mapping[str, str]) -> str:
    """The page for people. Rows that were measured on other code than `code` names are marked stale."""
    machine = results.machine
    lines = [
        "# Results",
        "",
        f"Last run {results.started_at}{' (quick)' if results.quick else ''} at commit `{results.commit or '?'}` on",
        f"{machine.cpu}, {machine.cores} cores, {machine.memory / 2**30:.0f} GiB,",
        f"{machine.disk_fsync_per_second:,} syncs/s, Python {machine.python}, SQLite {machine.sqlite},",
        f"Linux {machine.kernel}.",
        _RULES,
        "| row | ours | peer | ratio | target | met | note |",
        "|---|---:|---:|---:|---:|---|---|",
        *(_table_line(row, stale=row.code != code.get(row.name)) for row in results.rows),
        "",
        *_absent_lines(results),
        "## Rows",
        *(line for row in results.rows for line in _section(row)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def line(row: RowResult) -> str:
    """One line for the terminal."""
    spread = "" if row.ratio is None else f" [{row.ratio_low:.2f} to {row.ratio_high:.2f}]"
    return f"{row.name}: {verdict(row)}{spread}{' (' + row.note + ')' if row.note else ''}"


def _table_line(row: RowResult, *, stale: bool) -> str:
    note = "; ".join(part for part in ("**stale**" if stale else "", "quick" if row.quick else "", row.note) if part)
    cells = [
        f"[{row.name}](charts/{row.name}.svg)",
        _median(row.ours_samples, row.unit),
        _median(row.peer_samples, row.unit),
    ]
    cells += [_ratio(row), "information" if row.target is None else f"{row.target:.2g}", _met(row), note]
    return f"| {' | '.join(cells)} |"


def _median(samples: tuple[float, ...], unit: str) -> str:
    return amount(statistics.median(samples), unit) if samples else "-"


def _ratio(row: RowResult) -> str:
    return "-" if row.ratio is None else f"{row.ratio:.2f} ({row.ratio_low:.2f}&nbsp;to&nbsp;{row.ratio_high:.2f})"


def _met(row: RowResult) -> str:
    return {True: "yes", False: "**no**", None: "-"}[row.met]


def _absent_lines(results: Results) -> list[str]:
    if not results.absent:
        return []
    return ["Absent:", "", *(f"- {row.name}: {row.peer}: {row.reason}" for row in results.absent), ""]


def _section(row: RowResult) -> list[str]:
    rounds = f"{len(row.ours_samples)} {'round' if len(row.ours_samples) == 1 else 'rounds'}"
    return [
        "",
        f"### {row.name}",
        "",
        f"{row.what[0].upper()}{row.what[1:]}.",
        f"Ours: {row.ours}{_commits(row.ours_durability)}. Peer: {row.peer}{_commits(row.peer_durability)}.",
        f"{rounds}, checked: {'yes' if row.checked else 'no'}, commit `{row.commit or '?'}`.",
        "",
        f"![{row.name}](charts/{row.name}.svg)",
    ]


def _commits(durability: Durability | None) -> str:
    if durability is None:
        return ""
    count = durability.commits_per_message
    counted = "commits not counted" if count is None else f"{count:.2f} commits per message"
    return f" ({durability.journal}, synchronous {durability.synchronous}, {counted})"
