"""`superkernel.jit`: functions over arrays against NumPy, by the function itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import superkernel as sk
from superkernel.adaptors import jit as jit_module
from superkernel.core.errors import GraphError, InputError, UnsupportedError
from superkernel.ops.table import op_table

RNG = np.random.default_rng(5)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.uniform(0.1, 0.9, shape).astype(dtype)


X, Y, B, C = array(3, 4), array(3, 4), RNG.random((3, 4)) > 0.5, RNG.integers(1, 5, (3, 4)).astype(np.int32)
FUNCTIONS: dict[str, Any] = {
    "arithmetic": (lambda x, y: (2 * x + y - 1) / (x * y + 1) - x**2 + 3.0 - (1 - x), X, Y),
    "arrays on the left": (lambda x: X + Y * x - X / x + (X.T @ x)[:3], X),
    "products": (lambda x, y: np.dot(x, y.T) @ np.matmul(x, np.swapaxes(y, 0, 1)), X, Y),
    "elementary": (lambda x: np.exp(x) + np.log(x) + np.tanh(x) * np.sqrt(x) - np.sin(x) + np.arctan2(x, X), X),
    "rounded": (lambda x: np.floor(x * 9) + np.rint(x * 7) + np.round(x * 5) + np.fabs(-x) + np.negative(x), X),
    "extremes": (lambda x, y: np.maximum(x, y) - np.minimum(x, 0.5) + np.clip(x, 0.2, 0.6) + np.clip(y, None, 0.5),
                 X, Y),
    "sums": (lambda x: (np.sum(x), np.mean(x, axis=0), np.max(x, axis=(0, 1)), np.min(x, 1, keepdims=True),
                        np.prod(x, axis=-1)), X),
    "places": (lambda x: (np.argmax(x), np.argmin(x, axis=1)), X),
    "shapes": (lambda x: (np.reshape(x, (2, 6)), np.expand_dims(x, 1), np.squeeze(x[:1]), np.stack([x, x * 2], -1),
                          np.concatenate([x, x[::-1]], axis=1), np.broadcast_to(x[0], (2, 4))), X),
    "methods": (lambda x: (x.sum(axis=1), x.mean(axis=(0, 1)), x.max(axis=-1, keepdims=True), x.min(), x.ndim * x,
                           x.size + x.transpose((1, 0))), X),
    "equality": (lambda x, c: (np.where(c == 2, x, 0.5), c != 3, x == X, 2.0 ** x, 1.5 % x, True & (x != 0.5)),
                 X, C),
    "quotients": (lambda x, s, c: (x // s, x // 0.3, 1.0 // x, np.floor_divide(X, x), x // -0.1, (x * 0) // s,
                                   np.divide(1, x), c // 3, (c - 3) // 2, 7 // c, c // -C), X, Y - 0.5, C),
    "choice": (lambda x, y, b: np.where(b & (x < y), x, -y) + np.where(~b | np.equal(x, y), 1.0, x), X, Y, B),
    "integers": (lambda c: ((c & 3) | np.left_shift(c, 1)) ^ np.bitwise_xor(c, 1) + np.ones_like(c), C),
    "shapes of handles": (lambda x: x * np.shape(x)[1] + np.ndim(x) + np.zeros_like(x), X),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_numpy(name: str) -> None:
    function, *args = FUNCTIONS[name]
    found, wanted = sk.jit(function, threads=1)(*args), function(*args)
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in op_table() if isinstance(getattr(np, n, None), np.ufunc)])
def test_ufuncs_are_operators(name: str) -> None:
    ufunc: np.ufunc = getattr(np, name)
    kind = B if name.startswith("logical") else C if name.startswith("bitwise") else X
    given = [X, X.T] if name == "matmul" else [1 + kind if name == "acosh" else kind] * ufunc.nin
    np.testing.assert_allclose(sk.jit(lambda *a: ufunc(*a), threads=1)(*given), ufunc(*given), rtol=2e-6)


def test_floor_quotients_of_ends() -> None:
    ends = np.array([0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 3.0, np.inf, -np.inf, np.nan], np.float32)
    a, b = (v.copy() for v in np.meshgrid(ends, ends))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(sk.jit(lambda a, b: a // b, threads=1)(a, b), a // b)


def test_a_decorator_traces_once_per_types_shapes_and_values() -> None:
    traced = []

    @sk.jit(threads=1)
    def scaled(x: Any, factor: float = 2.0, *, name: str = "y") -> Any:
        traced.append((x.shape, factor, name))
        return {name: x * factor, "all": (x.sum(), factor)}

    for _ in range(2):
        found = scaled(X)
        np.testing.assert_allclose(found["y"], X * 2)
        np.testing.assert_allclose(found["all"][0], X.sum(), rtol=1e-6)
        assert found["all"][1] == 2.0
    scaled(X[:2])
    scaled(X, 3.0)
    scaled(X, name="z")
    scaled(X.astype(np.float64))
    assert traced == [
        ((3, 4), 2.0, "y"),
        ((2, 4), 2.0, "y"),
        ((3, 4), 3.0, "y"),
        ((3, 4), 2.0, "z"),
        ((3, 4), 2.0, "y"),
    ]
    assert scaled.__name__ == "scaled"


def test_containers_methods_and_kernels() -> None:
    class Layer:
        def __init__(self, weight: Any) -> None:
            self.weight = weight

        @sk.jit(threads=1)
        def forward(self, pairs: Any, **more: Any) -> Any:
            return [a @ self.weight + more["bias"] for a, _ in pairs], pairs[0][1]

    layer, bias = Layer(array(4, 2)), array(2)
    (first, second), handed = layer.forward([(X, Y), (Y, X)], bias=bias)
    np.testing.assert_allclose(first, X @ layer.weight + bias, rtol=1e-6)
    np.testing.assert_allclose(second, Y @ layer.weight + bias, rtol=1e-6)
    np.testing.assert_array_equal(handed, Y)
    kernel = Layer.forward.kernel(layer, [(X, Y), (Y, X)], bias=bias)
    assert list(kernel.inputs) == ["pairs_0_0", "pairs_0_1", "pairs_1_0", "pairs_1_1", "more_bias"]
    assert Layer.forward.graph(layer, [(X, Y), (Y, X)], bias=bias).inputs == dict(kernel.inputs)


class Affine(NamedTuple):
    """Weights with names."""

    weight: Any
    bias: Any


def test_named_tuples_stay_what_they_are() -> None:
    layer = Affine(array(4, 2), array(2))
    function = sk.jit(lambda x, p: Affine(x @ p.weight, p.bias * 2), threads=1)
    found = function(X, layer)
    np.testing.assert_allclose(found.weight, X @ layer.weight, rtol=1e-6)
    np.testing.assert_allclose(found.bias, layer.bias * 2)
    assert list(function.kernel(X, layer).inputs) == ["x", "p_weight", "p_bias"]


def test_a_traced_function_in_another_is_a_part_of_it() -> None:
    @sk.jit(threads=1)
    def halved(x: Any, by: float = 0.5) -> Any:
        return x * by

    outer = sk.jit(lambda pair: halved(pair["x"]) + halved(pair["y"], by=0.25), threads=1)
    np.testing.assert_allclose(outer({"x": X, "y": Y}), X / 2 + Y / 4, rtol=1e-6)
    np.testing.assert_allclose(halved(X), X / 2)


def test_signs_of_zeros_and_what_is_no_number_are_values() -> None:
    traced = []

    @sk.jit(threads=1)
    def signed(x: Any, zero: float) -> Any:
        traced.append(zero)
        return np.copysign(1.0, zero) * x

    for zero in (0.0, -0.0, float("nan"), 0.0, -0.0, float("nan")):
        np.testing.assert_array_equal(signed(X, zero), np.copysign(1.0, zero).astype(np.float32) * X)
    assert len(traced) == 3


def test_names_of_inputs_that_would_be_equal() -> None:
    kernel = sk.jit(lambda x, x_0, output: x[0] - x_0 * output, threads=1)
    np.testing.assert_allclose(kernel((X,), Y, X), X - Y * X, rtol=1e-6)


def test_handles_equal_numbers_elementwise_and_one_another_by_identity() -> None:
    b = sk.GraphBuilder("g")
    x, y = b.input("x", (2,)), b.input("y", (2,))
    assert {x: 1, y: 2}[y] == 2
    assert [x, y].index(y) == 1
    assert x in (y, x)
    assert (x == y) is False
    assert (x == 2).dtype is sk.DType.BOOL
    assert (x != np.ones(2, np.float32)).dtype is sk.DType.BOOL
    with pytest.raises(InputError, match="truth value"):
        assert x == 2


def test_operators_that_numpy_does_not_have() -> None:
    found = sk.jit(lambda x: x.builder.softmax(x.builder.gelu(x), axis=-1), threads=1)(X)
    np.testing.assert_allclose(found.sum(axis=-1), np.ones(3), rtol=1e-6)


def test_kernels_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_module, "KERNELS_MAX", 2)
    function = sk.jit(lambda x, n: x * n, threads=1)
    kernels = [function.kernel(X, n) for n in (1, 2, 1, 3)]
    assert kernels[0] is kernels[2]
    assert function.kernel(X, 1) is kernels[0]
    assert function.kernel(X, 2) is not kernels[1]


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"numpy\.cross"):
        sk.jit(lambda x: np.cross(x, x))(X)
    with pytest.raises(UnsupportedError, match=r"numpy\.hypot"):
        sk.jit(lambda x: np.hypot(x, x))(X)
    with pytest.raises(UnsupportedError, match=r"add\.reduce"):
        sk.jit(lambda x: np.add.reduce(x))(X)
    with pytest.raises(UnsupportedError, match=r"numpy\.sum.*dtype"):
        sk.jit(lambda x: np.sum(x, dtype=np.float64))(X)
    with pytest.raises(InputError, match="hashable"):
        sk.jit(lambda x, s: x)(X, {1, 2})
    with pytest.raises(InputError, match="returns nothing"):
        sk.jit(lambda x: 3)(X)
    with pytest.raises(InputError, match="truth value"):
        sk.jit(lambda x: x if x else -x)(X)
    with pytest.raises(GraphError):
        sk.jit(lambda x, y: x @ y)(X, Y)
    for quotient in (lambda c: c / 2, lambda c: C / c, lambda c: np.true_divide(1, c)):
        with pytest.raises(GraphError, match="/ is of floats"):
            sk.jit(quotient)(C)
    with pytest.raises(TypeError, match="missing a required argument"):
        sk.jit(lambda x, y: x)(X)
