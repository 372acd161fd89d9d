"""Vector mathematics: the stated error bounds over dense samples, limits and special values, on every tier."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_check import Array, tiers, undefined_symbols
from llvmlite import ir

from superkernel.codegen.host import vecmath
from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
from superkernel.core.dtypes import DType

LD = np.longdouble
SAMPLES = 1 << 15


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _erf(x: Array) -> Array:
    from superkernel.ops.numeric import erf

    return np.asarray(erf(x.astype(np.float64)))


# name: (truth, largest error in ulp, domain in f32, domain in f64 or None where the truth is not better than f64)
CASES: dict[str, tuple[Callable[[Array], Array], float, tuple[float, float], tuple[float, float] | None]] = {
    "exp": (np.exp, 1.5, (-110, 95), (-750, 712)),
    "expm1": (np.expm1, 2.0, (-110, 95), (-750, 712)),
    "log": (np.log, 1.0, (0, 1e38), (0, 1e300)),
    "log1p": (np.log1p, 2.0, (-1, 10), (-1, 10)),
    "tanh": (np.tanh, 3.0, (-12, 12), (-22, 22)),
    "sigmoid": (_sigmoid, 2.5, (-110, 110), (-750, 750)),
    "sinh": (np.sinh, 3.0, (-95, 95), (-712, 712)),
    "cosh": (np.cosh, 3.0, (-95, 95), (-712, 712)),
    "asinh": (np.arcsinh, 3.0, (-1e6, 1e6), (-1e9, 1e9)),
    "acosh": (np.arccosh, 3.0, (1, 1e6), (1, 1e9)),
    "atanh": (np.arctanh, 3.0, (-1, 1), (-1, 1)),
    "sin": (np.sin, 3.0, (-1e5, 1e5), (-1e5, 1e5)),
    "cos": (np.cos, 3.0, (-1e5, 1e5), (-1e5, 1e5)),
    "tan": (np.tan, 5.0, (-1e4, 1e4), (-1e4, 1e4)),
    "asin": (np.arcsin, 3.0, (-1, 1), (-1, 1)),
    "acos": (np.arccos, 3.0, (-1, 1), (-1, 1)),
    "atan": (np.arctan, 3.0, (-50, 50), (-50, 50)),
    "erf": (_erf, 3.0, (-5, 5), None),
}
RANGE_LIMIT = {"sin": 2.0**30, "cos": 2.0**30, "tan": 2.0**30}


def arity(name: str) -> int:
    return len(inspect.signature(vecmath.FUNCTIONS[name]).parameters)


def build(
    names: list[str], dtype: DType, tier: str, lanes: int = 0
) -> tuple[LoadedCode, dict[str, Callable[..., Array]]]:
    """One module with a function per name that maps arrays, `lanes` elements at once (0: a whole vector)."""
    cpu = detect_cpu(tier)
    module = ir.Module()
    lanes = lanes or cpu.lanes(dtype)
    for name in names:
        count = arity(name)
        kb = KernelBuilder(module, f"k_{name}", count + 1, cpu)
        with kb.loop(kb.begin, kb.end, lanes) as i:
            values = [kb.load(kb.operands[k], i, dtype, lanes) for k in range(count)]
            kb.store(vecmath.apply(kb, name, *values), kb.operands[count], i, dtype)
        kb.finish()
    data = compile_ir(str(module), cpu)
    assert not undefined_symbols(data)
    code = LoadedCode([data])

    def caller(name: str) -> Callable[..., Array]:
        count = arity(name)
        kinds = [ctypes.c_void_p] * (count + 2) + [ctypes.c_int64] * 2
        function = ctypes.CFUNCTYPE(None, *kinds)(code.address(f"k_{name}"))

        def run(*arrays: Array) -> Array:
            padded = [np.concatenate([a, np.ones(-len(a) % lanes, a.dtype)]) for a in arrays]
            out = np.empty_like(padded[0])
            function(*(p.ctypes.data for p in padded), out.ctypes.data, None, 0, len(out))
            return out[: len(arrays[0])]

        return run

    return code, {name: caller(name) for name in names}


def samples(low: float, high: float, dtype: Any) -> Array:
    """Uniform, logarithmic of both signs, and special values."""
    rng = np.random.default_rng(7)
    top = np.log10(max(abs(low), abs(high)))
    info = np.finfo(dtype)
    small = 10.0 ** rng.uniform(np.log10(float(info.smallest_subnormal)), top, SAMPLES)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, info.tiny, -info.tiny, info.max, info.min]
    special += [info.smallest_subnormal, -info.smallest_subnormal]
    parts = [rng.uniform(low, high, SAMPLES), small, -small, np.array(special)]
    with np.errstate(all="ignore"):
        return np.concatenate(parts).astype(dtype)


def error_ulp(got: Array, want: Array) -> Array:
    """Distance in units of the last place of the wanted value; 1e9 where a special value is missed. Results within
    half a step of the overflow limit may be infinite."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        step = np.spacing(np.abs(rounded)).astype(np.float64)
        error = np.abs(got.astype(LD) - want) / step
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        return np.where(same & ~np.isfinite(rounded), 0.0, np.where(np.isfinite(error), error, 1e9)).astype(np.float64)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("tier", tiers())
def test_error_bounds(tier: str, dtype: DType) -> None:
    names = [n for n, case in CASES.items() if dtype is DType.F32 or case[3] is not None]
    code, functions = build(names, dtype, tier)
    worst = {}
    for name in names:
        truth, bound, single, double = CASES[name]
        low, high = single if dtype is DType.F32 or double is None else double
        x = samples(low, high, dtype.numpy)
        limit = RANGE_LIMIT.get(name)
        if limit is not None:
            x = x[~(np.abs(x) > limit)]
        with np.errstate(all="ignore"):
            error = error_ulp(functions[name](x), truth(x.astype(LD)))
        at = int(np.argmax(error))
        if error[at] > bound + (1.0 if tier == "plain" else 0.0):
            worst[name] = (error[at], x[at], functions[name](x)[at])
    assert not worst
    del code


@pytest.mark.parametrize("tier", tiers())
def test_erf_of_doubles(tier: str) -> None:
    import math

    code, functions = build(["erf"], DType.F64, tier)
    x = np.concatenate([np.linspace(-7, 7, 4001), [0.0, -0.0, np.inf, -np.inf, 1e-300, 27.0]])
    want = np.array([math.erf(v) for v in x])
    assert error_ulp(functions["erf"](x), want.astype(LD)).max() <= 3.0
    assert np.isnan(functions["erf"](np.array([np.nan])))[0]
    del code


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("tier", tiers())
def test_gelu(tier: str, dtype: DType) -> None:
    import math

    code, functions = build(["gelu"], dtype, tier)
    x = samples(-16, 16, dtype.numpy)
    x = x[np.isfinite(x)]
    # x/2 erfc(-x / sqrt(2)) in f64: of f32 within half a step; of f64 within the rounding of erf, which is below 1
    want = np.array([v / 2 * math.erfc(-v * math.sqrt(0.5)) for v in x.astype(np.float64).tolist()])
    got = functions["gelu"](x)
    if dtype is DType.F64:
        assert (np.abs(got - want) / np.maximum(np.abs(x), 1e-300)).max() <= 1e-15
    else:
        assert error_ulp(got, want.astype(LD))[x > -1].max() <= 3.0
        assert np.abs(got.astype(np.float64) - want)[x <= -1].max() <= 5e-8
    ends = functions["gelu"](np.array([np.inf, -1e30, -np.finfo(dtype.numpy).max, 0.0, np.nan, -np.inf], dtype.numpy))
    np.testing.assert_array_equal(ends, [np.inf, 0.0, 0.0, 0.0, np.nan, np.nan])  # infinity times 0
    del code


@pytest.mark.parametrize("tier", tiers())
def test_powers_of_floats(tier: str) -> None:
    code, functions = build(["pow"], DType.F32, tier)
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [10 ** rng.uniform(-30, 30, 4000), rng.uniform(-5, 5, 500), [0, -0.0, np.inf, -np.inf, 1, -1, np.nan]]
    )
    y = np.concatenate([rng.uniform(-6, 6, 4000), rng.integers(-9, 9, 500), [-1, -3, 2, 3, np.nan, np.inf, 0]])
    x, y = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(LD), y.astype(LD))
    assert error_ulp(functions["pow"](x, y), want).max() <= 1.0
    del code


@pytest.mark.parametrize("tier", tiers())
def test_powers_of_doubles(tier: str) -> None:
    """Against extended precision, whose own error is 11 bits less; exponents in the hundreds apart."""
    code, functions = build(["pow"], DType.F64, tier)
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [10 ** rng.uniform(-300, 300, 4000), rng.uniform(0.1, 9, 4000), 1 + rng.uniform(-1e-6, 1e-6, 999)]
    )
    y = np.concatenate([rng.uniform(-1, 1, 4000), rng.uniform(-9, 9, 4000), rng.uniform(-1e8, 1e8, 999)])
    assert error_ulp(functions["pow"](x, y), np.power(x.astype(LD), y.astype(LD))).max() <= 1.5
    x, y = rng.uniform(0.5, 2, 4000), rng.uniform(-700, 700, 4000)
    assert error_ulp(functions["pow"](x, y), np.power(x.astype(LD), y.astype(LD))).max() <= 45.0
    whole = np.arange(-1074.0, 1025.0)
    exact = [*(2.0**n for n in range(-1074, 1024)), np.inf]
    np.testing.assert_array_equal(functions["pow"](np.full(len(whole), 2.0), whole), exact)
    few = np.array([0, -0.0, 1, -1, 2, -2, 0.5, -8, 5e-324, 1e300, -1e300, np.inf, -np.inf, np.nan])
    base, exponent = (v.reshape(-1) for v in np.meshgrid(few, few))
    with np.errstate(all="ignore"):
        want = np.power(base, exponent)
    found = functions["pow"](base, exponent)
    np.testing.assert_allclose(found, want, rtol=1e-14)
    np.testing.assert_array_equal(np.signbit(found[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))
    del code


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("tier", tiers())
def test_angles(tier: str, dtype: DType) -> None:
    """Random points of all sizes, near the borders of the octants, and every pair of special numbers."""
    code, functions = build(["atan2"], dtype, tier)
    rng = np.random.default_rng(4)
    reach = 36 if dtype is DType.F32 else 300
    size = 10 ** rng.uniform(-reach, reach, SAMPLES)
    turns = rng.choice(np.arange(-8, 9) * np.pi / 8, SAMPLES) + 10 ** rng.uniform(-9, 0, SAMPLES)
    info = np.finfo(dtype.numpy)
    special = np.array([0.0, -0.0, 1.0, -1.5, info.max, info.min, info.tiny, -info.smallest_subnormal, np.inf, -np.inf])
    pairs = np.array(np.meshgrid(np.append(special, np.nan), np.append(special, np.nan))).reshape(2, -1)
    circle = size * np.array([np.sin(turns), np.cos(turns)])
    y, x = np.concatenate([circle, rng.standard_normal((2, SAMPLES)), pairs], axis=1).astype(dtype.numpy)
    got, want = functions["atan2"](y, x), np.arctan2(y.astype(LD), x.astype(LD))
    assert error_ulp(got, want).max() <= (4.0 if tier == "plain" else 3.0)
    known = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[known]), np.signbit(want[known]))
    del code


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("tier", tiers())
def test_an_element_alone_has_the_bits_it_has_in_a_vector(tier: str, dtype: DType) -> None:
    """Results do not hang on where a loop over vectors ends."""
    names = [n for n, case in CASES.items() if dtype is DType.F32 or case[3] is not None]
    whole = detect_cpu(tier).lanes(dtype)
    built = {lanes: build(names, dtype, tier, lanes) for lanes in (1, 2, 4, 8, 16) if lanes <= whole}
    for name in names:
        low, high = CASES[name][2] if dtype is DType.F32 else CASES[name][3] or (0.0, 0.0)
        x = samples(low, high, dtype.numpy)
        results = [functions[name](x) for _, functions in built.values()]
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0], err_msg=name)


def test_every_function_has_a_bound() -> None:
    assert {*CASES, "pow", "atan2", "exp_moderate", "gelu"} == set(vecmath.FUNCTIONS)


def test_signs_of_zero_and_monotone_ends() -> None:
    code, functions = build(["tanh", "sin", "erf", "asinh", "sinh", "atan", "expm1", "exp"], DType.F32, tiers()[0])
    for name in ("tanh", "sin", "erf", "asinh", "sinh", "atan", "expm1"):
        zero = functions[name](np.array([0.0, -0.0], np.float32))
        assert zero.tolist() == [0.0, 0.0]
        assert np.signbit(zero).tolist() == [False, True], name
    ends = functions["exp"](np.array([88.72, 88.73, -103.0, -104.0], np.float32))
    assert np.isfinite(ends[0])
    assert np.isinf(ends[1])
    assert ends[2] > 0
    assert ends[3] == 0
    del code
