"""Square tiles turned in registers: programs whose inputs lie side by side along another dimension than the last.

Model: for a tile of `side` x `side` positions of (plane dimension, last dimension), such an input is loaded as `side`
vectors along the plane dimension; a butterfly of log2(side) shuffle stages makes them vectors along the last
dimension. A program without instructions stores them at once; others find them in a small buffer on the stack and run
in a loop over the tile's rows, which keeps the code short. Edges narrower than a tile are evaluated lane by lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from superkernel.body import ProgramInput
from superkernel.codegen.host.builder import I32, Index, KernelBuilder
from superkernel.codegen.host.loops import split_index, vector_loop
from superkernel.codegen.host.program import ProgramEmitter, Row
from superkernel.scheduler.families.pointwise import PointwiseTiling

MAX_SIDE = 16


def transpose_square(kb: KernelBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The columns of n vectors of n lanes, n a power of two."""
    side = len(rows)
    current = list(rows)
    step = 1
    while step < side:
        kind = ir.VectorType(I32, side)
        low = ir.Constant(kind, [j if not j & step else side + j - step for j in range(side)])
        high = ir.Constant(kind, [j + step if not j & step else side + j for j in range(side)])
        following = list(current)
        for i in range(side):
            if not i & step:
                a, b = current[i], current[i + step]
                following[i] = kb.b.shuffle_vector(a, b, low)
                following[i + step] = kb.b.shuffle_vector(a, b, high)
        current, step = following, 2 * step
    return current


class _Plane:
    """One program with its plane: emits tiles and edges for fixed other coordinates."""

    def __init__(self, kb: KernelBuilder, emitter: ProgramEmitter, tiling: PointwiseTiling) -> None:
        self.kb, self.emitter, self.tiling = kb, emitter, tiling
        self.side = min(MAX_SIDE, emitter.lanes)
        program = emitter.program
        self.turned = [
            k
            for k, item in enumerate(program.inputs)
            if item.source >= 0 and item.strides[tiling.plane] == 1 and abs(item.strides[-1]) > 1
        ]
        self.buffers: dict[int, ir.Value] = {}
        if program.instructions:
            for k in self.turned:
                self.buffers[k] = kb.stack(self.side * self.side * program.inputs[k].dtype.itemsize)

    def coords(self, outer: Sequence[Index], p: Index) -> list[Index]:
        at = self.tiling.plane
        return [*outer[:at], p, *outer[at:], 0]

    def tile(self, outer: Sequence[Index], p: Index, j: Index) -> None:
        """side x side positions from (p, j)."""
        kb, side, inputs = self.kb, self.side, self.emitter.program.inputs
        turned = {k: self._turn(inputs[k], outer, p, j) for k in self.turned}
        if not self.buffers:
            for i in range(side):
                row = self.emitter.row(self.coords(outer, kb.add(p, i)))
                row.eval(j, side, overrides={k: kb.widen(c[i], inputs[k].dtype) for k, c in turned.items()})
            return
        for k, columns in turned.items():
            for i, column in enumerate(columns):
                kb.b.store(column, kb.at(self.buffers[k], i * side, inputs[k].dtype), align=inputs[k].dtype.itemsize)
        with kb.loop(0, side, name="turned") as i:
            row = self.emitter.row(self.coords(outer, kb.add(p, i)))
            at = kb.mul(i, side)
            row.eval(j, side, overrides={k: kb.load(self.buffers[k], at, inputs[k].dtype, side) for k in turned})

    def _turn(self, item: ProgramInput, outer: Sequence[Index], p: Index, j: Index) -> list[ir.Value]:
        """The input's values of a tile in storage form, by row of the tile."""
        kb = self.kb
        coords = self.coords(outer, p)
        coords[-1] = j
        base: Index = item.offset
        for coordinate, stride in zip(coords, item.strides, strict=True):
            base = kb.add(base, kb.mul(coordinate, stride))
        pointer = self.emitter.operands[item.source]
        vectors = [
            kb.load_raw(pointer, kb.add(base, i * item.strides[-1]), item.dtype, self.side) for i in range(self.side)
        ]
        return transpose_square(kb, vectors)

    def row(self, outer: Sequence[Index], p: Index, start: int) -> None:
        """Positions [start, inner) of one row, lane by lane where strided."""
        row = self.emitter.row(self.coords(outer, p))
        vector_loop(self.kb, self.tiling.inner - start, self.side, lambda v, n: _evaluate(self.kb, row, v, start, n))


def _evaluate(kb: KernelBuilder, row: Row, position: Index, start: int, lanes: int) -> None:
    row.eval(kb.add(position, start), lanes)


def emit_plane(kb: KernelBuilder, emitter: ProgramEmitter, tiling: PointwiseTiling, begin: Index, end: Index) -> None:
    """Units of `tiling.block` rows of the plane dimension."""
    plane = _Plane(kb, emitter, tiling)
    shape, side = emitter.program.shape, plane.side
    others = shape[: tiling.plane] + shape[tiling.plane + 1 : -1]
    whole_rows, whole_columns = tiling.plane_extent // side * side, tiling.inner // side * side
    with kb.loop(begin, end, name="unit") as unit:
        outer = split_index(kb, kb.div(unit, tiling.blocks), others)
        first = kb.mul(kb.rem(unit, tiling.blocks), tiling.block)
        last = kb.minimum(kb.add(first, tiling.block), tiling.plane_extent)
        if whole_rows:
            with kb.loop(first, kb.minimum(last, whole_rows), side, name="p") as p:
                with kb.loop(0, whole_columns, side, name="j") as j:
                    plane.tile(outer, p, j)
                if whole_columns < tiling.inner:
                    with kb.loop(0, side, name="edge") as i:
                        plane.row(outer, kb.add(p, i), whole_columns)
        if whole_rows < tiling.plane_extent:
            with kb.loop(kb.maximum(first, whole_rows), last, name="rest") as p:
                plane.row(outer, p, 0)
