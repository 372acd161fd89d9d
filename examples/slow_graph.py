"""A slow graph made fast, by what its report says: attention written head by head, and as one operator.

    python examples/slow_graph.py [FOLDER]

The first graph slices its heads out, multiplies them one by one and joins them again: many small sub-operators, each
with a boundary. Its report names what limits it; the second graph says the same with `attention`. Both are reported,
their pages and a third one with the two side by side are written into FOLDER (".").
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import superkernel as sk
from superkernel.builder.tensor import Tensor
from superkernel.display.comparison import comparison_page
from superkernel.display.difference import difference
from superkernel.display.tracing import save_page

ROWS, WIDTH, HEADS = 16, 128, 16
SIZE = WIDTH // HEADS


def projected(b: sk.GraphBuilder) -> list[Tensor]:
    """Queries, keys and values of one input."""
    rng = np.random.default_rng(0)
    x = b.input("x", (ROWS, WIDTH))
    scale = np.sqrt(np.float32(WIDTH))
    return [x @ b.constant(rng.standard_normal((WIDTH, WIDTH), np.float32) / scale) for _ in "qkv"]


def head_by_head() -> sk.Graph:
    b = sk.GraphBuilder("head by head")
    q, k, v = projected(b)
    heads = []
    for head in range(HEADS):
        own = [b.slice(part, starts=(0, head * SIZE), ends=(ROWS, (head + 1) * SIZE)) for part in (q, k, v)]
        scores = own[0] @ own[1].transpose(1, 0) * (1 / np.sqrt(SIZE))
        heads.append(b.softmax(scores) @ own[2])
    b.output(b.concat(*heads, axis=1), "y")
    return b.graph()


def as_one_operator() -> sk.Graph:
    b = sk.GraphBuilder("one operator")
    q, k, v = (part.reshape(1, ROWS, HEADS, SIZE).transpose(0, 2, 1, 3) for part in projected(b))
    b.output(b.attention(q, k, v).transpose(0, 2, 1, 3).reshape(ROWS, WIDTH), "y")
    return b.graph()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH), np.float32)
    reports, outputs = [], []
    for graph, name in ((head_by_head(), "slow"), (as_one_operator(), "fast")):
        kernel = sk.compile(graph)
        outputs.append(kernel(x))
        report = kernel.report({"x": x}, rounds=30)
        save_page(folder / f"{name}.html", report.html())
        reports.append(report)
        print(f"{graph.name}: {report.subops} sub-operators, {report.waits} waits, a launch takes {report.run}")
        largest = max(report.parts, key=lambda part: part.share, default=None)
        if largest is not None:
            print(f"  {largest.name} takes most, {largest.share:.0%}; what would help: {report.gains[0].what}")
    assert np.abs(outputs[0] - outputs[1]).max() < 1e-4
    before, after = (report.to_json() for report in reports)
    found = difference(before, after, names=("slow", "fast"))
    save_page(folder / "both.html", comparison_page(found, before, after, ("slow", "fast")).html())
    print(f"{reports[0].run_ns / reports[1].run_ns:.1f} times as fast; see slow.html, fast.html, both.html")


if __name__ == "__main__":
    main()
