"""Square tiles turned in registers: programs whose inputs lie side by side along another dimension than the last.

Model: for a tile of `side` x `side` positions of (plane dimension, last dimension), such an input is loaded as `side`
vectors along the plane dimension; a butterfly of log2(side) shuffle stages makes them vectors along the last
dimension. A program without instructions stores them at once; others find them in a small buffer on the stack and run
in a loop over the tile's rows, which keeps the code short. Edges narrower than a tile are evaluated lane by lane.

A last dimension that is shorter than a tile's side (channels that are shuffled, or turned to the end) is interleaved
instead where the program only copies: full vectors along the plane dimension, one per position of the last one, become
as many vectors of neighbouring stores. The last tile of a block begins early enough to be full, and writes what the one
before it wrote once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.loops import split_index, vector_loop
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.codegen.host.shuffle import permute, transpose
from superkernel.ir.body import ProgramInput
from superkernel.scheduler.families.pointwise import SIDE_MAX, PointwiseTiling


class _Plane:
    """One program with its plane: emits tiles and edges for fixed other coordinates."""

    def __init__(self, kb: KernelBuilder, emitter: ProgramEmitter, tiling: PointwiseTiling) -> None:
        self.kb, self.emitter, self.tiling = kb, emitter, tiling
        self.side = min(SIDE_MAX, emitter.lanes)
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
        base = kb.element(item.offset, coords, item.strides)
        pointer = self.kb.operands[item.source]
        vectors = [
            kb.load_raw(pointer, kb.add(base, i * item.strides[-1]), item.dtype, self.side) for i in range(self.side)
        ]
        return transpose(kb, vectors)

    def narrow_tile(self, outer: Sequence[Index], p: Index, lanes: int) -> None:
        """`lanes` positions of the plane dimension from p, all of the last one: copied."""
        kb, item, out = self.kb, self.emitter.program.inputs[0], self.emitter.program.outputs[0]
        coords = self.coords(outer, p)
        source, target = (kb.element(x.offset, coords, x.strides) for x in (item, out))
        rows = [
            kb.load_raw(self.kb.operands[item.source], kb.add(source, i * item.strides[-1]), item.dtype, lanes)
            for i in range(self.tiling.inner)
        ]
        for i, value in enumerate(interleave(kb, rows)):
            place = kb.at(self.kb.operands[out.target], kb.add(target, i * lanes), item.dtype)
            kb.b.store(value, place, align=item.dtype.itemsize)

    def row(self, outer: Sequence[Index], p: Index, start: int) -> None:
        """Positions [start, inner) of one row, lane by lane where strided."""
        row = self.emitter.row(self.coords(outer, p))
        vector_loop(self.kb, self.tiling.inner - start, self.side, lambda v, n: row.eval(self.kb.add(v, start), n))


def interleave(kb: KernelBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """n vectors that hold the first elements of all n rows one after the other, then the second ones, and so on."""
    count, lanes = len(rows), rows[0].type.count
    if count == 1:
        return list(rows)
    if count % 2 == 0:
        numbers = range(lanes)
        halves = numbers[: lanes // 2], numbers[lanes // 2 :]
        low, high = ([lane for i in half for lane in (i, lanes + i)] for half in halves)
        pairs = zip(interleave(kb, rows[::2]), interleave(kb, rows[1::2]), strict=True)
        return [permute(kb, a, b, half) for a, b in pairs for half in (low, high)]
    found = []
    for start in range(0, count * lanes, lanes):
        places = [divmod(at, count) for at in range(start, start + lanes)]  # (element, row)
        value = permute(kb, rows[0], rows[1], [element + lanes * (row == 1) for element, row in places])
        for number in range(2, count):
            mask = [lanes + element if row == number else at for at, (element, row) in enumerate(places)]
            value = permute(kb, value, rows[number], mask)
        found.append(value)
    return found


def emit_plane(kb: KernelBuilder, emitter: ProgramEmitter, tiling: PointwiseTiling, begin: Index, end: Index) -> None:
    """Units of `tiling.block` rows of the plane dimension."""
    plane = _Plane(kb, emitter, tiling)
    shape = emitter.program.shape
    others = shape[: tiling.plane] + shape[tiling.plane + 1 : -1]
    with kb.loop(begin, end, name="unit") as unit:
        outer = split_index(kb, kb.div(unit, tiling.blocks), others)
        first = kb.mul(kb.rem(unit, tiling.blocks), tiling.block)
        last = kb.minimum(kb.add(first, tiling.block), tiling.plane_extent)
        if tiling.narrow:
            _emit_narrow(kb, plane, outer, (first, last))
        else:
            _emit_squares(kb, plane, outer, (first, last))


def _emit_narrow(kb: KernelBuilder, plane: _Plane, outer: Sequence[Index], rows: tuple[Index, Index]) -> None:
    """Rows of the plane dimension by vectors along it, the last of which overlap; fewer than a vector lane by lane."""
    (first, last), lanes = rows, plane.tiling.narrow
    with kb.loop(first, kb.sub(last, lanes - 1), lanes, name="p") as p:
        plane.narrow_tile(outer, p, lanes)
    if plane.tiling.plane_extent % lanes == 0:
        return
    count = kb.sub(last, first)
    ragged = kb.compare("!=", kb.rem(count, lanes), 0)
    with kb.when(kb.b.and_(ragged, kb.compare(">=", count, lanes))):
        plane.narrow_tile(outer, kb.sub(last, lanes), lanes)
    with kb.when(kb.compare("<", count, lanes)), kb.loop(first, last, name="rest") as p:
        plane.row(outer, p, 0)


def _emit_squares(kb: KernelBuilder, plane: _Plane, outer: Sequence[Index], rows: tuple[Index, Index]) -> None:
    """Rows of the plane dimension by square tiles, edges lane by lane."""
    (first, last), tiling, side = rows, plane.tiling, plane.side
    whole_rows, whole_columns = tiling.plane_extent // side * side, tiling.inner // side * side
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
