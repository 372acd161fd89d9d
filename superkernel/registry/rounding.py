"""How far results of kernels may be from the reference, and in what type they sum."""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.core.dtypes import DType
from superkernel.registry.records import NumericClass


@dataclass(frozen=True)
class Rounding:
    """Where rounding comes from, and how much of it."""

    numeric: NumericClass
    error_ulps: float


EXACT = Rounding(NumericClass.EXACT, 0.0)
ROUNDED = Rounding(NumericClass.ROUNDED, 4.0)
REFERENCE_ROUNDED = Rounding(NumericClass.ROUNDED, 1.0)
ROW_SUMS = Rounding(NumericClass.ACCUMULATED, 16.0)
PRODUCT_SUMS = Rounding(NumericClass.ACCUMULATED, 32.0)


def accumulator_of(dtype: DType) -> DType:
    """The type in which sums of a type are kept: f16 and bf16 in f32, small integers in i32."""
    if dtype.is_float:
        return DType.F64 if dtype is DType.F64 else DType.F32
    return dtype if dtype.itemsize >= 4 else DType.I32
