"""`superkernel.jit`: functions over arrays against NumPy, by the function itself."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import superkernel as sk
from superkernel.adaptors import kept
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
    "powers": (lambda x, c: (x**2, 2.0**x, x**-1, c**2, 2**c, np.power(x, x)), X, C),
    "signs and shifts": (lambda x, c: (+x, np.positive(c), c << 1, 1 << c, c >> 1, 64 >> c), X, C),
    "remainders": (lambda x, s: (np.fmod(s, x), x % s, np.isfinite(np.where(s > 0, s, np.inf))), X, Y - 0.5),
    "sums of integers": (lambda c, b: (np.sum(c), c.sum(axis=0), np.prod(c.astype(np.uint8), 1), b.sum(), np.sum(b, 0),
                                       np.mean(c), b.mean(axis=1), np.cumsum(c, axis=1), c.astype(np.int8).cumsum()),
                         C, B),
    "spread": (lambda x, c: (np.var(x), x.std(axis=0), np.var(x, axis=(0, 1), ddof=1, keepdims=True), c.var(1), c.std(),
                             np.linalg.norm(x), np.linalg.norm(x, axis=1, keepdims=True), np.linalg.norm(c, axis=0)),
               X, C),
    "truth": (lambda x, b, c: (np.any(b), b.all(axis=0), np.any(x > 0.8, 1), (c - 1).all(axis=-1, keepdims=True),
                               np.argmax(b, axis=1)), X, B, C),
    "no axes, and the greatest truth": (
        lambda x, c, b: (np.max(x, axis=()), c.sum(axis=()), np.all(c, axis=()), b.max(axis=0), np.min(b)), X, C, B),
    "places of a whole": (lambda x: (np.argmax(x, keepdims=True), x.argmin(), x.argmax(-1)), X),
    "order": (lambda x, c: (np.sort(x), np.sort(c, axis=0), np.sort(x, axis=None), np.argsort(x, axis=0), x.argsort(),
                            np.argsort(c, kind="stable"), np.diff(x), np.diff(c, axis=0)), X, C),
    "axes": (lambda x: (np.moveaxis(np.stack([x, x]), 0, -1), np.flip(x), np.flip(x, 1), np.expand_dims(x, (0, -1)),
                        x.swapaxes(0, -1), np.squeeze(x[None, :, None], (0, 2)), x[None].squeeze(), x.mT, np.copy(x),
                        x.ravel(), x.flatten(), np.ravel(x), x.reshape(np.int64(12))), X),
    "parts": (lambda x: (*np.split(x, 2, axis=1), *np.split(x, [1, 1], 0), np.vstack([x, x[0]][:1]), np.hstack([x, x]),
                         np.vstack([x[0], x[1]]), np.hstack([x[0], x[1, :1]]),
                         np.concatenate([x, x[0]], axis=None)), X),
    "repetition": (lambda x: (np.tile(x, 2), np.tile(x, (2, 1, 2)), np.repeat(x, 2), x.repeat(3, axis=0),
                              np.pad(x, 1), np.pad(x, ((1, 2), (0, 1)), constant_values=2.5), np.pad(x, 1, "edge"),
                              np.pad(x, (1, 2), mode="reflect"), np.pad(x, 1, mode="wrap")), X),
    "choosing places": (lambda x, c: (np.take(x, [0, -1], axis=1), x.take(3), np.take(x, c - 1, axis=0 - 1),
                                      np.take_along_axis(x, c - 1, axis=1), np.triu(x), np.tril(x, k=-1)), X, C),
    "outer products": (lambda x, y: (np.outer(x, y), np.dot(x, y[0]), np.dot(x[0], y.T), x.dot(y.T)), X, Y),
    "sums over labels": (
        lambda x, y, c: (
            np.einsum("ij,kj->ik", x, y), np.einsum("ij,ij->", x, y), np.einsum("ij->ji", x),
            np.einsum("ij,jk,kl", x, y.T, x, optimize=True), np.einsum("ij,j->i", x, X[0]),
            np.einsum("...i,...i", c, c), np.einsum("ii->i", x[:, :3]),
            np.einsum("ij,ij->j", c.astype(np.int8), C.astype(np.int8)),
            np.einsum("ij,kj->ik", x, y[:0]), np.einsum("ij,ik->jk", x[:0], y[:0])), X, Y, C),
    "other bases": (lambda x: (np.log2(x), np.log10(x), np.exp2(x * 9), np.degrees(x), np.deg2rad(x),
                               np.floor(np.log2(2 ** np.rint(x * 40))), np.log2(x.astype(np.float64))), X),
    "middles": (lambda x, c: (np.median(x), np.median(x, 0), np.median(c, axis=-1, keepdims=True), np.median(x[:, :3]),
                              np.median(x, keepdims=True), np.median(np.where(x > 0.8, np.nan, x), axis=1)), X, C),
    "turns": (lambda x, c: (np.roll(x, 1), np.roll(x, -7, axis=1), np.roll(c, (1, 2), axis=(0, 1)),
                            np.roll(x, 2, (0, 1)), np.roll(x, (1, 2)), np.roll(x[:0], 1, axis=0),
                            np.flipud(x), np.fliplr(c)), X, C),
    "what is close": (
        lambda x, c: (np.isclose(x, x + 1e-7), np.isclose(x, X * 1.01, rtol=0.02), np.isclose(X * 1.01, x, atol=0.001),
                      np.isclose(x, 0.5, atol=0.2), np.isclose(c, c + 1), np.logical_and(np.allclose(x, x), True),
                      np.logical_or(np.allclose(x, -x), False)), X, C),
    "what is no number": (
        lambda v: (np.isclose(v, v), np.isclose(v, v, equal_nan=True), np.nan_to_num(v), np.nansum(v, axis=1),
                   np.nan_to_num(v, nan=1.0, posinf=2.0, neginf=3.0), np.fmax(v, 0.5), np.fmin(v, v[::-1]),
                   np.fmax(v, np.nan), np.fmax(0.5, v)),
        np.where(X > 0.7, np.nan, np.where(X > 0.5, np.inf, np.where(X > 0.3, -np.inf, X))).astype(np.float32)),
    "weights and counts": (
        lambda x, y, c: (np.average(x), np.average(x, axis=0, weights=y), np.average(x, 1, weights=y[0]),
                         np.average(x, weights=Y), np.ptp(x, axis=1), np.ptp(c), np.count_nonzero(c - 2, axis=0),
                         np.count_nonzero(x > 0.5), np.fix(x * 5 - 2), np.fmax(c, 2)), X, Y, C),
    "decimals": (lambda x: (np.round(x, 1), x.round(), np.round(x * 100, -1)), X),
    "bounds": (lambda x, y: (x.clip(0.2, 0.6), np.clip(x, max=0.5), np.clip(X, y, None), np.clip(x, Y, 0.9)), X, Y),
    "choices of two constants": (lambda x, b: (np.where(b, 1.0, 0.0), np.where(b, 1, 0), np.where(b, True, False),
                                               np.where(b, X, 0.5), np.where(x > 0.5, 2, 0.5)), X, B),
    "types": (lambda x, c: (x.astype(c.dtype), x.astype(np.float64, copy=False), x + np.ones(4, x.dtype),
                            x * np.finfo(x.dtype).eps, x * (2 if x.dtype == np.float32 else 3),
                            c * (2 if c.dtype == "int32" and "float32" != c.dtype != "none" else 3),
                            np.full_like(c, 7) + c),
              X, C),
    "whole floats beside integers": (lambda c: (c > 2.0, c == 3.0, c != np.float64(2), True + c), C),
    "choice": (lambda x, y, b: np.where(b & (x < y), x, -y) + np.where(~b | np.equal(x, y), 1.0, x), X, Y, B),
    "integers": (lambda c: ((c & 3) | np.left_shift(c, 1)) ^ np.bitwise_xor(c, 1) + np.ones_like(c), C),
    "shapes of handles": (lambda x: x * np.shape(x)[1] + np.ndim(x) + np.zeros_like(x), X),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_numpy(name: str) -> None:
    function, *args = FUNCTIONS[name]
    found, wanted = sk.jit(function, threads=1, options={"fallback": "forbid"})(*args), function(*args)
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
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


def test_functions_of_numpy_themselves() -> None:
    np.testing.assert_allclose(sk.jit(np.exp, threads=1)(X), np.exp(X), rtol=2e-6)
    np.testing.assert_allclose(sk.jit(np.sum, threads=1)(X, keepdims=True), np.sum(X, keepdims=True), rtol=2e-6)
    np.testing.assert_allclose(sk.jit(np.mean, threads=1)(X, 0), np.mean(X, 0), rtol=2e-6)


def test_floor_quotients_of_extreme_integers() -> None:
    least, most = np.iinfo(np.int8).min, np.iinfo(np.int8).max
    ends = np.array([least, least + 1, -7, -1, 0, 1, 6, most - 1, most], np.int8)
    a, b = (v.copy() for v in np.meshgrid(ends, ends))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(sk.jit(lambda a, b: a // b, threads=1)(a, b), a // b)


def test_a_type_is_no_array() -> None:
    found = sk.jit(lambda x, kind: x.astype(kind), threads=1)(X, np.float64)
    assert found.dtype == np.float64


def test_constants_among_results_are_the_callers() -> None:
    table = np.arange(3)
    function = sk.jit(lambda x: (x * 2, table, [np.zeros(2)]), threads=1)
    for _ in range(2):
        _, handed, (zeros,) = function(X)
        np.testing.assert_array_equal(handed, [0, 1, 2])
        np.testing.assert_array_equal(zeros, [0, 0])
        handed[:] = 7
        zeros[:] = 7
    np.testing.assert_array_equal(table, [0, 1, 2])


@sk.jit(threads=1)
def doubled(x: Any, self: float = 2.0) -> Any:
    return x * self


def test_functions_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy(doubled) is doubled
    np.testing.assert_array_equal(doubled(X, self=3.0), X * 3)


def test_a_function_that_calls_itself_while_it_is_traced() -> None:
    @sk.jit(threads=1)
    def powered(x: Any, n: int) -> Any:
        return x * powered(X, n - 1) if n else x * 2

    np.testing.assert_allclose(powered(X, 2), 2 * X**3, rtol=1e-6)


def test_calls_of_what_is_there_do_not_wait_for_tracing() -> None:
    started, free = threading.Event(), threading.Event()

    @sk.jit(threads=1)
    def waiting(x: Any, wait: bool) -> Any:
        if wait:
            started.set()
            assert free.wait(60)
        return x * 2

    waiting(X, False)
    maker = threading.Thread(target=waiting, args=(X, True))
    maker.start()
    assert started.wait(60)
    np.testing.assert_array_equal(waiting(X, False), X * 2)
    free.set()
    maker.join()


def test_several_threads_trace_once() -> None:
    traced, found = [], []

    @sk.jit(threads=1)
    def slow(x: Any) -> Any:
        traced.append(x)
        time.sleep(0.05)
        return x * 2

    threads = [threading.Thread(target=lambda: found.append(slow(X))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(traced) == 1
    assert all(np.array_equal(f, X * 2) for f in found)
    assert len(found) == 4


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


def test_partial_applications_of_functions_of_numpy() -> None:
    plus_one = sk.jit(partial(partial(np.add), 1))
    assert np.array_equal(plus_one(X), X + 1)
    assert copy.copy(plus_one) is plus_one


def test_quotients_with_remainders() -> None:
    for function in (lambda c: divmod(c, 3), lambda c: divmod(-7, c)):
        ours, theirs = sk.jit(function)(C), function(C)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_kernels_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KERNELS_MAX", 2)
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
    for number in (float, int):
        with pytest.raises(InputError, match="no number while the graph is built"):
            sk.jit(lambda x, number=number: x * number(x.sum()))(X)
    with pytest.raises(InputError, match=r"argument 'x_0': element type is not supported.*complex128"):
        sk.jit(lambda x: x[0])([X.astype(complex)])
    with pytest.raises(InputError, match="not a function"):
        sk.jit(3)  # type: ignore[call-overload]
    with pytest.raises(GraphError):
        sk.jit(lambda x, y: x @ y)(X, Y)
    for quotient in (lambda c: c / 2, lambda c: C / c, lambda c: np.true_divide(1, c)):
        with pytest.raises(GraphError, match="/ is of floats"):
            sk.jit(quotient)(C)
    with pytest.raises(TypeError, match="missing a required argument"):
        sk.jit(lambda x, y: x)(X)


def test_refusals_of_what_numpy_does_otherwise() -> None:
    refused: tuple[tuple[Any, str], ...] = (
        (lambda x, c: c * 2.0, "does not fit the element type"),
        (lambda x, c: np.where(c > 2, c, 0.0), "does not fit the element type"),
        (lambda x, c: np.clip(c, 0.0, 5.0), "does not fit the element type"),
        (lambda x, c: c > float("inf"), "does not fit the element type"),
        (lambda x, c: (c > 2) | 1, "does not fit the element type"),
        (lambda x, c: np.where(c > 2, c > 3, 1), "does not fit the element type"),
        (lambda x, c: c // 2.0, "does not fit the element type"),
        (lambda x, c: x**c, r"\*\* of two element types"),
        (lambda x, c: np.power(c, x), r"\*\* of two element types"),
        (lambda x, c: c**-1, "a negative power of integers"),
        (lambda x, c: np.fabs(c), "fabs is of floats"),
        (lambda x, c: np.stack([x, X.astype(np.float64)]), "element types differ"),
        (lambda x, c: np.expand_dims(x, 4), "not axes of an array"),
        (lambda x, c: np.transpose(x, (0, 2)), "not axes of an array"),
        (lambda x, c: np.swapaxes(x, 0, 2), "not axes of an array"),
        (lambda x, c: np.squeeze(x, 0), "an axis of more than one element"),
        (lambda x, c: x.argmax((0,)), "not an axis"),
        (lambda x, c: np.moveaxis(x, 0, (0, 1)), "not as many places"),
        (lambda x, c: np.broadcast_to(x, (1, 4)), "does not broadcast"),
        (lambda x, c: np.split(x, 3, axis=1), "not equal parts"),
        (lambda x, c: np.take(x, [4], axis=1), "index out of range"),
        (lambda x, c: np.pad(x, -1), "not widths of padding"),
        (lambda x, c: np.max(x[:0]), "no element to choose from"),
        (lambda x, c: np.einsum("ij,jk->ik", x, x), "terms and operands do not fit"),
        (lambda x, c: np.einsum("ij->iq", x), "terms and operands do not fit"),
        (lambda x, c: np.linalg.norm(np.stack([x, x]), axis=(0, 1, 2)), "more than two axes"),
    )
    for function, said in refused:
        with pytest.raises((GraphError, InputError), match=said):
            sk.jit(function)(X, C)
    unknown: tuple[tuple[Any, str], ...] = (
        (lambda x: np.dot(x, np.stack([x.T, x.T])), "more than two axes"),
        (lambda x: np.round(x.astype(np.int32)), r"numpy\.round of i32"),
        (lambda x: np.einsum(x, [0, 1]), r"numpy\.einsum of lists"),
        (lambda x: x.clip(0, 1, low=3), r"numpy\.clip"),
    )
    for function, said in unknown:
        with pytest.raises(UnsupportedError, match=said):
            sk.jit(function)(X)
    with pytest.raises(InputError, match="not written to"):
        sk.jit(lambda x: x.__setitem__(0, 1))(X)
    with pytest.raises(InputError, match=r"index arrays by builder\.gather"):
        sk.jit(lambda c: X[c])(C)
    with pytest.raises(InputError, match="does not say what it takes"):
        sk.jit(max)
