"""One ONNX node on its way into the graph: its inputs as tensors, its attributes, and `emit`, which folds what is
constant.

Folding at import is what makes shape arithmetic vanish: an operator whose inputs are all constants is computed by its
NumPy reference at once, unless the result is larger than its inputs and larger than `FOLD_LIMIT_BYTES` (an expanded
constant stays a node).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder
from superkernel.builder_tensor import Tensor, TensorLike, Value
from superkernel.dtypes import DType
from superkernel.errors import FileFormatError, UnsupportedError
from superkernel.folding import fold_node
from superkernel.frontends.onnx.types import tensor_array

FOLD_LIMIT_BYTES = 1 << 20


class StaticValueError(UnsupportedError):
    """A value that decides shapes is computed at run time. `inputs` names the graph inputs it depends on."""

    inputs: tuple[str, ...] = ()


class Call:
    """What a lowering works with."""

    def __init__(
        self,
        builder: GraphBuilder,
        node: onnx.NodeProto,
        inputs: Sequence[Tensor | None],
        attrs: dict[str, Any],
        opset: int,
        stem: str,
    ) -> None:
        self.builder, self.node, self.attrs, self.opset, self.stem = builder, node, attrs, opset, stem
        self.inputs = tuple(inputs)
        self.op = node.op_type
        self.where = f"node {node.name or stem!r} ({node.op_type})"

    # -- reading

    @property
    def outputs_wanted(self) -> tuple[bool, ...]:
        """Which outputs the node names."""
        return tuple(bool(name) for name in self.node.output)

    def wants(self, index: int) -> bool:
        """True where output `index` has a name."""
        return index < len(self.node.output) and bool(self.node.output[index])

    def has(self, index: int) -> bool:
        """True where input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Tensor:
        """A required input."""
        tensor = self.inputs[index] if index < len(self.inputs) else None
        if tensor is None:
            raise FileFormatError("a required input is absent", location=f"{self.where}, input {index}")
        return tensor

    def optional(self, index: int) -> Tensor | None:
        """An input, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default`."""
        return self.attrs.get(name, default)

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attrs:
            raise FileFormatError(f"attribute {name!r} is missing", location=self.where)
        return self.attrs[name]

    def tensor_attr(self, name: str) -> NDArray[Any] | None:
        """A tensor attribute's contents, or None."""
        proto = self.attrs.get(name)
        return None if proto is None else tensor_array(proto, f"{self.where}, attribute {name!r}")

    def static(self, index: int) -> NDArray[Any]:
        """The contents of input `index`, which must be known at compile time. Raises StaticValueError."""
        tensor = self.input(index)
        if tensor.value.data is None:
            inputs = tuple(sorted(inputs_of(tensor.value)))
            names = ", ".join(repr(n) for n in inputs)
            error = StaticValueError(
                "the value decides shapes or sizes and must be known at compile time",
                location=f"{self.where}, input {index}",
                expected="a constant",
                found=f"{tensor.name!r}, computed from {names or 'states'}",
                hint=f"fix the graph inputs it depends on: constants={{{names}: array}}" if inputs else "",
            )
            error.inputs = inputs
            raise error
        return tensor.value.data

    def static_ints(self, index: int) -> list[int]:
        """`static` as a flat list of ints."""
        return [int(v) for v in self.static(index).reshape(-1)]

    def unsupported(self, message: str, **details: Any) -> UnsupportedError:
        """The error to raise for a legal node that has no lowering."""
        return UnsupportedError(message, location=self.where, **details)

    # -- writing

    def constant(self, array: Any, dtype: DType | None = None) -> Tensor:
        """A constant."""
        return self.builder.constant(array, dtype)

    def like(self, number: float, tensor: Tensor) -> Tensor:
        """A scalar of the tensor's element type."""
        return self.builder.constant(np.asarray(number), tensor.dtype)

    def emit_all(self, op: str, *inputs: TensorLike | None, **attrs: Any) -> tuple[Tensor, ...]:
        """An operator of the table with all its outputs; folded where every input is a constant."""
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        tensors = self.builder.apply(op, trimmed, attrs, stem=f"{self.stem}/{op}")
        record = tensors[0].value.record
        operands = [None if v is None else v.data for v in record.inputs]
        if any(v is not None and v.data is None for v in record.inputs):
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
        return x if x.shape == tuple(shape) else self.emit("reshape", x, shape=tuple(shape))

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """`x` with permuted axes; `x` itself for the identity."""
        return x if tuple(perm) == tuple(range(x.rank)) else self.emit("transpose", x, perm=tuple(perm))

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` broadcast to `shape`."""
        return x if x.shape == tuple(shape) else self.emit("expand", x, shape=tuple(shape))

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        """`x` in another element type."""
        return x if x.dtype is dtype else self.emit("cast", x, dtype=dtype)

    def axis(self, value: int, rank: int) -> int:
        """A non-negative axis. Raises FileFormatError where it is out of range."""
        if not -rank <= value < max(rank, 1):
            raise FileFormatError(
                "axis out of range", location=self.where, expected=f"{-rank}..{rank - 1}", found=str(value)
            )
        return value % rank if rank else 0


def inputs_of(value: Value) -> set[str]:
    """Names of the graph inputs that a value under construction depends on."""
    found: set[str] = set()
    seen: set[Value] = set()
    todo = [value]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        if at.record is not None:
            todo += [v for v in at.record.inputs if v is not None]
        elif at.data is None and at.initial is None:
            found.add(at.name)
    return found
