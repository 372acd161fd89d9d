"""The benchmark's plot as SVG: per workload the time of every rival over ours, on a logarithmic axis.

No plotting library: a page of circles and lines. Left of the line at 1 a rival is faster than we are. Each runner has a
colour and a shape of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

ROW, LEFT, WIDTH, TOP = 20, 150, 620, 64
STYLES = {
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


def svg(results: Mapping[str, Any]) -> str:
    """The plot of all workloads with at least one rival."""
    from document import measured, rivals

    rows = [(w["name"], {**rivals(w), **rivals(w, "bf16")}) for w in measured(results)]
    ratios = [row["times_ours"][0] for _, found in rows for row in found.values()] or [1.0]
    low, high = math.floor(math.log2(min(0.5, *ratios))), math.ceil(math.log2(max(4.0, *ratios)))
    height = TOP + ROW * len(rows) + 30

    def place(ratio: float) -> float:
        return LEFT + WIDTH * (math.log2(ratio) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(LEFT, 16, "time of each rival over ours (logarithmic); right of the line at 1 we are faster"),
    ]
    present = [name for name in STYLES if any(name in found for _, found in rows)]
    for i, name in enumerate(present):
        x, y = LEFT + 130 * (i % 5), 32 + 14 * (i // 5)
        parts += [_mark(STYLES[name][1], x, y - 4, STYLES[name][0], name), _text(x + 8, y, name)]
    step = max(1, (high - low) // 10)
    for power in range(low, high + 1, step):
        x, bold = place(2.0**power), power == 0
        colour, width = ("#000", 1.5) if bold else ("#ddd", 1)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 24}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )
        parts.append(_text(x, height - 10, f"{2.0**power:g}", "middle"))
    if low % step:
        x = place(1.0)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 24}" stroke="#000" stroke-width="1.5"/>'
        )
    for i, (name, found) in enumerate(rows):
        y = TOP + ROW * i + ROW / 2
        parts.append(_text(LEFT - 8, y + 4, name, "end"))
        for runner, row in found.items():
            ratio = row["times_ours"][0]
            colour, shape = STYLES.get(runner, ("#000", "circle"))
            parts.append(_mark(shape, place(ratio), y, colour, f"{runner}, {name}: {ratio:.2f}"))
    return "\n".join([*parts, "</svg>"]) + "\n"
