"""The benchmark's plot as SVG: per workload the time of every rival over ours, on a logarithmic axis.

No plotting library: a page of circles and lines. Left of the line at 1 a rival is faster than we are. Each runner has a
colour and a shape of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

ROW, LEFT, WIDTH, TOP = 20.0, 150.0, 620.0, 64.0  # px
STYLES = {
    "superkernel-bf16": ("#ff7f0e", "square"),
    "superkernel-int8": ("#ff7f0e", "diamond"),
    "onnxruntime": ("#1f77b4", "circle"),
    "onnxruntime-bound": ("#1f77b4", "square"),
    "onnxruntime-fused": ("#1f77b4", "diamond"),
    "openvino": ("#9467bd", "circle"),
    "openvino-bf16": ("#9467bd", "square"),
    "torch-compile": ("#d62728", "circle"),
    "torch-aot": ("#d62728", "square"),
    "jax": ("#2ca02c", "circle"),
    "numpy": ("#7f7f7f", "circle"),
}


def _mark(shape: str, x: float, y: float, colour: str, title: str) -> str:
    hint = f"<title>{escape(title)}</title>"
    style = f'fill="{colour}" fill-opacity="0.75"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {style}>{hint}</circle>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape == "diamond" else ""
    return f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" {style}{turn}>{hint}</rect>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _grid(low: int, high: int, place: Callable[[float], float], bottom: float) -> list[str]:
    """A line per power of 2, as many as there is room for, and always the one at 1."""
    step = max(1, (high - low) // 10)
    parts = []
    for power in sorted({0, *range(low, high + 1, step)}):
        x = place(2.0**power)
        style = 'stroke="#000" stroke-width="1.5"' if power == 0 else 'stroke="#ddd" stroke-width="1"'
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8:.0f}" y2="{bottom:.0f}" {style}/>')
        parts.append(_text(x, bottom + 14, f"{2.0**power:g}", "middle"))
    return parts


def svg(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The plot of workloads by name, each with its rivals' rows (`times_ours`) by theirs."""
    ratios = [row["times_ours"][0] for _, found in rows for row in found.values()] or [1.0]
    low, high = math.floor(math.log2(min(0.5, *ratios))), math.ceil(math.log2(max(4.0, *ratios)))
    height = TOP + ROW * len(rows) + 30

    def place(ratio: float) -> float:
        return LEFT + WIDTH * (math.log2(ratio) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30:.0f} {height:.0f}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(LEFT, 16, "time of each rival over ours (logarithmic); right of the line at 1 we are faster"),
    ]
    present = [name for name in STYLES if any(name in found for _, found in rows)]
    for i, name in enumerate(present):
        x, line = LEFT + 130 * (i % 5), 32.0 + 14 * (i // 5)
        parts += [_mark(STYLES[name][1], x, line - 4, STYLES[name][0], name), _text(x + 8, line, name)]
    parts += _grid(low, high, place, height - 24)
    for i, (name, found) in enumerate(rows):
        y = TOP + ROW * (i + 0.5)
        parts.append(_text(LEFT - 8, y + 4, name, "end"))
        for runner, row in found.items():
            ratio = row["times_ours"][0]
            colour, shape = STYLES.get(runner, ("#000", "circle"))
            parts.append(_mark(shape, place(ratio), y, colour, f"{runner}, {name}: {ratio:.2f}"))
    return "\n".join([*parts, "</svg>"]) + "\n"
