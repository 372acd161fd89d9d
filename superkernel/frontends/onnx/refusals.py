"""What lowerings refuse in a model: the nodes of `frontends/refusals.py`, with the types that ONNX infers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import onnx

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor
from superkernel.core.errors import SuperKernelError, UnsupportedError
from superkernel.core.tensor import TensorType
from superkernel.frontends.onnx.call import StaticValueError
from superkernel.frontends.onnx.types import element_type
from superkernel.frontends.onnx.values import LOST, Bound
from superkernel.frontends.refusals import Refusals

INFERRED_BYTES_MAX = 256 << 20  # inference copies a model several times
_ROW_MAX = 1 << 20


class ModelRefusals(Refusals):
    """What has been refused so far in the walk through a model."""

    def __init__(self, builder: GraphBuilder, model: onnx.ModelProto) -> None:
        super().__init__(builder)
        self.model = model
        self.shapes: dict[str, tuple[int, ...]] = {}  # of the model's inputs, as they are here
        self.errors: list[SuperKernelError] = []
        self._stand_ins: set[str] = set()

    def add(self, error: SuperKernelError, read: Sequence[Tensor], outputs: Sequence[str]) -> list[Bound]:
        """Notes a node that was refused; what stands for its outputs, which are named as in the model."""
        kinds = [self._types.get(name) for name in outputs] if outputs else []
        known = [k for k in kinds if k is not None]
        follows = isinstance(error, StaticValueError) and not self._stand_ins.isdisjoint(error.inputs)
        before = len(self.violations)
        stand_ins = self.refused(() if follows else error.violations, read, known, outputs[0] if outputs else "")
        if len(self.violations) > before:
            self.errors.append(error)
        self._stand_ins.update(t.name for t in stand_ins)
        found = iter(stand_ins)
        return [LOST if kind is None else next(found) for kind in kinds]

    def raise_all(self) -> None:
        """Raises what was refused: one error as it is, several as one."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors and all(isinstance(e, StaticValueError) for e in self.errors):
            static = StaticValueError(violations=self.violations)
            static.inputs = tuple(sorted({i for e in self.errors if isinstance(e, StaticValueError) for i in e.inputs}))
            raise static
        super().raise_all()

    @cached_property
    def _types(self) -> dict[str, TensorType]:
        """Types of values by their names, as far as ONNX knows them for the inputs' shapes here."""
        if self.model.ByteSize() > INFERRED_BYTES_MAX:
            return {}
        try:
            copy = onnx.ModelProto()
            copy.CopyFrom(self.model)
            for info in copy.graph.input:
                for dim, size in zip(info.type.tensor_type.shape.dim, self.shapes.get(info.name, ()), strict=False):
                    dim.dim_value = size
            graph = onnx.shape_inference.infer_shapes(copy, data_prop=not self._has_long_row()).graph
        except Exception:  # inference raises whatever its checks meet; the walk goes on as far as it can without
            return {}
        found = {info.name: _type(info) for info in (*graph.value_info, *graph.output)}
        return {name: kind for name, kind in found.items() if kind is not None}

    def _has_long_row(self) -> bool:
        """Whether an input is a vector of so many elements that inference, which keeps what it knows of the elements of
        vectors, would not end."""
        return any(len(shape) == 1 and shape[0] > _ROW_MAX for shape in self.shapes.values())


def _type(info: onnx.ValueInfoProto) -> TensorType | None:
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    if not all(d.WhichOneof("value") == "dim_value" and d.dim_value >= 0 for d in tensor.shape.dim):
        return None
    try:
        return TensorType(element_type(tensor.elem_type, ""), tuple(d.dim_value for d in tensor.shape.dim))
    except UnsupportedError:
        return None
