"""What an operator is: one `OpDef` per operator, the only place that knows its shapes, dtypes, meaning and traits.

Everything else (validation, the NumPy reference, tiling, estimates, what may be fused, where it is computed, its names
in ONNX and torch, documentation, test cases) is derived from the table in `superkernel/ops/table.py`. Adding an
operator is adding one `OpDef`, and the code that computes it: one function per target (see CONTRIBUTING.md).

Conventions
- `infer(inputs, attrs)` gets input types (None = absent optional input), returns the output types; raises `GraphError`
  (without location: the caller adds the node) on any input it cannot accept. Broadcasting is NumPy's.
- `reference(inputs, attrs, outputs)` gets arrays and returns arrays. Floats are computed in float64 and NOT rounded:
  the caller (`superkernel.reference`) rounds to the declared output dtype, or keeps float64 for a wide reference. It
  never calls a kernel. Floating-point warnings are off while it runs.
- `flops(inputs, outputs, attrs)`: floating-point (or integer) operations, a fused multiply-add counted as 2, a
  transcendental as 1.
- A trait without a default must be given: a row that lacks one is an error when the table is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import SMALL, DType
from superkernel.core.errors import InternalError
from superkernel.core.tensor import TensorType

AttrValue = int | float | bool | str | DType | tuple[int, ...] | tuple[float, ...] | None
Attrs = Mapping[str, AttrValue]
Array = NDArray[Any]
Types = Sequence[TensorType | None]
Arrays = Sequence[Array | None]
Outputs = tuple[TensorType, ...]

InferFn = Callable[[Types, Attrs], Outputs]
ReferenceFn = Callable[[Arrays, Attrs, Outputs], tuple[Array, ...]]
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

    @property
    def revisits(self) -> bool:
        """Whether an input element takes part in many results, so that a kernel may evaluate a prologue repeatedly."""
        return self in (Family.CONV, Family.MATMUL, Family.POOL, Family.ATTENTION)


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


def per_element(flops: int) -> FlopsFn:
    """So many operations per element of the first output."""
    return lambda inputs, outputs, attrs: flops * outputs[0].size


no_flops = per_element(0)
"""Of an operator that moves data only."""


def _without_warnings(reference: ReferenceFn) -> ReferenceFn:
    def quiet(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return reference(inputs, attrs, outputs)

    return quiet


Conversions = Mapping[DType, frozenset[DType]]
"""Element type of the operand that names it (`OpDef.typed_by`) -> element types of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What the compiler asks of a pointwise operator.

    `weight`: estimated vector instructions of the host per vector of results, loads and stores apart. `vector`: the
    element types that the accelerator's vector engine computes; or, where it computes none, why (its scalar units do
    it then). `constant`: what the last operand is, where the engine must know it when compiling. `costly`: not to be
    evaluated more than once per element to save a tensor. `domain`: an interval of arguments on which the function
    is finite and well conditioned."""

    weight: float
    vector: Conversions | str
    constant: str = ""
    costly: bool = False
    domain: tuple[float, float] = (-3.0, 3.0)


@dataclass(frozen=True, slots=True)
class OpDef:
    """One row of the operator table. Raises InternalError where a column is missing."""

    name: str
    family: Family
    doc: str  # one line, with the formula
    args: tuple[ArgDef, ...]
    attrs: tuple[AttrDef, ...]
    infer: InferFn
    reference: ReferenceFn
    flops: FlopsFn = no_flops
    traits: Traits | None = None  # of pointwise operators, which all have them
    results: tuple[str, ...] = ("y",)  # names of the outputs; "parts..." stands for as many as the attributes ask for
    typed_by: int = 0  # the input whose element type names the operator's
    commutative: bool = False
    discontinuous: bool = False  # selects, counts or jumps: a small error of an input may become a large one
    onnx: str = ""  # the ONNX operator that is this one, inputs and attributes alike
    torch: str = ""  # the ATen operator that is this one, on operands of the result's type

    def __post_init__(self) -> None:
        missing = [c for c in ("name", "doc", "args") if not getattr(self, c)]
        if self.family is Family.POINTWISE and self.traits is None:
            missing.append("traits")
        if missing:
            columns = ", ".join(missing)
            raise InternalError("a row of the operator table is incomplete", location=self.name, expected=columns)
        object.__setattr__(self, "reference", _without_warnings(self.reference))

    @property
    def has_several_results(self) -> bool:
        """Whether it may have more than one output."""
        return len(self.results) > 1 or self.results[0].endswith("...")

    def attr(self, name: str) -> AttrDef | None:
        """The attribute's definition, or None."""
        return next((a for a in self.attrs if a.name == name), None)


FLOATS = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})
SIGNED_INTS = frozenset({DType.I64, DType.I32, DType.I16, DType.I8})
UNSIGNED_INTS = frozenset({DType.U64, DType.U32, DType.U16, DType.U8})
INTS = SIGNED_INTS | UNSIGNED_INTS
BYTES = frozenset({DType.I8, DType.U8})
NUMERIC = FLOATS | INTS
BOOLS = frozenset({DType.BOOL})
ANY = NUMERIC | BOOLS
MOVED = ANY | SMALL
"""What views and moves take: bytes as they are."""

VECTOR_FLOATS = frozenset({DType.F32, DType.F16, DType.BF16})
VECTOR_INTS = frozenset({DType.I32, DType.I16})
VECTOR_ARITHMETIC = VECTOR_FLOATS | VECTOR_INTS | BOOLS
VECTOR_COMPARABLE = VECTOR_ARITHMETIC | {DType.I8, DType.U8}
"""Element types that the accelerator's vector engine computes with, and those that it can compare and select. Of f64
and i64 it moves the bytes, unsigned types of 16 and 32 bits its commands do not know."""


def as_array(value: Any, dtype: DType) -> Array:
    """`value` as a contiguous NumPy array of `dtype`, of the same shape (a scalar stays a scalar)."""
    return np.asarray(value).astype(dtype.numpy, order="C", copy=False)
