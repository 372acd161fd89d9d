"""Two layers as one kernel, in twenty lines: build, compile, call, compare, ask where the time goes.

python examples/quickstart.py
"""

from __future__ import annotations

import numpy as np

import superkernel as sk
from superkernel.reference import evaluate


def two_layers() -> sk.Graph:
    """A row of 256 numbers through 1,024 hidden ones."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(s, np.float32) / np.float32(16) for s in ((256, 1024), (1024, 256)))
    b = sk.GraphBuilder("two layers")
    x = b.input("x", (1, 256))
    b.output(b.softmax(b.gelu(x @ b.constant(first)) @ b.constant(second)), "y")
    return b.graph()


def main() -> None:
    graph = two_layers()
    kernel = sk.compile(graph)
    x = np.random.default_rng(1).standard_normal((1, 256), np.float32)
    expected = evaluate(graph, {"x": x})["y"]
    print(f"{len(graph.nodes)} nodes, one kernel on {kernel.threads} threads")
    print(f"largest difference from NumPy: {np.abs(kernel(x) - expected).max():.1e}")
    print(kernel.report({"x": x}, rounds=50).text(boundaries_max=3))


if __name__ == "__main__":
    main()
