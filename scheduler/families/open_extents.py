"""Bodies of which some extents may be any: what code that several sizes share is emitted from.

Model: where a number of rows, or of keys, is *open*, its extent becomes `OPEN` in the result, in the program behind and
in the inputs that walk along with it. Strides stay, and so the code of two bodies is shared where only such extents
tell them apart. Operands become lines of OPEN elements: code finds elements by views, never by what the buffers are.

Where an extent is no outermost one, code divides by it and strides go by it. Then *marks* stand in their place, numbers
that code looks up in the kernel's table of sizes (`KernelBuilder.known`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, Operand, PointwiseProgram, ProgramInput, ProgramOutput, View

OPEN = (1 << 20) + 7
"""An extent that stands for any: larger than those that are read from tables, and odd."""
MARKS = 1 << 60
"""From here on numbers are marks."""
Extents = Mapping[int, int]
"""New extents by axis."""
WalkedT = TypeVar("WalkedT", bound="View | PointwiseProgram")
PartT = TypeVar("PartT", View, ProgramInput, ProgramOutput)


def open_axis(body: Body, slots: Iterable[int]) -> int | None:
    """The outermost axis of the anchor's one result that has more than one element, where the inputs in some slots walk
    along it. None where there is no such axis, or where it is longer than what may be open."""
    if len(body.anchor_outputs) != 1:
        return None
    shape = body.anchor_outputs[0].shape
    axis = next((d for d, extent in enumerate(shape) if extent > 1), None)
    if axis is None or shape[axis] >= OPEN:
        return None
    kinds = [body.anchor_input_types[slot] for slot in slots]
    sources = [body.anchor_inputs[slot] for slot in slots]
    shapes = [getattr(part, "shape", ()) for part in (body.epilogue, *kinds, *sources)]
    return axis if all(len(s) == len(shape) and s[axis] == shape[axis] for s in shapes) else None


def opened(body: Body, result: Extents, inputs: Mapping[int, Extents]) -> Body:
    """The body with other extents of its result, and of inputs by slot."""
    sources, kinds = list(body.anchor_inputs), list(body.anchor_input_types)
    for slot, extents in inputs.items():
        kind, source = kinds[slot], sources[slot]
        assert kind is not None
        assert source is not None
        sources[slot], kinds[slot] = _wide(source, extents), _wide_type(kind, extents)
    return replace(
        body,
        operands=open_operands(body),
        anchor_inputs=tuple(sources),
        anchor_input_types=tuple(kinds),
        anchor_outputs=(_wide_type(body.anchor_outputs[0], result),),
        epilogue=_wide(body.epilogue, result),
    )


def open_operands(body: Body) -> tuple[Operand, ...]:
    """Lines of any length."""
    return tuple([Operand(o.role, TensorType(o.type.dtype, (OPEN,))) for o in body.operands])


def _wide_type(kind: TensorType, extents: Extents) -> TensorType:
    return TensorType(kind.dtype, with_extents(kind.shape, extents))


def _wide(source: WalkedT, extents: Extents) -> WalkedT:
    """With other extents; strides that nobody walks, which may go by the size as well, are 0."""
    shape = with_extents(source.shape, extents)

    def walked(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([s if d > 1 else 0 for s, d in zip(strides, shape, strict=True)])

    if isinstance(source, View):
        return cast("WalkedT", View(source.operand, shape, walked(source.strides), source.offset))
    inputs = tuple(
        [i if i.source < 0 else ProgramInput(i.source, i.dtype, walked(i.strides), i.offset) for i in source.inputs]
    )
    outputs = tuple(
        [o if o.target < 0 else ProgramOutput(o.value, o.target, walked(o.strides), o.offset) for o in source.outputs]
    )
    return cast("WalkedT", PointwiseProgram(shape, inputs, source.instructions, outputs))


def with_extents(shape: tuple[int, ...], extents: Extents) -> tuple[int, ...]:
    """The shape with other extents."""
    return tuple(extents.get(axis, extent) for axis, extent in enumerate(shape))


def mark_name(mark: int) -> str:
    """What a mark's number is called in the table of sizes."""
    return f"mark{mark - MARKS}"


@dataclass
class Marks:
    """The marks of one representative, with what they stand for by name."""

    sizes: dict[str, int] = field(default_factory=dict)

    def of(self, number: int) -> int:
        """A mark in the place of a number."""
        mark = MARKS + len(self.sizes)
        self.sizes[mark_name(mark)] = number
        return mark

    def walked(self, source: WalkedT, axes: Collection[int]) -> WalkedT:
        """The same with marks for strides along some axes, but for those that nobody walks. Of one walk, marks of outer
        axes are larger ones, as strides are where elements lie in the order of the axes."""

        def walked(part: PartT) -> PartT:
            strides = list(part.strides)
            for axis in reversed(range(len(strides))):
                if axis in axes and strides[axis]:
                    strides[axis] = self.of(strides[axis])
            return replace(part, strides=tuple(strides))

        if isinstance(source, View):
            return cast("WalkedT", walked(source))
        inputs = tuple(walked(i) if i.source >= 0 else i for i in source.inputs)
        outputs = tuple(walked(o) if o.target >= 0 else o for o in source.outputs)
        return replace(source, inputs=inputs, outputs=outputs)
