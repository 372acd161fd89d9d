"""One ONNX node on its way into the graph: its inputs as tensors and its attributes; what it becomes is written with
`Emitter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor, Value
from superkernel.core.errors import FileFormatError, UnsupportedError
from superkernel.frontends.emitter import Emitter
from superkernel.frontends.found import FoundSizes
from superkernel.frontends.onnx.types import tensor_array
from superkernel.frontends.onnx.values import Bound, TensorSequence


class StaticValueError(UnsupportedError):
    """Values that decide shapes are computed at run time. `inputs` names the graph inputs they depend on."""

    inputs: tuple[str, ...] = ()


class OnnxCall(Emitter):
    """What a lowering works with."""

    def __init__(
        self,
        builder: GraphBuilder,
        node: onnx.NodeProto,
        values: Sequence[Bound],
        attrs: dict[str, Any],
        opset: int,
        stem: str,
        found: FoundSizes,
    ) -> None:
        super().__init__(builder, stem, f"node {node.name or stem!r} ({node.op_type})", thorough=bool(found.sizes))
        self.node, self.attrs, self.opset = node, attrs, opset
        self.values = tuple(values)  # sequences and empty optionals among them
        self.inputs = tuple(v if isinstance(v, Tensor) else None for v in values)
        self.op, self.found = node.op_type, found

    # -- reading

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
            where = f"{self.where}, input {index}"
            if index < len(self.values) and isinstance(self.values[index], TensorSequence):
                raise FileFormatError("a sequence where a tensor is expected", location=where)
            raise FileFormatError("a required input is absent", location=where)
        return tensor

    def sequence(self, index: int) -> TensorSequence:
        """A required input that is a sequence of tensors."""
        value = self.values[index] if index < len(self.values) else None
        if not isinstance(value, TensorSequence):
            raise FileFormatError("a sequence of tensors is expected", location=f"{self.where}, input {index}")
        return value

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
            message = "the value decides shapes or sizes and must be known at compile time"
            raise self.computed(tensor, message, f", input {index}")
        return tensor.value.data

    def computed(self, tensor: Tensor, message: str, place: str = "") -> StaticValueError:
        """The error to raise where a tensor is computed at run time that decides what the graph is."""
        inputs = tuple(sorted(inputs_of(tensor.value)))
        names = ", ".join(repr(n) for n in inputs)
        error = StaticValueError(
            message,
            location=f"{self.where}{place}",
            expected="a constant",
            found=f"{tensor.name!r}, computed from {names or 'states'}",
            hint=f"fix the graph inputs it depends on: compile(..., constants={{{names}: array}})" if inputs else "",
        )
        error.inputs = inputs
        return error

    def static_ints(self, index: int) -> list[int]:
        """`static` as a flat list of ints."""
        return [int(v) for v in self.static(index).reshape(-1)]

    def static_scalar(self, index: int) -> int | float | bool:
        """`static` of one element."""
        array = self.static(index)
        if array.size != 1:
            where = f"{self.where}, input {index}"
            raise FileFormatError("not a single element", location=where, found=f"shape {list(array.shape)}")
        scalar: int | float | bool = array.item()
        return scalar

    def contradiction(self, message: str, **about: Any) -> FileFormatError:
        """The error to raise where the node's operands do not fit its operator or one another."""
        return FileFormatError(message, location=self.where, **about)

    def require_rank(self, tensor: Tensor, least: int, most: int | None = None) -> None:
        """Raises FileFormatError where an operand has fewer axes, or more."""
        if not least <= tensor.rank <= (tensor.rank if most is None else most):
            expected = f"{least}" if least == most else f"{least} or more"
            raise self.contradiction("another number of axes", expected=expected, found=tensor.type)

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
