"""What each optimisation gives on the simulated accelerator, for one step of a decoder of one layer.

    python examples/ablate.py [TARGET [FILE.html [MODEL]]]

Launched one by one, fused with full barriers, then one optimisation after the other: narrower synchronisation, early
start, prefetches of code and weights, streams, locality. Prints the table, and writes the rows as a page. With MODEL,
an ONNX or node-link JSON file, of that.
"""

from __future__ import annotations

import sys

from decode import decoder

from superkernel.analysis.ablation import ablation, ablation_page
from superkernel.display.tracing import save_page
from superkernel.frontends import load_graph


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "a3"
    page = sys.argv[2] if len(sys.argv) > 2 else "ablation.html"
    graph = load_graph(sys.argv[3]) if len(sys.argv) > 3 else decoder(layers=1)
    found = ablation(graph, target)
    print(found.text())
    save_page(page, ablation_page(found).html())
    print(f"{page} written")


if __name__ == "__main__":
    main()
