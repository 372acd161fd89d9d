"""`Emitter`: what the lowering of one foreign node writes with. Operators of the table, folded where everything they
read is constant.

Folding at import is what makes shape arithmetic vanish: an operator whose inputs are all constants is computed by its
NumPy reference at once, unless the result is larger than its inputs and larger than `FOLD_LIMIT_BYTES` (an expanded
constant stays a node). A dequantised constant stays one too: whether its codes or its values are wanted depends on who
reads it, and on the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor, TensorLike
from superkernel.core.dtypes import DType
from superkernel.core.errors import SuperKernelError, UnsupportedError
from superkernel.reference.folding import fold_node

FOLD_LIMIT_BYTES = 1 << 20

KEPT = frozenset({"dequantize"})
"""Operators that stay, whatever they read."""


class Emitter:
    """Writes the operators that a foreign node becomes; `stem` begins their names, `where` is its place in errors.
    `thorough`: also those that change nothing for the sizes at hand, so that it is the same ones for all sizes."""

    def __init__(self, builder: GraphBuilder, stem: str, where: str, *, thorough: bool = False) -> None:
        self.builder, self.stem, self.where, self.thorough = builder, stem, where, thorough

    def unsupported(self, message: str, **details: Any) -> UnsupportedError:
        """The error to raise for a legal node that has no lowering."""
        return UnsupportedError(message, location=self.where, **details)

    def constant(self, array: Any, dtype: DType | None = None) -> Tensor:
        """A constant."""
        return self.builder.constant(array, dtype)

    def like(self, number: float, tensor: Tensor) -> Tensor:
        """A scalar of the tensor's element type."""
        return self.builder.constant(np.asarray(number).astype(tensor.dtype.numpy))

    def emit_all(self, op: str, *inputs: TensorLike | None, **attrs: Any) -> tuple[Tensor, ...]:
        """An operator of the table with all its outputs; folded where every input is a constant."""
        tensors = self.builder.apply(op, inputs, attrs, stem=f"{self.stem}/{op}")
        record = tensors[0].value.record
        operands = [None if v is None else v.data for v in record.inputs]
        if op in KEPT or any(v is not None and v.data is None for v in record.inputs):
            return tensors
        read = sum(a.nbytes for a in operands if a is not None)
        written = sum(t.type.nbytes for t in tensors)
        if written > max(read, FOLD_LIMIT_BYTES):
            return tensors
        arrays = fold_node(op, operands, record.attrs, tuple(t.type for t in tensors))
        self.builder.drop_last(record)
        return tuple(self.builder.constant(a) for a in arrays)

    def emit(self, op: str, *inputs: TensorLike | None, **attrs: Any) -> Tensor:
        """An operator of the table with one output."""
        (result,) = self.emit_all(op, *inputs, **attrs)
        return result

    # -- what many lowerings need

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` in another static shape; `x` itself where it has it."""
        same = x.shape == tuple(shape) and not self.thorough
        return x if same else self.emit("reshape", x, shape=tuple(shape))

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """`x` with permuted axes; `x` itself for the identity."""
        return x if tuple(perm) == tuple(range(x.rank)) else self.emit("transpose", x, perm=tuple(perm))

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` broadcast to `shape`."""
        same = x.shape == tuple(shape) and not self.thorough
        return x if same else self.emit("expand", x, shape=tuple(shape))

    def slice(self, x: Tensor, axis: int, start: int, end: int, step: int = 1) -> Tensor:
        """x[start:end:step] along one axis, all not negative; `x` itself where that is all of it."""
        if (start, step) == (0, 1) and end >= x.shape[axis] and not self.thorough:
            return x
        return self.emit("slice", x, starts=[start], ends=[end], axes=[axis], steps=[step])

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """The parts one behind the other; empty ones leave no trace."""
        full = [p for p in parts if p.shape[axis] or self.thorough] or list(parts[:1])
        return full[0] if len(full) == 1 else self.emit("concat", *full, axis=axis)

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        """`x` in another element type."""
        return x if x.dtype is dtype else self.emit("cast", x, dtype=dtype)


def scaled_query(call: Emitter, q: Tensor, scale: float | None) -> tuple[Tensor, float]:
    """Query and `scale` of the table's attention, to which 0 is the default, as None is here."""
    if scale == 0.0:
        return call.emit("mul", q, call.like(0.0, q)), 1.0
    return q, float(scale or 0.0)


def in_node(error: SuperKernelError, where: str) -> SuperKernelError:
    """The error with the foreign node in front where it names only a node of the built graph."""
    if all(v.location.startswith(where) for v in error.violations):
        return error
    error.violations = tuple(v if v.location.startswith(where) else v.within(where) for v in error.violations)
    error.args = (error._text(),)
    return error
