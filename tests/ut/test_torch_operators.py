"""The torch frontend, operator by operator: what it makes of a function of tensors against what torch computes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")

import torch
from torch.utils import _pytree as pytree
from torch_cases import CASES, Case

import superkernel
from superkernel.frontends import load_graph
from superkernel.frontends.torch.registry import find_lowering, lowered_names
from superkernel.frontends.torch.types import tensor_array
from superkernel.reference import evaluate

OTHERS = (
    "transformers",
    "quantized_decomposed",
    "torchvision",
)  # libraries of operators that are there once a package is imported
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2}


class Applied(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_operator(case: Case) -> None:
    """Element types and shapes are torch's own, and so are the values but for rounding."""
    function, inputs = case
    graph = load_graph(Applied(function), example_inputs=inputs)
    arrays = [tensor_array(t, "an input") for t in inputs]
    got = list(evaluate(graph, dict(zip(graph.inputs, arrays, strict=True))).values())
    want = pytree.tree_leaves(function(*inputs))
    assert len(got) == len(want)
    for index, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        expected = tensor_array(theirs, "an output")
        assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype), index
        tolerance = TOLERANCE.get(theirs.dtype, 2e-5)
        np.testing.assert_allclose(
            ours.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=2e-5, err_msg=f"output {index}"
        )


@pytest.mark.parametrize(
    "name", ["signbit", "copysign", "copysign_number", "hypot", "cumprod_special", "logcumsumexp_special"]
)
def test_special_numbers_fused(name: str) -> None:
    """Kernels give what torch gives for zeros of both signs, infinities and what is no number, bit by bit but for
    rounding."""
    function, inputs = CASES[name]
    kernel = superkernel.compile(Applied(function), example_inputs=inputs)
    arrays = [tensor_array(t, "an input") for t in inputs]
    got = kernel.run(dict(zip(kernel.inputs, arrays, strict=True))).outputs
    for ours, theirs in zip(got.values(), pytree.tree_leaves(function(*inputs)), strict=True):
        expected = tensor_array(theirs, "an output")
        np.testing.assert_allclose(ours, expected, rtol=2e-6)
        zeros = expected == 0
        assert np.array_equal(np.signbit(ours[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("name", ["complex_rotary", "fft_filter", "stft"])
def test_pairs_fused(name: str) -> None:
    """Complex numbers leave nothing behind that would have no kernel."""
    function, inputs = CASES[name]
    kernel = superkernel.compile(Applied(function), example_inputs=inputs, options={"fallback": "forbid"})
    arrays = [tensor_array(t, "an input") for t in inputs]
    got = kernel.run(dict(zip(kernel.inputs, arrays, strict=True))).outputs
    for ours, theirs in zip(got.values(), pytree.tree_leaves(function(*inputs)), strict=True):
        np.testing.assert_allclose(ours, tensor_array(theirs, "an output"), rtol=2e-5, atol=2e-5)


def test_every_lowering_names_an_operator() -> None:
    """A key that torch does not know would be a lowering that nothing reaches."""
    unknown = []
    for name in lowered_names():
        if name.partition(".")[0] in OTHERS:
            continue
        packet, _, overload = name.partition(".")
        found = getattr(torch.ops.aten, packet, None)
        if found is None or (overload and overload not in found.overloads()):
            unknown.append(name)
    assert not unknown


def test_an_overload_goes_before_its_operator() -> None:
    assert find_lowering("aten.max.other") is not find_lowering("aten.max.dim")
    assert find_lowering("aten.relu.out") is None
    assert find_lowering("mine.relu.default") is None
