"""torch's own samples of its operators (OpInfo): compiled, against what torch computes.

torch's tests have inputs for each operator: scalars, empty tensors, broadcasts, strides, every option. Each sample is
compiled as a module of that operator alone. It gives torch's element types, shapes and values, or the operator is
refused with its name and a reason.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import soak

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")
    pytest.importorskip("expecttest", reason="expecttest is not installed, which torch's samples need")

import torch
from torch.utils import _pytree as pytree

import superkernel
from superkernel.core.errors import GraphError, UnsupportedError
from superkernel.frontends.torch.types import tensor_array

PARTS = 80
SAMPLES = 2  # of an operator and element type, from all over torch's list
DTYPES = (torch.float32, torch.int64, torch.uint8, torch.bool)
REFUSED_BY_TYPE = ("element type not accepted", "a reduction needs numbers", "element types differ")
# Results that torch leaves open: memory as it is found, and which of equal elements an index names.
UNDEFINED = ("empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided", "empty_permuted")
FIRST_RESULT_ONLY = ("topk", "kthvalue", "sort", "mode")
OPEN_ORDER = ("argsort",)


def _samples(part: int) -> Iterator[tuple[str, Any, torch.dtype, Any]]:
    """Name, function, element type and sample, of one part of the operators."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db[part::PARTS]:
        if op.name in UNDEFINED + OPEN_ORDER or op.name.startswith("jiterator"):  # these are for GPUs
            continue
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        for dtype in DTYPES:
            if dtype not in op.dtypes:
                continue
            torch.manual_seed(0)
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
            for sample in samples[:: max(1, len(samples) // SAMPLES)][:SAMPLES]:
                yield name, op.op, dtype, sample


class Applied(torch.nn.Module):
    """An operator of a sample's tensors, its other arguments as the sample has them."""

    def __init__(self, function: Any, sample: Any) -> None:
        super().__init__()
        self.function = function
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.places = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.leaves[place].clone() for place in self.places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(first, *args, **kwargs)


def _problem(module: Applied) -> str | None:
    """What is wrong with the compiled sample; None where nothing is, or it is refused as unsupported."""
    try:
        want = module(*module.inputs())
    except (RuntimeError, TypeError):  # torch's lists have samples that this build of torch does not take
        return None
    try:
        kernel = superkernel.compile(module, example_inputs=module.inputs(), threads=2)
    except UnsupportedError:
        return None
    except GraphError as error:
        return None if any(reason in str(error) for reason in REFUSED_BY_TYPE) else str(error)
    except Exception as error:  # whatever it is, it goes into the report beside the others
        return f"{type(error).__name__}: {error}"
    arrays = [tensor_array(t, "an input") for t in module.inputs()]
    got = list(kernel.run(dict(zip(kernel.inputs, arrays, strict=True))).outputs.values())
    results = [leaf for leaf in pytree.tree_leaves(want) if isinstance(leaf, torch.Tensor)]
    if len(got) != len(results):
        return f"{len(got)} results of {len(results)}"
    if module.function.__name__ in FIRST_RESULT_ONLY:
        got, results = got[:1], results[:1]
    for ours, theirs in zip(got, results, strict=True):
        expected = tensor_array(theirs, "an output")
        if (ours.shape, ours.dtype) != (expected.shape, expected.dtype):
            return f"{ours.dtype}{list(ours.shape)} of {expected.dtype}{list(expected.shape)}"
        if not np.allclose(ours, expected, rtol=2e-4, atol=2e-4, equal_nan=True):
            return f"values: {ours.reshape(-1)[:8]} of {expected.reshape(-1)[:8]}"
    return None


@pytest.mark.parametrize("part", soak.drawn(range(PARTS), 1))
def test_samples_of_torch(part: int) -> None:
    wrong, tried = [], 0
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function, dtype, sample in _samples(part):
            module = Applied(function, sample)
            module.eval()
            if not module.places:
                continue
            tried += 1
            if problem := _problem(module):
                shapes = [list(t.shape) for t in module.inputs()]
                wrong.append(f"{name} of {dtype}{shapes}, {sample.args}, {sample.kwargs}: {problem}")
    assert tried, part
    assert not wrong, "\n".join(wrong)
