"""Products and convolutions of bytes: exact in i32 on every tier, whatever the zero point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from anchor_bodies import anchor_case

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import PointwiseProgram
from superkernel.scheduler.families import family_of

U8, I8, I32 = DType.U8, DType.I8, DType.I32

CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "padded": ((1, 16, 9, 9), (24, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    "strided": ((1, 3, 20, 20), (16, 3, 3, 3), {"strides": (2, 2), "pads": (0, 1, 1, 0)}),
    "pointwise": ((2, 32, 8, 8), (40, 32, 1, 1), {}),
    "where it lies": ((1, 8, 7, 9), (20, 8, 3, 3), {"strides": (2, 1)}),
    "odd depth": ((1, 7, 5, 6), (5, 7, 1, 1), {"strides": (2, 1)}),
    "one dimension": ((1, 8, 30), (8, 4, 3), {"groups": 2, "pads": (2, 0)}),
    "dilated": ((1, 6, 8, 8), (8, 6, 3, 3), {"dilations": (2, 2)}),
    "windows in the padding alone": ((1, 4, 3, 7), (6, 4, 3, 3), {"pads": (4, 1, 5, 1)}),
    "rows above and below": (
        (1, 8, 5, 9),
        (8, 8, 3, 2),
        {"strides": (2, 1), "dilations": (2, 1), "pads": (3, 0, 4, 1)},
    ),
}


@pytest.mark.parametrize("dtype", [U8, I8])
@pytest.mark.parametrize("zero", [None, 0, 5], ids=str)
@pytest.mark.parametrize("shape", [(1, 64, 32), (7, 33, 50), (30, 130, 17)], ids=str)
def test_matmul(shape: tuple[int, int, int], zero: int | None, dtype: DType) -> None:
    m, k, n = shape
    point = None if zero is None else np.array(zero, dtype.numpy)
    case = anchor_case("matmul_integer", {}, [((m, k), dtype), ((k, n), I8), point], constants=[1])
    case.check("host.matmul.bytes", 0)


@pytest.mark.parametrize("dtype", [U8, I8])
def test_nothing_saturates(dtype: DType) -> None:
    """Pairs of 16-bit sums would."""
    info = np.iinfo(dtype.numpy)
    rows = np.tile(np.array([info.min, info.max], dtype.numpy), (4, 32))
    weights = np.tile(np.array([[-128], [127], [127], [-128]], np.int8), (16, 20))
    anchor_case("matmul_integer", {}, [rows, weights], constants=[1]).check("host.matmul.bytes", 0, every_tier=True)


@pytest.mark.parametrize("dtype", [U8, I8])
@pytest.mark.parametrize("zero", [None, 5], ids=str)
@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 3, 1)], ids=["rows", "channels"])
@pytest.mark.parametrize("name", CONVS)
def test_conv(name: str, layout: tuple[int, ...], zero: int | None, dtype: DType) -> None:
    x, w, attrs = CONVS[name]
    point = None if zero is None else np.array(zero, dtype.numpy)
    order = layout if len(x) == 4 else tuple(d for d in layout if d < 3)
    bias = ((w[0],), I32) if zero is not None else None
    slots = [(x, dtype), (w, I8), bias, point]
    anchor_case("conv_integer", attrs, slots, constants=[1, 2], layouts={0: order}).check("host.conv.bytes", 0)


@pytest.mark.parametrize("slot", [2, 3])
def test_a_bias_or_zero_point_that_is_computed_is_refused(slot: int) -> None:
    """Of a convolution; those that are read are taken."""
    slots: list[Any] = [((1, 16, 9, 9), U8), ((24, 16, 3, 3), I8), ((24,), I32), np.array(5, np.uint8)]
    body = anchor_case("conv_integer", {}, slots, constants=[1, 2], layouts={0: (0, 2, 3, 1)}).body
    family = family_of("host.conv.bytes")
    assert family.tilings("host.conv.bytes", body, detect_cpu())
    inputs = list(body.anchor_inputs)
    inputs[slot] = PointwiseProgram((), (), (), ())
    with pytest.raises(UnsupportedError):
        family.tilings("host.conv.bytes", replace(body, anchor_inputs=tuple(inputs)), detect_cpu())


def test_refused() -> None:
    """Weights with a zero point, unsigned weights, a zero point per row."""
    slots: dict[str, list[Any]] = {
        "unsigned": [((7, 33), U8), ((33, 50), U8)],
        "weights' zero point": [((7, 33), U8), ((33, 50), I8), None, np.array(3, np.int8)],
        "rows' zero points": [((7, 33), U8), ((33, 50), I8), np.arange(7, dtype=np.uint8)],
    }
    for name, given in slots.items():
        body = anchor_case("matmul_integer", {}, given, constants=[1]).body
        with pytest.raises(UnsupportedError, match="product of bytes"):
            family_of("host.matmul.bytes").tilings("host.matmul.bytes", body, detect_cpu())
        assert body.op == "matmul_integer", name
