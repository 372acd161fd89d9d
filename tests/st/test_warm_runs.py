"""Reports of the second of two runs: L2 holds what the first one left, everything else is as in a first run."""

from __future__ import annotations

import numpy as np
import pytest
from models import decode_step

import superkernel as sk


@pytest.mark.parametrize("target", ["a3", "mini"])
def test_a_warm_run_reads_weights_from_l2(target: str) -> None:
    b = sk.GraphBuilder("product")
    weights = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
    b.output(b.matmul(b.input("x", (16, 512)), b.constant(weights)), "y")
    kernel = sk.compile(b.graph(), target=sk.load_target(target))
    cold, warm = (kernel.report(warm=w) for w in (False, True))
    assert (cold.warm, warm.warm) == (False, True)
    assert warm.memory["misses"] == 0 < cold.memory["misses"]
    assert warm.cycles < cold.cycles
    assert warm.baseline is not None
    assert cold.baseline is not None
    assert warm.baseline.time_us < cold.baseline.time_us
    assert warm.instructions == cold.instructions
    assert "the second of two runs" in warm.text()
    assert "the second of two runs" not in cold.text()


def test_a_warm_run_begins_with_the_same_states() -> None:
    graph = decode_step(layers=1, width=64, heads=2, kv_heads=2, inner=128, vocabulary=64, positions=16)
    kernel = sk.compile(graph, target="mini")
    io = kernel._io(list(kernel._random().values()))
    twice = [array.copy() for array in io]
    kernel._compiled.executable.simulate(io)
    kernel._compiled.executable.simulate(twice, warm=True)
    for once, again in zip(io, twice, strict=True):
        np.testing.assert_array_equal(once, again)
