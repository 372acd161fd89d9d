"""Each optimisation of a fused kernel on the accelerator: a workload where it matters and one where it does not, and
what the ablation names as the reason."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.analysis.ablate import NO_GAIN, ablate, ablation_target
from superkernel.ir.graph import Graph
from superkernel.target.aicore import AicoreTarget

MINI, A3 = ablation_target("mini"), ablation_target("a3")
CROWDED = A3.replaced({"icache.same_line_interval_cycles": 16})  # the end of the range over which it is varied
OFF: dict[str, Any] = {
    "sync": "full", "early_start": False, "preload": "none", "split": 1, "weight_prefetch": "none", "streams": "off",
    "locality": "off",
}  # fmt: skip


def cycles(graph: Graph, target: AicoreTarget, **on: Any) -> int:
    """Simulated with everything off but `on`."""
    kernel = sk.compile(graph, target=target, options={**OFF, "launches": "fused", **on})
    return int(kernel.report(rounds=0).cycles)


def gain(graph: Graph, target: AicoreTarget, without: dict[str, Any], on: dict[str, Any]) -> float:
    return 1 - cycles(graph, target, **{**without, **on}) / cycles(graph, target, **without)


@cache
def softmaxes(count: int = 6, size: int = 128) -> Graph:
    """Vector cores alone; each step reads what all cores of the one before wrote. Two kernels, again and again."""
    b = sk.GraphBuilder("softmaxes")
    x = b.input("x", (size, size), "f16")
    for step in range(count):
        x = b.softmax(x, axis=step % 2)
    b.output(x, "y")
    return b.graph()


@cache
def in_turn(count: int = 3, size: int = 128) -> Graph:
    """Cube cores and vector cores in turn."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("in turn")
    x = b.input("x", (size, size), "f16")
    for _ in range(count):
        weight = b.constant(rng.standard_normal((size, size)).astype(np.float16) / 16)
        with b.kernel_type("AIC_ONLY"):
            x = b.matmul(x, weight)
        x = b.softmax(x, axis=0)
    b.output(x, "y")
    return b.graph()


@cache
def products(count: int = 4, width: int = 512) -> Graph:
    """Few rows, many weights: what a product waits for ahead of its rows are its weights."""
    rng = np.random.default_rng(1)
    b = sk.GraphBuilder("products")
    x = b.input("x", (16, width), "f16")
    for _ in range(count):
        x = b.matmul(x, b.constant(rng.standard_normal((width, width)).astype(np.float16) / 32))
    b.output(x, "y")
    return b.graph()


MINIMAL, WARM = {"sync": "minimal"}, {"preload": "auto"}
CASES = [  # (graph, target, what is on already, what is switched on, least gain; None: none)
    # Kernels of one type follow one another: their range is that type. In turn, both types take part in each.
    pytest.param(softmaxes(), MINI, WARM, {"sync": "type-range"}, 0.03, id="ranges, one type"),
    pytest.param(softmaxes(), A3, WARM, {"sync": "type-range"}, 0.03, id="ranges, one type, a3"),
    pytest.param(in_turn(), MINI, WARM, {"sync": "type-range"}, None, id="ranges, types in turn"),
    # Weights and set-up run while a flag is under way; beside long work there is little to hide.
    pytest.param(products(), A3, MINIMAL, {"early_start": True}, 0.1, id="early start, weights"),
    pytest.param(
        softmaxes(2, 2048), MINI, {**MINIMAL, **WARM}, {"early_start": True}, None, id="early start, long work"
    ),
    # Code that is used once is missed once: much of a short run, nothing of a long one.
    pytest.param(softmaxes(2), MINI, MINIMAL, WARM, 0.1, id="preload, short work"),
    pytest.param(softmaxes(2, 2048), MINI, MINIMAL, WARM, None, id="preload, long work"),
    # Cores that ask for one line at once wait in turn; with the code preloaded nobody asks.
    pytest.param(softmaxes(6, 512), CROWDED, MINIMAL, {"split": 8}, 0.03, id="copies, code that is missed"),
    pytest.param(softmaxes(6, 512), CROWDED, {**MINIMAL, **WARM}, {"split": 8}, None, id="copies, preloaded"),
    pytest.param(softmaxes(2, 1024), A3, MINIMAL, {"split": 8}, None, id="copies, as the preset has it"),
    # Weights come from HBM while it has nothing else to do.
    pytest.param(products(), MINI, MINIMAL, {"weight_prefetch": "auto"}, 0.1, id="weights"),
    pytest.param(softmaxes(), MINI, MINIMAL, {"weight_prefetch": "auto"}, None, id="weights, none"),
]


@pytest.mark.parametrize(("graph", "target", "before", "on", "least"), CASES)
def test_it_matters_or_not(
    graph: Graph, target: AicoreTarget, before: dict[str, Any], on: dict[str, Any], least: float | None
) -> None:
    found = gain(graph, target, before, on)
    if least is None:
        assert abs(found) < NO_GAIN
    else:
        assert found > least


def test_the_ablation_names_what_it_works_by() -> None:
    """The sentences hold the figures of the rows."""
    found = ablate(products(), MINI)
    why = {row.name: row.why for row in found.rows}
    rows = {row.name: row for row in found.rows}
    assert why["type-range sync"].startswith("boundaries 3 all before, 3 type now")
    pure = rows["type-range sync"].split["pure"]
    assert why["type-range sync"].endswith(f"{pure:.2f} us now")
    assert f"{rows['early start'].split['misses']:.2f} us before" in why["preload"]
    assert "the last of 4 cores is" in why["split"]
    assert "into L2" in why["weight prefetch"]
    assert "estimated cycles" in why["streams"] or why["streams"] == "nothing to arrange"
    assert all(f"{name}: {said}" in found.text() for name, said in why.items() if said)
