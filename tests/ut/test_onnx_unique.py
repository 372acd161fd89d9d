"""Unique of ONNX models, which finds as much as the data has, against NumPy's, as the standard has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_models import f32, model, node
from seeds import seeds

import superkernel as sk
from superkernel.core.errors import SuperKernelError, UnsupportedError
from superkernel.frontends import load_graph

OUTPUTS = ("y", "indices", "inverse", "counts")


def expected(x: NDArray[Any], axis: int | None, *, ordered: bool) -> list[NDArray[Any]]:
    """NumPy's, whose own order is the sorted one."""
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    order = np.arange(len(first)) if ordered else np.argsort(first)
    rank = np.argsort(order)
    return [np.take(y, order, axis or 0), first[order], rank[inverse], counts[order]]


def kernel_of(x: NDArray[Any], names: str = " ".join(OUTPUTS), **attributes: Any) -> Any:
    proto = model([node("Unique", "x", names, **attributes)], {"x": x}, names.split())
    return sk.compile(load_graph(proto), threads=2)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64, np.int64, np.int32, np.int8, np.uint8, np.bool_])
def test_elements_of_any_kind(kind: type) -> None:
    rng = np.random.default_rng(0)
    example = np.zeros((4, 5), kind)
    for ordered in (0, 1):
        kernel = kernel_of(example, sorted=ordered)
        for most in (1, 2, 5, 200):
            x = (rng.integers(0, most, example.shape) - most // 3 * (np.iinfo(np.int8).min < 0)).astype(kind)
            for found, want in zip(kernel(x), expected(x, None, ordered=bool(ordered)), strict=True):
                assert found.dtype == want.dtype
                np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("seed", seeds(5))
def test_slices_along_any_axis(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(map(int, rng.integers(1, 5, rng.integers(1, 4))))
    axis, ordered = int(rng.integers(-len(shape), len(shape))), int(rng.integers(2))
    kernel = kernel_of(np.zeros(shape, np.float32), axis=axis, sorted=ordered)
    for most in (1, 2, 3, 9):
        x = rng.integers(0, most, shape).astype(np.float32)
        for found, want in zip(kernel(x), expected(x, axis % len(shape), ordered=bool(ordered)), strict=True):
            np.testing.assert_array_equal(found, want)


def test_what_is_no_number_is_one_kind() -> None:
    x = np.array([np.nan, 1, -0.0, np.inf, np.nan, 0.0, -np.inf, np.nan], np.float32)
    for ordered in (0, 1):
        for found, want in zip(kernel_of(x, sorted=ordered)(x), expected(x, None, ordered=bool(ordered)), strict=True):
            np.testing.assert_array_equal(found, want)


def test_a_known_tensor_an_empty_one_a_single_one() -> None:
    for x in (np.array([2, 1, 2]), np.zeros((0, 3), np.float32), np.array(7.0, np.float32)):
        for constants in ({}, {"x": x}):
            proto = model([node("Unique", "x", " ".join(OUTPUTS))], {} if constants else {"x": x}, OUTPUTS,
                          constants=constants)  # fmt: skip
            kernel = sk.compile(load_graph(proto), threads=1)
            found = kernel.run({} if constants else {"x": x}).outputs
            for name, want in zip(OUTPUTS, expected(x, None, ordered=True), strict=True):
                np.testing.assert_array_equal(found[name], want)


def test_some_of_the_results() -> None:
    x = np.array([[3, 1], [1, 4]], np.int64)
    want = dict(zip(OUTPUTS, expected(x, None, ordered=True), strict=True))
    for names in ("y", "y indices", "y indices inverse"):
        found = kernel_of(x, names).run({"x": x}).outputs
        for name in names.split():
            np.testing.assert_array_equal(found[name], want[name])


def test_what_follows_is_as_long() -> None:
    """Rows of a table for the classes that there are, and how often."""
    nodes = [
        node("Unique", "x", "class first which count"),
        node("Gather", "table class", "rows"),
        node("MatMul", "rows w", "y"),
        node("Softmax", "y", "z", axis=1),
    ]
    x = np.array([3, 1, 3, 3, 7, 1])
    table, w = f32(9, 4), f32(4, 5)
    proto = model(nodes, {"x": x}, ("z", "count"), constants={"table": table, "w": w})
    kernel = sk.compile(load_graph(proto), threads=2)
    for each in (x, x * 0, np.arange(6)):
        z, count = kernel(each)
        kinds, counts = np.unique(each, return_counts=True)
        raw = np.exp(table[kinds] @ w)
        np.testing.assert_allclose(z, raw / raw.sum(1, keepdims=True), rtol=1e-4)
        np.testing.assert_array_equal(count, counts)


def test_what_is_refused() -> None:
    cases: list[tuple[NDArray[Any], dict[str, Any], type[SuperKernelError], str]] = [
        (f32(3, 100), {"axis": 0}, UnsupportedError, "slices of many elements"),
        (f32(3, 0), {"axis": 0}, UnsupportedError, "slices without elements"),
        (f32(3, 4), {"axis": 2}, SuperKernelError, "axis out of range"),
    ]
    for x, attributes, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            kernel_of(x, **attributes)
        assert caught.value.violations[0].location.startswith("node 'y' (Unique)")
