"""Kernels that are called with tensors of torch return such."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")

import torch

import superkernel as sk


def kernel(dtype: str = "f32", outputs: int = 1) -> Any:
    b = sk.GraphBuilder("sums")
    x, y = b.input("x", (2, 3), dtype), b.input("y", (2, 3), dtype)
    for i in range(outputs):
        b.output(x + y * (i + 1), name=f"sum_{i}")
    return sk.compile(b.graph(), threads=1)


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16", "i64"])
def test_results_are_tensors_where_an_input_is(name: str) -> None:
    kinds = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
    x = torch.arange(6).reshape(2, 3).to(kinds.get(name, torch.int64))
    found = kernel(name)(x, x)
    assert isinstance(found, torch.Tensor)
    assert found.dtype is x.dtype
    assert torch.equal(found, x + x)


def test_one_tensor_is_enough_and_arrays_give_arrays() -> None:
    x = np.ones((2, 3), np.float32)
    two = kernel(outputs=2)
    for results in (two(torch.from_numpy(x), x), two(x=x, y=torch.from_numpy(x))):
        assert isinstance(results, tuple)
        assert all(isinstance(r, torch.Tensor) for r in results)
        assert results[1].tolist() == (x + 2 * x).tolist()
    assert all(isinstance(r, np.ndarray) for r in two(x, x))
    assert isinstance(two.run({"x": torch.from_numpy(x), "y": x}).outputs["sum_0"], np.ndarray)


def test_arrays_of_bf16_that_dlpack_cannot_give_to_numpy() -> None:
    class Foreign:
        def __init__(self, array: Any) -> None:
            self.array, self.shape, self.dtype = array, array.shape, array.dtype

        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("NumPy has no such type")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return self.array

    x = np.arange(6).reshape(2, 3).astype(sk.DType.BF16.numpy)
    found = kernel("bf16")(Foreign(x), Foreign(x))
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x + x)


def test_kernels_of_several_sizes_and_traced_functions() -> None:
    def source(n: int) -> sk.GraphBuilder:
        b = sk.GraphBuilder("g")
        b.output(b.relu(b.input("x", (n, 3))), name="y")
        return b

    x = torch.randn(3, 3)
    for buckets in (None, {"n": [4, 8]}):
        found = sk.compile_dynamic(source, {"n": (1, 8)}, threads=1, buckets=buckets)(x)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, torch.relu(x))
    traced = sk.jit(lambda x, k: np.maximum(x, 0) * k, threads=1)(x, 2.0)
    assert isinstance(traced, torch.Tensor)
    assert torch.equal(traced, torch.relu(x) * 2)
