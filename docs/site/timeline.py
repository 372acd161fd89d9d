"""The picture of the README: one block on a simulated accelerator, with full barriers and as chosen.

    python docs/site/timeline.py [docs/timeline.svg]

Prints the SVG, or writes it. The graph is the tutorial's; times are the simulator's, without what launching costs, so
that the picture is the same on every machine. Rows are the cores of the first group. Bars are a core's own time in a
sub-operator; what it waits in it for others is pale.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import superkernel as sk
from superkernel.display.spans import SpanKind

GROUP = "(group 0)"  # a cube core and its two vector cores
COLOURS = ("#3b6fb6", "#c2562d", "#3d8f5f")
CHOICES = (("a full barrier between sub-operators", {"sync": "full"}), ("as chosen", {}))
LEFT, WIDTH, ROW, GAP, HEAD = 64, 640, 22, 40, 34
_WAITS = (SpanKind.WAIT, SpanKind.IMBALANCE)


def block() -> sk.Graph:
    """The tutorial's: one token through a feed-forward block."""
    rng = np.random.default_rng(0)

    def weight(rows: int, columns: int) -> np.ndarray:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(np.float32(rows))

    b = sk.GraphBuilder("block")
    x = b.input("x", (1, 256), "f32")
    h = b.layer_norm(x, b.constant(np.ones(256, np.float32)), b.constant(np.zeros(256, np.float32)))
    h = b.gelu(h @ b.constant(weight(256, 1024))) @ b.constant(weight(1024, 256))
    b.output(x + h, name="y")
    return b.graph()


def picture() -> str:
    """The SVG, in colours that are seen on white and on black."""
    graph, parts = block(), []
    traces = [(title, sk.compile(graph, target="a3", options=options).trace()) for title, options in CHOICES]
    scale = WIDTH / max(trace.duration_us for _, trace in traces)
    names: dict[int, str] = {}
    top = HEAD
    for title, trace in traces:
        names |= trace.subops
        parts.append(_text(LEFT, top - 8, f"{title}: {trace.duration_us:.1f} us", weight="bold"))
        for core, name in trace.cores.items():
            if not name.endswith(GROUP):
                continue
            lanes = {i: track.name for i, track in enumerate(trace.tracks) if track.core == core}
            parts.append(_text(LEFT - 8, top + ROW - 7, name.removesuffix(GROUP), anchor="end"))
            parts.append(_bar(LEFT, top, WIDTH, "#888", 0.12))
            for span in sorted(trace.spans, key=lambda span: span.activity in _WAITS):  # waits lie in the work
                at, length = LEFT + span.begin_us * scale, (span.end_us - span.begin_us) * scale
                if span.track not in lanes or span.subop not in trace.subops or length < 0.2:
                    continue
                if span.activity is SpanKind.WORK:
                    parts.append(_bar(at, top, length, COLOURS[span.subop % len(COLOURS)], 1.0))
                elif span.activity in _WAITS:
                    parts.append(_bar(at, top, length, "#f2e3c6", 1.0))
            top += ROW + 2
        top += GAP
    for index, name in sorted(names.items()):
        at = LEFT + 150 * index
        parts.append(_bar(at, top - 26, 14, COLOURS[index % len(COLOURS)], 1.0, 14))
        parts.append(_text(at + 20, top - 14, name))
    at = LEFT + 150 * len(names)
    parts += [_bar(at, top - 26, 14, "#f2e3c6", 1.0, 14), _text(at + 20, top - 14, "waits for other cores")]
    size = f'width="{LEFT + WIDTH + 16}" height="{top}" viewBox="0 0 {LEFT + WIDTH + 16} {top}"'
    style = "text{font:13px system-ui,sans-serif;fill:#777}"
    title = "One block on a simulated accelerator: with full barriers, and as chosen"
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{title}</title><style>{style}</style>'
    return f"{head}\n{body}\n</svg>\n"


def _bar(x: float, y: float, width: float, colour: str, opacity: float, height: int = ROW) -> str:
    faint = f' opacity="{opacity}"' if opacity < 1 else ""
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"{faint}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'


def main(arguments: list[str]) -> int:
    if arguments:
        Path(arguments[0]).write_text(picture(), encoding="utf-8")
    else:
        print(picture(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
