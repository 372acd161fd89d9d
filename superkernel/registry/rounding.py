"""How far results of kernels may be from the reference, for the rows of the registry."""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.registry.records import NumericClass


@dataclass(frozen=True)
class Rounding:
    """Where rounding comes from, and how much of it."""

    numeric: NumericClass
    error_ulps: float


EXACT = Rounding(NumericClass.EXACT, 0.0)
ROUNDED = Rounding(NumericClass.ROUNDED, 4.0)
ROW_SUMS = Rounding(NumericClass.ACCUMULATED, 16.0)
PRODUCT_SUMS = Rounding(NumericClass.ACCUMULATED, 32.0)
