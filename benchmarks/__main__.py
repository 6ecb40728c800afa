"""`python -m benchmarks`: measure rows, write them down, print the losses first."""

from __future__ import annotations

import difflib
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.frame import Row, Scale, WrongResult, measure, missing
from benchmarks.machine import describe
from benchmarks.report import line, write
from benchmarks.results import Absent, Results, RowResult, commit, merge, now, read, row_result, wrong_result
from benchmarks.rows import ROWS

app = typer.Typer(add_completion=False)
QUICK_ROUNDS = 3


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Option(help="Measure this row; may be repeated.", metavar="NAME")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes and three rounds.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds per row; 7, or 3 when quick.")] = None,
    out: Annotated[Path, typer.Option(help="Where the results go.", file_okay=False)] = Path("benchmarks"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the rows and stop.")] = False,
    render: Annotated[bool, typer.Option("--render", help="Write the pages again from results.json and stop.")] = False,
) -> None:
    """Measure Postroad beside its peers."""
    rows = _chosen(only or [])
    if show:
        _list(rows, as_json=as_json)
        return
    old = read(out / "results.json")
    if render:
        _render(old, out)
        return
    found = _run(rows, scale="quick" if quick else "full", rounds=rounds or (QUICK_ROUNDS if quick else 7))
    write(merge(old, found), out)
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    if not all(row.checked for row in found.rows):
        raise typer.Exit(1)


def _chosen(names: list[str]) -> list[Row]:
    known = {row.name: row for row in ROWS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            typer.echo(f"error: there is no row {name!r}.{hint} Rows: {', '.join(known)}", err=True)
            raise typer.Exit(2)
    return [known[name] for name in names] or list(ROWS)


def _list(rows: list[Row], *, as_json: bool) -> None:
    items = [{"name": row.name, "what": row.what, "peer": row.peer.label, "target": row.target} for row in rows]
    if as_json:
        typer.echo(msgspec.json.encode({"items": items}).decode())
        return
    for row in rows:
        typer.echo(f"{row.name:28} {row.what} (beside {row.peer.label})")


def _render(old: Results | None, out: Path) -> None:
    if old is None:
        typer.echo(f"error: {out / 'results.json'} holds no results; run `make bench` first", err=True)
        raise typer.Exit(2)
    write(old, out)


def _run(rows: list[Row], *, scale: Scale, rounds: int) -> Results:
    started_at = now()
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory:
        machine = describe(Path(directory))
    absent = [Absent(row.name, side.label, "not installed") for row in rows if (side := missing(row)) is not None]
    done = [_measure(row, scale=scale, rounds=rounds) for row in rows if missing(row) is None]
    results = Results(
        machine=machine,
        started_at=started_at,
        quick=scale != "full",
        rows=tuple(done),
        absent=tuple(absent),
        commit=commit(),
    )
    return merge(None, results)


def _measure(row: Row, *, scale: Scale, rounds: int) -> RowResult:
    typer.echo(f"{row.name}: {rounds} rounds beside {row.peer.label} …", err=True)
    # A directory of its own, so that a large backlog is gone before the next row.
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory:
        try:
            result = row_result(row, measure(row, scale=scale, rounds=rounds, directory=Path(directory)), scale=scale)
        except WrongResult as error:
            result = wrong_result(row, str(error), scale=scale)
    typer.echo(f"  {line(result)}", err=True)
    return result


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
