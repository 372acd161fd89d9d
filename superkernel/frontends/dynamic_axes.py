"""Extents that follow from the sizes of dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superkernel.core.dtypes import DType

Ranges = Mapping[str, tuple[int, int]]
"""Dimension -> least and largest size."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An extent: `offset` and, per dimension, a factor of its size."""

    offset: int
    factors: Mapping[str, int]

    def __str__(self) -> str:
        terms = [name if factor == 1 else f"{factor}*{name}" for name, factor in self.factors.items()]
        return "+".join([*terms, *([str(self.offset)] if self.offset or not terms else [])])


@dataclass(frozen=True, slots=True)
class DynamicInput:
    """The type of an input whose extents follow from the sizes of dimensions."""

    dtype: DType
    axes: tuple[Axis, ...]

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.axes))}]"
