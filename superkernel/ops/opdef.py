"""What an operator is: one `OpDef` per operator, the only place that knows its shapes, dtypes, meaning and access.

Everything else (validation, the NumPy reference, tiling, documentation, the registry's op names) is derived from the
table in `superkernel/ops/table.py`. Adding an operator is adding one `OpDef`.

Conventions
- `infer(inputs, attrs)` gets input types (None = absent optional input), returns the output types; raises `GraphError`
  (without location: the caller adds the node) on any input it cannot accept. Broadcasting is NumPy's.
- `reference(inputs, attrs, outputs)` gets arrays and returns arrays. Floats are computed in float64 and NOT rounded:
  the caller (`superkernel.reference`) rounds to the declared output dtype, or keeps float64 for a wide reference. It
  never calls a kernel.
- `access(inputs, outputs, attrs, index, box)`: for output `index`, which box of each input the output box `box` (not
  empty) needs (None = not read). Never smaller than the truth; data-dependent reads (gather) give the whole range that
  may be read.
- `flops(inputs, outputs, attrs)`: floating-point (or integer) operations, a fused multiply-add counted as 2, a
  transcendental as 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Box, TensorType

AttrValue = int | float | bool | str | DType | tuple[int, ...] | tuple[float, ...] | None
Attrs = Mapping[str, AttrValue]
Array = NDArray[Any]
Types = Sequence[TensorType | None]
Arrays = Sequence[Array | None]
Outputs = tuple[TensorType, ...]
Boxes = tuple[Box | None, ...]

InferFn = Callable[[Types, Attrs], Outputs]
ReferenceFn = Callable[[Arrays, Attrs, Outputs], tuple[Array, ...]]
AccessFn = Callable[[Types, Outputs, Attrs, int, Box], Boxes]
FlopsFn = Callable[[Types, Outputs, Attrs], int]


class Family(Enum):
    """How the compiler treats an operator; says which kernels may compute it."""

    POINTWISE = "pointwise"  # out[i] = f(inputs broadcast at i); joins pointwise programs
    RESHAPE = "reshape"  # same bytes, other shape: no work, an alias
    VIEW = "view"  # affine re-indexing of one input (transpose, slice, expand, split): folded into readers where legal
    MOVE = "move"  # copies that are no single affine view (concat, pad, tile, gather, ...)
    REDUCE = "reduce"  # reductions and scans along axes (sum, argmax, cumsum, ...)
    ROWWISE = "rowwise"  # softmax and norms: statistics over a row, then pointwise
    MATMUL = "matmul"
    CONV = "conv"
    POOL = "pool"
    ATTENTION = "attention"
    UPDATE = "update"  # in-place update of a state (KV cache)
    OTHER = "other"


class AttrKind(Enum):
    """The type of an attribute's value after validation."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    STR = "str"
    INTS = "ints"
    FLOATS = "floats"
    DTYPE = "dtype"


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute: `default` REQUIRED means it must be given; None as default means "absent" is legal."""

    name: str
    kind: AttrKind
    default: AttrValue | _Required = REQUIRED
    doc: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArgDef:
    """One input slot. `variadic` only on the last slot: one or more of it."""

    name: str
    dtypes: frozenset[DType]
    optional: bool = False
    variadic: bool = False
    doc: str = ""


def no_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    """Of an operator that moves data only."""
    return 0


@dataclass(frozen=True, slots=True)
class OpDef:
    """One row of the operator table."""

    name: str
    family: Family
    doc: str  # one line, with the formula
    args: tuple[ArgDef, ...]
    attrs: tuple[AttrDef, ...]
    infer: InferFn
    reference: ReferenceFn
    access: AccessFn
    flops: FlopsFn

    def attr(self, name: str) -> AttrDef | None:
        """The attribute's definition, or None."""
        return next((a for a in self.attrs if a.name == name), None)


FLOATS = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})
SIGNED_INTS = frozenset({DType.I64, DType.I32, DType.I16, DType.I8})
UNSIGNED_INTS = frozenset({DType.U64, DType.U32, DType.U16, DType.U8})
INTS = SIGNED_INTS | UNSIGNED_INTS
NUMERIC = FLOATS | INTS
BOOLS = frozenset({DType.BOOL})
ANY = NUMERIC | BOOLS


def as_array(value: Any, dtype: DType) -> Array:
    """`value` as a contiguous NumPy array of `dtype`, of the same shape (a scalar stays a scalar)."""
    return np.asarray(value).astype(dtype.numpy, order="C", copy=False)
