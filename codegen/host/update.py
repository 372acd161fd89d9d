"""host.kv_update: rows position .. position + T of each (batch, head) are the new ones, the others the cache's (see
the family).

The position is clamped to 0 .. Smax - T: no value of it writes out of bounds.
"""

from __future__ import annotations

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.loops import split_index, vector_loop
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.rowspace import slot_program
from superkernel.scheduler.families.update import UpdateTiling
from superkernel.scheduler.tiling import Tiling


class _Update:
    """Copies of rows from a slot to the result."""

    def __init__(self, kb: KernelBuilder, body: Body) -> None:
        self.kb = kb
        self.epilogue = ProgramEmitter(kb, body.epilogue)
        self.depth = body.anchor_outputs[0].shape[3]
        self.body = body

    def source(self, slot: int) -> ProgramEmitter:
        program = slot_program(self.body, slot)
        if program is None:
            raise InternalError("an input is absent", location="kv_update", found=slot)
        return ProgramEmitter(self.kb, program)

    def start(self, rows: int, most: int) -> Index:
        """The first row to write."""
        position = self.source(2)
        (value,) = position.eval([0] * len(position.program.shape), 1)
        index = convert(self.kb, value, position.program.inputs[0].dtype, DType.I64)
        return self.kb.minimum(self.kb.maximum(index, 0), most - rows)

    def copy(self, source: ProgramEmitter, pair: list[Index], first: Index, last: Index, shift: Index) -> None:
        """Rows [first, last) of `source` to the result, `shift` rows further on."""
        kb = self.kb
        with kb.loop(first, last, name="s") as s:
            read = source.row([*pair, s, 0])
            write = self.epilogue.row([*pair, kb.add(s, shift), 0])
            lanes = source.lanes

            def visit(position: Index, width: int) -> None:
                write.eval(position, width, read.eval(position, width))

            vector_loop(kb, self.depth, lanes, visit)


def emit(kb: KernelBuilder, body: Body, tiling: Tiling) -> None:
    """Write the kernel."""
    new = body.anchor_input_types[1]
    if not isinstance(tiling, UpdateTiling) or new is None:
        raise InternalError("not an update", location=str(body.op), found=type(tiling).__name__)
    if tiling.units == 0:
        return
    update = _Update(kb, body)
    rows, most = new.shape[2], body.anchor_outputs[0].shape[2]
    start = update.start(rows, most)
    with kb.loop(kb.begin, kb.end, name="pair") as unit:
        pair = split_index(kb, unit, (tiling.batch, tiling.heads))
        if not tiling.in_place:
            cache = update.source(0)
            update.copy(cache, pair, 0, start, 0)
            update.copy(cache, pair, kb.add(start, rows), most, 0)
        update.copy(update.source(1), pair, 0, rows, start)
