"""What a sub-operator computes, free of names and addresses: the unit that is tiled, emitted and shared.

Model: after grouping, a sub-operator is an optional *anchor* operator (matmul, softmax, conv, ...) with pointwise
work around it:

    operands --> [prologue programs] --> anchor --> epilogue program --> operands

A `PointwiseProgram` is straight-line SSA over an iteration space: it reads *inputs* (operands through affine views,
or the anchor's results in registers), runs *instructions* (operators of the pointwise family, plus `constant`), and
writes *outputs* (operands through affine views, or the registers that feed the anchor). A pure pointwise or copying
sub-operator has no anchor, only an epilogue.

Two sub-operators with equal `Body` (and equal tiling) run the same machine code on other pointers: `Body` is the key.

Invariants: operand order is inputs, constants, then outputs; each operand is a dense buffer of its type; views stay
inside it; all programs are in SSA order; SSA numbers count inputs first, then instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from superkernel.core.dtypes import DType
from superkernel.core.frozen import frozen
from superkernel.core.tensor import Region, TensorType, full_box, regions_of_box, row_major_strides
from superkernel.ops.opdef import AttrValue


class Role(Enum):
    """How a sub-operator uses an operand. INOUT: read and partly rewritten in place (KV cache)."""

    INPUT = "in"
    CONSTANT = "const"
    OUTPUT = "out"
    INOUT = "inout"

    __hash__ = object.__hash__  # Enum's own hashes the name each time, and operands are hashed with their bodies


@frozen(slots=False)
class Operand:
    """One pointer argument of the kernel function: a dense row-major buffer."""

    role: Role
    type: TensorType


@frozen(slots=False)
class View:
    """An affine view of an operand: element (i0, i1, ...) sits at offset + sum(i*stride). Strides and offset in
    elements; a stride of 0 broadcasts, a negative one walks backwards."""

    operand: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def regions(self, itemsize: int) -> tuple[Region, ...]:
        """All bytes the view touches."""
        return regions_of_box(full_box(self.shape), self.strides, itemsize, self.offset)

    @cached_property
    def is_dense(self) -> bool:
        """True where the view is the operand, or a contiguous part of it, in row-major order."""
        want = row_major_strides(self.shape)
        return all(s == w for s, w, d in zip(self.strides, want, self.shape, strict=True) if d > 1)


@frozen(slots=False)
class ProgramInput:
    """Where one SSA input comes from. `source` >= 0: operand of that index through (offset, strides); -1 - k: result
    k of the anchor, in registers at the current coordinates (strides then are empty)."""

    source: int
    dtype: DType
    strides: tuple[int, ...] = ()
    offset: int = 0


@frozen(slots=False)
class Instruction:
    """One pointwise operator: `op` a POINTWISE name of the operator table, or `constant` with attribute `value`.
    `dtype` is that of the result; for comparisons BOOL, for `cast` the target."""

    op: str
    args: tuple[int, ...]
    dtype: DType
    attrs: tuple[tuple[str, AttrValue], ...] = ()

    def attr(self, name: str) -> AttrValue:
        """The attribute's value; KeyError if absent."""
        return dict(self.attrs)[name]


@frozen(slots=False)
class ProgramOutput:
    """Where an SSA value goes. `target` >= 0: operand through (offset, strides); -1: to the anchor's input slot this
    program feeds."""

    value: int
    target: int
    strides: tuple[int, ...] = ()
    offset: int = 0


@frozen(slots=False)
class PointwiseProgram:
    """Straight-line pointwise code over the iteration space `shape`."""

    shape: tuple[int, ...]
    inputs: tuple[ProgramInput, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[ProgramOutput, ...]

    def dtype_of(self, value: int) -> DType:
        """dtype of an SSA number."""
        count = len(self.inputs)
        return self.inputs[value].dtype if value < count else self.instructions[value - count].dtype

    @property
    def is_store_only(self) -> bool:
        """True where it only stores the anchor's results, no arithmetic."""
        return not self.instructions


AnchorInput = View | PointwiseProgram | None


@dataclass(frozen=True)
class Body:
    """See the module docstring. `op` None: no anchor, the epilogue is everything. `anchor_inputs` follow the anchor
    operator's input slots; a `PointwiseProgram` there is a prologue, its shape the slot's tensor shape, its one
    output with target -1 the slot's value (it may have further outputs to operands, e.g. a residual sum that others
    read too)."""

    op: str | None
    attrs: tuple[tuple[str, AttrValue], ...]
    operands: tuple[Operand, ...]
    anchor_inputs: tuple[AnchorInput, ...]
    anchor_input_types: tuple[TensorType | None, ...]
    anchor_outputs: tuple[TensorType, ...]
    epilogue: PointwiseProgram

    @cached_property
    def attr(self) -> dict[str, AttrValue]:
        """The anchor's attributes."""
        return dict(self.attrs)

    @cached_property
    def text(self) -> str:
        """All of it, as `repr` has it."""
        return repr(self)

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.attrs, self.operands, self.anchor_inputs, self.anchor_outputs, self.epilogue))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        """Without what is cached: hashes of text differ from process to process."""
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}


@frozen(slots=False)
class SubOperator:
    """A body with its place in the graph: the values that its operands are, the nodes it computes, its kernel."""

    index: int
    name: str
    body: Body
    values: tuple[str, ...]  # the graph value behind each operand
    nodes: tuple[str, ...]  # names of all graph nodes it computes, topological order
    kernel: str  # registry id, e.g. "host.matmul.packed"
    scope: str | None = None
    stream: int | str | None = None
    kernel_type: str | None = None  # what its node asks for
    kernel_name: str = ""  # canonical name of the row that was chosen
