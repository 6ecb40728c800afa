"""One row as a picture: every sample a dot, the medians as bars."""

from __future__ import annotations

import statistics
from html import escape

from benchmarks.results import RowResult

WIDTH, HEIGHT, BAR_LEFT, BAR_WIDTH = 720, 166, 12, 600
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2933}.small{font-size:11px;fill:#52606d}"
    ".ours{fill:#2f6f4f}.peer{fill:#9aa5b1}.dot{fill:#1f2933;fill-opacity:.55}.back{fill:#fff}"
    "@media (prefers-color-scheme:dark){text{fill:#e4e7eb}.small{fill:#9aa5b1}.dot{fill:#e4e7eb}.back{fill:#1f2933}}"
)


def draw(row: RowResult) -> str:
    """The row as an SVG image."""
    longest = max([*row.ours_samples, *row.peer_samples], default=1) or 1
    bars = [_bar(row.ours, row.ours_samples, longest, "ours", row.unit, y=70)]
    bars.append(_bar(row.peer, row.peer_samples, longest, "peer", row.unit, y=124))
    title = f"{row.name}: {verdict(row)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title, quote=True)}"><style>{_STYLE}</style>'
        f'<rect class="back" width="100%" height="100%"/><text x="12" y="24">{escape(title)}</text>'
        f'<text class="small" x="12" y="41">{escape(row.what)}</text>'
        f"{''.join(bars)}</svg>\n"
    )


def verdict(row: RowResult) -> str:
    """The row in a few words."""
    if row.ratio is None:
        return "wrong result"
    target = "information" if row.target is None else f"target {row.target:.2g}"
    judged = {True: "met", False: "missed", None: "not judged"}[row.met]
    return f"{row.ratio:.2f}x ({target}{'' if row.target is None else ', ' + judged})"


def amount(value: float, unit: str) -> str:
    """A figure with its unit, to three digits."""
    if unit == "per_second":
        return f"{value:,.0f}/s"
    if unit == "seconds":
        return f"{value * 1000:,.2f} ms"
    if unit == "bytes":
        return f"{value / 1_000_000:,.1f} MB"
    return f"{value:.3f}"


def _bar(label: str, samples: tuple[float, ...], longest: float, kind: str, unit: str, *, y: int) -> str:
    if not samples:
        return f'<text x="12" y="{y - 6}">{escape(label)}</text>'
    median = statistics.median(samples)
    dots = "".join(
        f'<circle class="dot" cx="{BAR_LEFT + BAR_WIDTH * sample / longest:.1f}" cy="{y + 11}" r="3"/>'
        for sample in samples
    )
    return (
        f'<text x="12" y="{y - 6}">{escape(label)}</text>'
        f'<rect class="{kind}" x="{BAR_LEFT}" y="{y}" width="{BAR_WIDTH * median / longest:.1f}" height="22" rx="3"/>'
        f'{dots}<text x="{BAR_LEFT + BAR_WIDTH + 10}" y="{y + 16}">{amount(median, unit)}</text>'
    )
