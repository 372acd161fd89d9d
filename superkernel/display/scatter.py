"""A page with scatter plots: rows by two figures, those that no other one beats joined by a line. One file, offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from superkernel.core.counted import counted

WIDE, TALL = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 24, 46
_LOG_FROM = 5.0  # largest over smallest value from which on an axis is logarithmic
_STYLE = """
:root{color-scheme:light dark;--ink:#222;--faint:#666;--dot:#9db4d6;--best:#b3471d;--line:#ddd;--paper:#fff}
@media (prefers-color-scheme:dark){
:root{--ink:#eee;--faint:#aaa;--dot:#5b7299;--best:#f09a6c;--line:#444;--paper:#16181c}}
body{font:14px system-ui,sans-serif;color:var(--ink);background:var(--paper)}
main{margin:2rem auto;max-width:60rem;padding:0 1rem}
text{font-size:12px;fill:var(--faint)}table{border-collapse:collapse}
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid var(--line)}
td:first-child,th:first-child{text-align:left}.best td{color:var(--best);font-weight:600}
"""


@dataclass(frozen=True)
class ScatterPoint:
    """A row: what it is called, its two figures, whether no other one beats it, its cells in the table."""

    name: str
    x: float
    y: float
    best: bool
    cells: tuple[str, ...]


def scatter_page(
    title: str, axes: tuple[str, str], head: Sequence[str], groups: Sequence[tuple[str, Sequence[ScatterPoint]]]
) -> str:
    """The page: per group its name, its plot and its table."""
    parts = [f"<h1>{escape(title)}</h1>"]
    for name, points in groups:
        parts += [f"<h2>{escape(name)}</h2>", _plot(name, axes, points), _table(name, head, points)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><main>\n" + "\n".join(parts) + "\n</main></body></html>\n"
    )


class _Axis:
    """From values to pixels between `low` and `high`; logarithmic where values differ much."""

    def __init__(self, values: Sequence[float], low: float, high: float) -> None:
        least, most = min(values), max(values)
        self.logarithmic = least > 0 and most / least >= _LOG_FROM
        self.low, self.high = low, high
        self.begin, self.end = self._scaled(least), self._scaled(most)
        if self.begin == self.end:
            self.begin, self.end = self.begin - 0.5, self.end + 0.5
        self.ticks = sorted({least, most}) if least < most else [least]

    def at(self, value: float) -> float:
        share = (self._scaled(value) - self.begin) / (self.end - self.begin)
        return self.low + (0.04 + 0.92 * share) * (self.high - self.low)

    def _scaled(self, value: float) -> float:
        return log10(value) if self.logarithmic else value


def _plot(name: str, axes: tuple[str, str], points: Sequence[ScatterPoint]) -> str:
    if not points:
        return "<p>No point has both figures.</p>"
    across = _Axis([p.x for p in points], _LEFT, WIDE - _RIGHT)
    up = _Axis([p.y for p in points], TALL - _BOTTOM, _TOP)
    best = sorted((p.x, p.y) for p in points if p.best)
    steps = [(across.at(x), up.at(y)) for x, y in best]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in steps)
    dots = "".join(
        f'<circle cx="{across.at(p.x):.1f}" cy="{up.at(p.y):.1f}" r="{5 if p.best else 4}" '
        f'fill="var(--{("dot", "best")[p.best]})"><title>{escape(p.name)}: {axes[0]} {p.x:,g}, {axes[1]} {p.y:,g}'
        f"</title></circle>"
        for p in sorted(points, key=lambda p: p.best)
    )
    marks = [f'<text x="{across.at(v):.0f}" y="{TALL - 26}" text-anchor="middle">{v:,g}</text>' for v in across.ticks]
    marks += [f'<text x="{_LEFT - 8}" y="{up.at(v) + 4:.0f}" text-anchor="end">{v:,g}</text>' for v in up.ticks]
    names = (
        f'<text x="{WIDE - _RIGHT}" y="{TALL - 8}" text-anchor="end">{escape(_named(axes[0], across))}</text>'
        f'<text x="{_LEFT}" y="14">{escape(_named(axes[1], up))}</text>'
    )
    said = f"{escape(name)}: {counted(len(points), 'point')}, {len(best)} of them beaten by none"
    return (
        f'<svg width="{WIDE}" height="{TALL}" viewBox="0 0 {WIDE} {TALL}" role="img" aria-label="{said}">'
        f'<path d="M{_LEFT},{_TOP}V{TALL - _BOTTOM}H{WIDE - _RIGHT}" fill="none" stroke="var(--line)"/>'
        f'<polyline points="{line}" fill="none" stroke="var(--best)"/>{dots}{"".join(marks)}{names}</svg>'
    )


def _named(name: str, axis: _Axis) -> str:
    return f"{name} (logarithmic)" if axis.logarithmic else name


def _table(name: str, head: Sequence[str], points: Sequence[ScatterPoint]) -> str:
    rows = []
    for point in points:
        kind = ' class="best"' if point.best else ""
        rows.append(f"<tr{kind}>{''.join(f'<td>{escape(cell)}</td>' for cell in point.cells)}</tr>")
    cells = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    return f'<table aria-label="{escape(name)}"><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
