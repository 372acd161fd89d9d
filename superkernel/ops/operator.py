"""Operators with rules of their own as classes: a row of the table each.

Model: the class holds the columns of `OpDef`, an instance is one application: operands, attributes and, but for
`infer`, outputs. Operands are types to `infer` and `flops`, arrays to `reference`. What derives from a class shares
its rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from superkernel.core.tensor import TensorType
from superkernel.ops import common
from superkernel.ops.opdef import ArgDef, Array, AttrDef, Attrs, Family, OpDef, Outputs


class Operator:
    """See the module docstring. `flops_per_element`: of results, where `flops` does not say otherwise."""

    name: ClassVar[str]
    family: ClassVar[Family]
    doc: ClassVar[str]
    args: ClassVar[tuple[ArgDef, ...]]
    attr_defs: ClassVar[tuple[AttrDef, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ("y",)
    flops_per_element: ClassVar[int] = 0

    def __init__(self, inputs: Sequence[Any], attrs: Attrs, outputs: Outputs = ()) -> None:
        self.inputs, self.attrs, self.outputs = inputs, attrs, outputs

    def infer(self) -> Outputs:
        """Types of the outputs. Raises GraphError."""
        raise NotImplementedError

    def reference(self) -> tuple[Array, ...]:
        """The outputs, floats in float64."""
        raise NotImplementedError

    def flops(self) -> int:
        """As in `OpDef`."""
        return self.flops_per_element * self.outputs[0].size

    def type(self, index: int) -> TensorType:
        """Type of operand `index`, which is present."""
        return common.present(self.inputs, index)

    def optional_type(self, index: int) -> TensorType | None:
        """Type of operand `index`, None where absent."""
        return common.optional(self.inputs, index)

    def array(self, index: int) -> Array:
        """Operand `index`, which is present."""
        return common.array(self.inputs, index)

    def optional_array(self, index: int) -> Array | None:
        """Operand `index`, None where absent."""
        return common.optional_array(self.inputs, index)

    def f64(self, index: int) -> Array:
        """Operand `index` as float64."""
        return common.to_f64(self.array(index))

    def wide(self, index: int) -> Array:
        """Operand `index`, floats as float64."""
        return common.widen(self.array(index))

    def int_of(self, name: str) -> int:
        """An attribute."""
        return common.get_int(self.attrs, name)

    def ints_of(self, name: str) -> tuple[int, ...]:
        """An attribute."""
        return common.get_ints(self.attrs, name)

    def float_of(self, name: str) -> float:
        """An attribute."""
        return common.get_float(self.attrs, name)

    def bool_of(self, name: str) -> bool:
        """An attribute."""
        return common.get_bool(self.attrs, name)

    def str_of(self, name: str) -> str:
        """An attribute."""
        return common.get_str(self.attrs, name)

    def axis(self, rank: int) -> int:
        """Attribute `axis`, counted from the front. Raises GraphError where it is out of range."""
        return common.axis_of(self.int_of("axis"), rank)

    def slot(self, index: int) -> str:
        """How errors name operand `index`."""
        return common.slot(self.args, index)


def rows(*operators: type[Operator]) -> tuple[OpDef, ...]:
    """The operators' rows."""
    return tuple(
        OpDef(
            o.name,
            o.family,
            o.doc,
            o.args,
            o.attr_defs,
            infer=lambda inputs, attrs, o=o: o(inputs, attrs).infer(),
            reference=lambda inputs, attrs, outputs, o=o: o(inputs, attrs, outputs).reference(),
            flops=lambda inputs, outputs, attrs, o=o: o(inputs, attrs, outputs).flops(),
            results=o.results,
        )
        for o in operators
    )
