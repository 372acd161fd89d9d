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
from superkernel.core.errors import InputError


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


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_views_that_negate_are_read_as_what_they_are(dtype: str) -> None:
    """Such as `z.conj().imag`: the memory holds the elements with the other sign."""
    x = torch.arange(6.0).reshape(2, 3).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
    negated = torch._neg_view(x)
    assert negated.is_neg()
    summed = kernel(dtype)
    assert torch.equal(summed(negated, negated), -2 * x)
    with pytest.raises(InputError, match=r"resolve_neg"):
        summed.bind(negated, x)
    with pytest.raises(InputError, match=r"resolve_neg"):
        summed(x, x, out=negated)

    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", negated)

        def forward(self, y: torch.Tensor) -> torch.Tensor:
            return y + self.shift

    assert torch.equal(sk.compile(Shifted(), example_inputs=(negated,), threads=1)(negated), -2 * x)
    with torch.no_grad():
        assert torch.equal(torch.compile(Shifted(), backend="superkernel")(negated), -2 * x)


class Wrapper(torch.Tensor):
    """Says that it has elements on the CPU, and has none."""

    @staticmethod
    def __new__(cls) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, (2, 3), dtype=torch.float32)
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
        raise NotImplementedError(str(function))


@pytest.mark.parametrize("make", [Wrapper, lambda: torch._efficientzerotensor(2, 3)])
def test_tensors_without_memory_are_refused(make: Any) -> None:
    summed, x = kernel(), torch.ones(2, 3)
    for call in (lambda: summed(make(), x), lambda: summed(x, x, out=make()), lambda: summed.bind(x, make())):
        with pytest.raises(InputError, match="no data"):
            call()


def test_subclasses_of_tensors_give_tensors() -> None:
    class Own(torch.Tensor):
        pass

    x = torch.ones(2, 3).as_subclass(Own)
    assert type(kernel()(x, x)) is torch.Tensor
