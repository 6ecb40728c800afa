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
from benchmarks.rows import ROWS, code

app = typer.Typer(add_completion=False)
ROUNDS = 7
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
    found = _run(
        rows, old, out, scale="quick" if quick else "full", rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS)
    )
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
    write(old, out, code=code())


def _run(rows: list[Row], old: Results | None, out: Path, *, scale: Scale, rounds: int) -> Results:
    """Measure the rows, and write each one down as soon as it is measured."""
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory:
        machine = describe(Path(directory))
    found = Results(machine=machine, started_at=now(), quick=scale != "full", commit=commit())
    for row in rows:
        if (side := missing(row)) is not None:
            absent = Absent(row.name, side.label, "not installed")
            found = msgspec.structs.replace(found, absent=(*found.absent, absent))
        else:
            measured = _measure(row, scale=scale, rounds=rounds)
            found = msgspec.structs.replace(found, rows=(*found.rows, measured))
        write(merge(old, found), out, code=code())
    return merge(None, found)


def _measure(row: Row, *, scale: Scale, rounds: int) -> RowResult:
    typer.echo(f"{row.name}: {rounds} rounds beside {row.peer.label} …", err=True)
    # A directory of its own, so that a large backlog is gone before the next row.
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory:
        try:
            samples = measure(row, scale=scale, rounds=rounds, directory=Path(directory))
            result = row_result(row, samples, scale=scale, code=code()[row.name])
        except WrongResult as error:
            result = wrong_result(row, str(error), scale=scale, code=code()[row.name])
    typer.echo(f"  {line(result)}", err=True)
    return result


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
