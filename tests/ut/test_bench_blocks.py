"""The benchmark of weights in blocks: its graphs are the workload's, in fewer bits."""

from __future__ import annotations

import blocks
import numpy as np
import pytest
from workloads import WORKLOADS, make_inputs

from superkernel.ops.blocks import Blocks
from superkernel.reference import evaluate


def test_a_quantised_step_is_near_the_step() -> None:
    graph = WORKLOADS["decode-medium"].graph(tiny=True)
    given, sizes = make_inputs(graph), []
    wanted = evaluate(graph, given)["logits"]
    for bits, bound in ((8, 0.02), (4, 0.3)):
        made, size = blocks.in_blocks(graph, bits)
        assert sum(node.op == "block_matmul" for node in made.nodes) > 8
        found = evaluate(made, given)["logits"]
        assert 0 < np.abs(found - wanted).max() < bound * np.abs(wanted).max()
        sizes.append(size)
    f32, whole = blocks.in_blocks(graph, 32)
    assert f32.nodes == graph.nodes
    assert 4 * sizes[0] > whole > 3.5 * sizes[0] > 6 * sizes[1]


def test_codes_and_scales_are_the_weights() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 5)).astype(np.float32)
    for bits, step in ((4, 0.51 / 7), (8, 0.51 / 127)):
        codes, scale, zero = blocks.quantised(weights, bits)
        stored = Blocks(bits, blocks.BLOCK, zero, 5, 64).weights(codes, scale, None)
        largest = np.repeat(np.abs(weights.T).reshape(5, 2, 32).max(axis=2), 32, axis=1)
        assert (np.abs(stored - weights.T) <= (step + 1e-3) * largest).all()


@pytest.mark.parametrize("zero_points", [False, True])
def test_a_product_is_held_against_onnxruntime(zero_points: bool) -> None:
    pytest.importorskip("onnxruntime")
    found = blocks.product((3, 64, 48), 4, zero_points, threads=1, rounds=2)
    assert min(found.ours_us, found.onnxruntime_us, found.times) > 0
    assert found.difference < 2e-2
    assert "as fast as onnxruntime" in blocks.product_table([found])
