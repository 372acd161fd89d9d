"""The evaluator of pointwise programs: prologues, epilogues and whole pointwise kernels go through it.

Model: a program is evaluated for `lanes` consecutive positions along one dimension (`axis`, by default the last) at a
time. `row(coords)` fixes the other coordinates: base offsets are computed and values that do not move along the axis
are loaded once; `ProgramRow.eval(position, ...)` then emits loads, instructions and stores for one vector of positions.
Strides along the axis decide the form of an access: 0 a scalar in all lanes, 1 or -1 a vector, small ones a wider
vector and a shuffle, others lane by lane.

Invariants: each output element is computed by the same instructions whatever the vector width and position; nothing
outside the program's views is stored to; loads stay between the first and last element the view has in the lanes
asked for. Values that a row hoists belong to operands that no store of this program changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llvmlite import ir

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.instructions import emit_instruction
from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, PointwiseProgram, ProgramInput, ProgramOutput
from superkernel.ops.opdef import AttrValue
from superkernel.scheduler.families.matmul_form import view_of
from superkernel.scheduler.families.pointwise import widest_item
from superkernel.scheduler.families.rowspace import slot_program


def preferred_lanes(kb: KernelBuilder, program: PointwiseProgram) -> int:
    """Elements of one full vector of the widest number the program computes with (bool takes no space of its own)."""
    return max(1, kb.cpu.vector_bytes // widest_item(program))


def input_program(kb: KernelBuilder, body: Body, slot: int) -> ProgramEmitter:
    """What yields an anchor input. Raises InternalError where it is absent."""
    program = slot_program(body, slot)
    if program is None:
        raise InternalError("an input is absent", location=str(body.op), found=slot)
    return ProgramEmitter(kb, program)


def input_type(body: Body, slot: int = 0) -> TensorType:
    """The type of an anchor input. Raises InternalError where it is absent."""
    kind = body.anchor_input_types[slot]
    if kind is None:
        raise InternalError("an input is absent", location=str(body.op), found=slot)
    return kind


def load_bias(kb: KernelBuilder, body: Body, channel: Index, lanes: int = 1) -> ir.Value | None:
    """The third slot's values of some channels in compute form, None where there is none."""
    if len(body.anchor_inputs) < 3 or body.anchor_inputs[2] is None:
        return None
    return load_per_column(kb, body, 2, channel, lanes)


def load_per_column(kb: KernelBuilder, body: Body, slot: int, column: Index, lanes: int) -> ir.Value:
    """An input of one dimension from `column` on."""
    view = view_of(body, slot)
    at, dtype = kb.element(view.offset, (column,), view.strides), body.operands[view.operand].type.dtype
    return kb.load(kb.operands[view.operand], at, dtype, lanes, view.strides[0])


class ProgramEmitter:
    """Emits one program into a kernel. `lanes`: the vector width that suits it."""

    def __init__(self, kb: KernelBuilder, program: PointwiseProgram) -> None:
        self.kb, self.program = kb, program
        self.lanes = preferred_lanes(kb, program)

    def row(self, coords: Sequence[Index], axis: int = -1) -> ProgramRow:
        """Fix all coordinates but that of `axis` (its entry in `coords` is ignored)."""
        return ProgramRow(self, coords, axis)

    def eval(
        self,
        coords: Sequence[Index],
        lanes: int,
        results: Sequence[ir.Value] = (),
        axis: int = -1,
        *,
        store: bool = False,
    ) -> list[ir.Value]:
        """The values of the register outputs (target -1), in compute form, for `lanes` positions from `coords` along
        `axis`. `results`: the anchor's results at these positions. Outputs to operands are stored only where `store`
        is set."""
        position: Index = coords[axis] if coords else 0
        return self.row(coords, axis).eval(position, lanes, results, store=store)


class ProgramRow:
    """A program with all coordinates but one fixed."""

    def __init__(self, emitter: ProgramEmitter, coords: Sequence[Index], axis: int) -> None:
        self.emitter, self.kb = emitter, emitter.kb
        program = emitter.program
        rank = len(program.shape)
        if len(coords) != rank:
            raise InternalError("coordinates do not fit the program", expected=f"{rank}", found=f"{len(coords)}")
        self.axis = axis % rank if rank else -1
        self._inputs: list[Index] = []  # bases
        self._hoisted: dict[int, ir.Value] = {}  # inputs that are the same all along the axis, in compute form
        for index, item in enumerate(program.inputs):
            self._inputs.append(0 if item.source < 0 else self._base(item, coords))
            if item.source >= 0 and self._stride(item) == 0:
                base = self._inputs[index]
                self._hoisted[index] = self.kb.load(emitter.kb.operands[item.source], base, item.dtype)
        self._outputs = [self._base(o, coords) if o.target >= 0 else 0 for o in program.outputs]

    def _stride(self, item: ProgramInput | ProgramOutput) -> int:
        return item.strides[self.axis] if self.axis >= 0 else 0

    def _base(self, item: ProgramInput | ProgramOutput, coords: Sequence[Index]) -> Index:
        """Element offset of the row's position 0."""
        others = [(c, s) for d, (c, s) in enumerate(zip(coords, item.strides, strict=True)) if d != self.axis]
        return self.kb.element(item.offset, [c for c, _ in others], [s for _, s in others])

    def eval(
        self,
        position: Index,
        lanes: int,
        results: Sequence[ir.Value] = (),
        overrides: Mapping[int, ir.Value] | None = None,
        *,
        store: bool = True,
    ) -> list[ir.Value]:
        """Evaluate at `lanes` positions from `position`. `overrides`: values (compute form) of inputs that the caller
        loaded itself."""
        program = self.emitter.program
        values: list[Expr] = []
        for index, item in enumerate(program.inputs):
            if overrides is not None and index in overrides:
                value = overrides[index]
            elif item.source < 0:
                value = results[-1 - item.source]
            elif index in self._hoisted:
                value = self.kb.splat(self._hoisted[index], lanes)
            else:
                stride = self._stride(item)
                element = self.kb.add(self._inputs[index], self.kb.mul(position, stride))
                value = self.kb.load(self.kb.operands[item.source], element, item.dtype, lanes, stride)
            values.append(Expr(self.kb, value))
        self._run(values, lanes)
        registers = []
        for out, base in zip(program.outputs, self._outputs, strict=True):
            value = values[out.value].v
            if out.target < 0:
                registers.append(value)
            elif store:
                self._store(out, base, position, value, program.dtype_of(out.value))
        return registers

    def _run(self, values: list[Expr], lanes: int) -> None:
        """Append the instructions' values."""
        program = self.emitter.program
        constants: list[AttrValue] = [None] * len(values)
        for instruction in program.instructions:
            if instruction.op == "constant":
                number = instruction.attr("value")
                if not isinstance(number, (int, float)):
                    raise InternalError("constant without a number", found=number)
                values.append(Expr(self.kb, self.kb.const(number, instruction.dtype, lanes)))
                constants.append(number)
                continue
            operands = [values[a] if a >= 0 else None for a in instruction.args]
            dtypes = [program.dtype_of(a) if a >= 0 else None for a in instruction.args]
            known = [constants[a] if a >= 0 else None for a in instruction.args]
            values.append(emit_instruction(self.kb, instruction, operands, dtypes, known))
            constants.append(None)

    def _store(self, out: ProgramOutput, base: Index, position: Index, value: ir.Value, dtype: DType) -> None:
        stride = self._stride(out)
        element = self.kb.add(base, self.kb.mul(position, stride))
        self.kb.store(value, self.kb.operands[out.target], element, dtype, stride)
