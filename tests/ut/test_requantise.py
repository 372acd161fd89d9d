"""Codes without a division: the same as with it, for every scale and where it matters most."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.codegen.host.requantise import exact_reciprocal

SEED = 3
SCALES = np.exp(np.random.default_rng(SEED).uniform(-12, 6, 40)).astype(np.float32)


def near_ties(scale: np.float32, low: int, high: int) -> NDArray[np.float32]:
    """Floats on both sides of the ties between codes, and what lies beyond all codes."""
    ties = ((np.arange(low - 3, high + 3) + 0.5) * np.float64(scale)).astype(np.float32)
    rows = [ties]
    for direction in (-np.inf, np.inf):
        at = ties
        for _ in range(3):
            at = np.nextafter(at, np.float32(direction))
            rows.append(at)
    ends = np.array([0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    return np.concatenate([*rows, ends])


@pytest.mark.parametrize(("dtype", "zero"), [("u8", 0), ("u8", 131), ("i8", 0), ("i8", -7)])
def test_codes_are_those_of_the_division(dtype: str, zero: int) -> None:
    numpy_dtype = np.dtype({"u8": "uint8", "i8": "int8"}[dtype])
    info = np.iinfo(numpy_dtype)
    for scale in (*SCALES[:6], np.float32(1)):
        x = near_ties(scale, int(info.min) - zero, int(info.max) - zero)
        b = sk.GraphBuilder("codes")
        point = b.constant(np.array(zero, numpy_dtype))
        b.output(b.quantize(b.input("x", x.shape), b.constant(scale), point, dtype=dtype), "y")
        got = sk.compile(b.graph()).run({"x": x}).outputs["y"]
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.rint(x / scale).astype(np.float64) + zero
        steps = np.where(np.isnan(x), 0, np.clip(steps, info.min, info.max))
        np.testing.assert_array_equal(got, steps.astype(numpy_dtype), err_msg=f"scale {scale!r}")


@pytest.mark.parametrize(("dtype", "zero"), [("u8", 0), ("u8", 131), ("i8", 0), ("i8", -7)])
@pytest.mark.parametrize("other", [0, 3])
def test_codes_that_are_dequantised_at_once_give_the_same_values(dtype: str, zero: int, other: int) -> None:
    """Values never become bytes then: to the bit, the sign of zeros included."""
    numpy_dtype = np.dtype({"u8": "uint8", "i8": "int8"}[dtype])
    info = np.iinfo(numpy_dtype)
    for scale in (*SCALES[:4], np.float32(1)):
        x = near_ties(scale, int(info.min) - zero, int(info.max) - zero)
        point, factor = zero + other, np.float32(scale * 1.5)
        b = sk.GraphBuilder("values")
        given, step = b.input("x", x.shape), b.constant(scale)
        codes = b.quantize(given, step, b.constant(np.array(zero, numpy_dtype)), dtype=dtype)
        b.output(b.dequantize(codes, b.constant(factor), b.constant(np.array(point, numpy_dtype))), "y")
        b.output(codes, "codes")
        got = sk.compile(b.graph()).run({"x": x}).outputs
        wanted = (got["codes"].astype(np.int32) - point).astype(np.float32) * factor
        np.testing.assert_array_equal(got["y"].view(np.int32), wanted.view(np.int32), err_msg=f"scale {scale!r}")


def test_nearly_every_scale_has_an_exact_reciprocal() -> None:
    found = [exact_reciprocal(float(s), -128, 127) for s in SCALES]
    assert sum(f is not None for f in found) >= 39
    assert all(f == np.float32(1) / s for f, s in zip(found, SCALES, strict=True) if f is not None)


def test_scales_beyond_the_exponents_are_divided_by() -> None:
    assert exact_reciprocal(2.0**-61, 0, 255) is None
    assert exact_reciprocal(2.0**61, 0, 255) is None
    assert exact_reciprocal(0.0, 0, 255) is None
    assert exact_reciprocal(float("nan"), 0, 255) is None
