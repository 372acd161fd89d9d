"""host.kv_update: rows position .. position + T of each (batch, head) are the new ones, the others the cache's (see
the family).

The position is clamped to 0 .. Smax - T: no value of it writes out of bounds.
"""

from __future__ import annotations

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.convert import convert
from superkernel.codegen.host.loops import split_index, vector_loop
from superkernel.codegen.host.program import ProgramEmitter, input_program, input_type
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.update import UpdateTiling


def _start(kb: KernelBuilder, body: Body, rows: int, most: int) -> Index:
    """The first row to write."""
    position = input_program(kb, body, 2)
    (value,) = position.eval([0] * len(position.program.shape), 1)
    index = convert(kb, value, position.program.inputs[0].dtype, DType.I64)
    return kb.minimum(kb.maximum(index, 0), most - rows)


def emit(kb: KernelBuilder, body: Body, tiling: UpdateTiling) -> None:
    """Write the kernel."""
    epilogue = ProgramEmitter(kb, body.epilogue)
    rows, (_, _, most, depth) = input_type(body, 1).shape[2], body.anchor_outputs[0].shape

    def copy(source: ProgramEmitter, pair: list[Index], first: Index, last: Index, shift: Index) -> None:
        """Rows [first, last) of `source` to the result, `shift` rows further on."""
        with kb.loop(first, last, name="s") as s:
            read = source.row([*pair, s, 0])
            write = epilogue.row([*pair, kb.add(s, shift), 0])
            vector_loop(kb, depth, source.lanes, lambda p, n: write.eval(p, n, read.eval(p, n)))

    start = _start(kb, body, rows, most)
    with kb.loop(kb.begin, kb.end, name="pair") as unit:
        pair = split_index(kb, unit, (tiling.batch, tiling.heads))
        if not tiling.in_place:
            cache = input_program(kb, body, 0)
            copy(cache, pair, 0, start, 0)
            copy(cache, pair, kb.add(start, rows), most, 0)
        copy(input_program(kb, body, 1), pair, 0, rows, start)
