"""Pools whose results have one column or one row, and windows of which some positions lie outside of every input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs

CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "one column": ("max_pool", (3, 3, 16, 3), {"kernel": (2, 3), "strides": (2, 2)}),
    "one row": ("max_pool", (3, 3, 3, 16), {"kernel": (3, 2), "strides": (2, 2)}),
    "one of both": ("avg_pool", (2, 24, 5, 5), {"kernel": (5, 5)}),
    "rows outside": ("max_pool", (1, 64, 1, 5), {"kernel": (3, 3), "pads": (1, 1, 1, 1)}),
    "columns outside": ("avg_pool", (1, 64, 5, 1), {"kernel": (3, 3), "pads": (1, 1, 1, 1)}),
    "rounded up": ("max_pool", (1, 16, 7, 7), {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True}),
}


@pytest.mark.parametrize("behind", ["nothing", "relu"])
@pytest.mark.parametrize("case", CASES)
def test_odd_windows(case: str, behind: str) -> None:
    op, shape, attrs = CASES[case]
    b = sk.GraphBuilder(op)
    (y,) = b.apply(op, [b.input("x", shape)], attrs)
    b.output(b.relu(y) if behind == "relu" else y, "y")
    graph = b.graph()
    inputs = random_inputs(graph.inputs, 0)
    got = sk.compile(graph, target="mini").run(inputs).outputs["y"]
    np.testing.assert_allclose(got, evaluate(graph, inputs)["y"], rtol=4e-3, atol=4e-3)
