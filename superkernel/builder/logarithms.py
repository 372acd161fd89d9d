"""Logarithms of other bases than e, written with the operators of the table.

Model: the natural logarithm times 1 / ln(base) is off by an ulp or two. Where a whole number is as near as that, it is
taken: so the logarithms of a base's powers are whole, and rounding them down gives the power.
"""

from __future__ import annotations

from math import log
from typing import Any, Protocol, TypeVar

from superkernel.core.dtypes import DType

_NEAR = {DType.F32: 2.0**-22, DType.F64: 2.0**-51}  # relative


class _Operand(Protocol):
    """What is asked of a handle."""

    @property
    def dtype(self) -> DType:
        """Element type."""


T = TypeVar("T", bound=_Operand)


class _Writer(Protocol[T]):
    """What writes the operators."""

    def emit(self, op: str, *inputs: T | float, **attrs: Any) -> T:
        """An operator of the table with one output."""


def logarithm(call: _Writer[T], x: T, base: float) -> T:
    """The logarithm of floats, in their type."""
    wide = x if x.dtype in _NEAR else call.emit("cast", x, dtype=DType.F32)
    y = call.emit("mul", call.emit("log", wide), 1 / log(base))
    whole = call.emit("round", y)
    distance, near = call.emit("abs", call.emit("sub", y, whole)), call.emit("abs", whole)
    is_whole = call.emit("less_equal", distance, call.emit("mul", near, _NEAR[wide.dtype]))
    y = call.emit("where", is_whole, whole, y)
    return y if wide is x else call.emit("cast", y, dtype=x.dtype)
