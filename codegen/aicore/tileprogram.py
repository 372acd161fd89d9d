"""A pointwise program on a tile in UB: loads, vector commands, stores.

    code = lower(program, output_dtypes, row=1, col=2)                     # scheduler/families/aicore/formulas.py
    size = TileSize(64, 128, target.memory.block_bytes)                    # the largest tile
    tile = TileProgram(kb, program, code, size, kb.ring("in"), kb.ring("out"))
    with kb.loop(...) as r, kb.turn(*tile.rings):
        tile.run(at, rows, cols)

`at` is the coordinate of the tile's first element in the program's space, a number per dimension; `rows` and `cols`
may be less than the largest, and computed at run time. Uses: pointwise kernels; what follows an anchor, whose results
are given as `anchors`, tiles in UB; what feeds an anchor, whose value `result` names.

Buffers: inputs lie in the slots of the first ring, outputs in those of the second, what stays for the whole kernel
(`resident` inputs, loaded by `load_resident`) and temporaries lie apart, once. Only V touches temporaries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias, cast

from superkernel.codegen.aicore.commands import Address
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, Part, Ring
from superkernel.codegen.aicore.scalar import Number
from superkernel.core.dtypes import DType
from superkernel.ir.body import PointwiseProgram
from superkernel.scheduler.families.aicore.tilecode import (
    Home,
    Register,
    TileCode,
    TileCommand,
    TileLayout,
    TileLoad,
    TileSize,
    TileStore,
)
from superkernel.target.engines import Local

Shifts: TypeAlias = Mapping[int, Number]
NO_SHIFTS: Shifts = MappingProxyType({})


# Tiles are parts of UB with a pitch: 0 where there is one row.
Placed: TypeAlias = Mapping[tuple[Home, int], Part]
"""Inputs and outputs, by number, that lie in memory of the caller, who loads or stores them."""
NOT_PLACED: Placed = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Pool:
    """Buffers that several programs share, one after the other: a slot's inputs, its outputs, and temporaries."""

    inputs: Buffer | None
    outputs: Buffer | None
    temporaries: Buffer | None


class TileProgram:
    """See the module docstring."""

    def __init__(
        self,
        kb: KernelBuilder,
        program: PointwiseProgram,
        code: TileCode,
        size: TileSize,
        inputs: Ring,
        outputs: Ring,
        *,
        resident: Collection[int] = (),
        anchors: Sequence[Part] = (),
        pool: Pool | None = None,
        placed: Placed = NOT_PLACED,
    ) -> None:
        self.kb, self.program, self.code, self.size = kb, program, code, size
        self._resident = frozenset(resident)
        self._tiles: dict[int, Part] = {}
        self._pool, self._taken = pool, {Home.INPUT: 0, Home.OUTPUT: 0}
        places, temporary_bytes = code.temporaries(size)
        arena = pool.temporaries if pool else None
        if temporary_bytes and not pool:
            arena = kb.fixed(Local.UB, temporary_bytes, "temporaries")
        for number, register in enumerate(code.registers):
            if register.home is Home.ANCHOR:
                self._tiles[number] = anchors[register.number]
            elif (register.home, register.number) in placed:
                self._tiles[number] = placed[register.home, register.number]
            elif register.home is Home.TEMPORARY:
                if number in places:
                    assert arena is not None
                    self._tiles[number] = self._tile(arena.at(places[number]), register)
            else:
                self._tiles[number] = self._tile(self._room(register, inputs, outputs), register)
        self.rings = tuple(
            ring for ring, home in ((inputs, Home.INPUT), (outputs, Home.OUTPUT))
            if any(self._tiles[r].buffer.ring is ring for r in code.of_home(home))
        )  # fmt: skip

    def _tile(self, part: Part, register: Register) -> Part:
        single = register.layout in (TileLayout.ROW, TileLayout.COLUMN, TileLayout.SCALAR)
        return part.rows(0 if single else self.size.pitch(register))

    def _room(self, register: Register, inputs: Ring, outputs: Ring) -> Part:
        nbytes = self.size.nbytes(register)
        if self._pool is not None:
            buffer = self._pool.inputs if register.home is Home.INPUT else self._pool.outputs
            assert buffer is not None
            start = self._taken[register.home]
            self._taken[register.home] += nbytes
            return buffer.at(start)
        if register.home is Home.OUTPUT:
            return self.kb.buffer(outputs, Local.UB, nbytes, f"out{register.number}", top=True).at(0)
        if register.number in self._resident:
            return self.kb.fixed(Local.UB, nbytes, f"stays{register.number}").at(0)
        return self.kb.buffer(inputs, Local.UB, nbytes, f"in{register.number}").at(0)

    def run(
        self, at: Sequence[Number], rows: Number, cols: Number, shifts: Shifts = NO_SHIFTS, stores: Shifts = NO_SHIFTS
    ) -> None:
        """Load, compute and store a tile."""
        self.load(at, rows, cols, shifts)
        self.compute(rows, cols)
        self.store(at, rows, cols, stores)

    def result(self, output: int = 0) -> Part:
        """Where the output that feeds the anchor lies."""
        return self._tiles[dict(self.code.results)[output]]

    # Into UB ----------------------------------------------------------------------------------------------------------

    def load_resident(self, at: Sequence[Number], rows: Number, cols: Number) -> None:
        """Load the inputs that stay."""
        for load in self.code.loads:
            if load.input in self._resident:
                self.load_one(load, at, rows, cols)

    def load(
        self, at: Sequence[Number], rows: Number, cols: Number, shifts: Shifts = NO_SHIFTS, but: Collection[int] = ()
    ) -> None:
        """Load the others, constants first: they do not wait for anyone. `shifts`: elements by which inputs lie
        further on than their walks say; `but`: inputs that the caller loads (`load_one`)."""
        waits, inputs = self.kb.wait_operands, self.program.inputs
        loads = [x for x in self.code.loads if x.input not in self._resident and x.input not in but]
        for load in sorted(loads, key=lambda x: inputs[x.input].source in waits):
            self.load_one(load, at, rows, cols, shifts.get(load.input, 0))

    def load_one(self, load: TileLoad, at: Sequence[Number], rows: Number, cols: Number, shift: Number = 0) -> None:
        """One load, of the tile at `at`."""
        kb, register, tile = self.kb, self.code.registers[load.register], self._tiles[load.register]
        item = register.dtype.itemsize
        source = self._input_address(load, at, item, cols).at(shift * (item * load.scale))
        row, col = load.row_stride * item, abs(load.col_stride) * item
        layout, pitch = register.layout, self.size.pitch(register)
        if layout in (TileLayout.ROW, TileLayout.COLUMN, TileLayout.SCALAR):
            count = {TileLayout.ROW: cols, TileLayout.COLUMN: rows}.get(layout, 1)
            kb.issue("gm_to_ub", dst=tile, src=source, bytes=count * item)
        elif layout is TileLayout.SPREAD:
            with kb.loop(0, rows) as r:
                part = tile.rows(pitch).at(r * (self.size.cols * pitch))
                self._load_rows(part, source.at(r * row).rows(col), register.dtype, cols, 1)
        else:
            dense = layout is TileLayout.MATRIX and isinstance(cols, int) and cols * item == row == pitch
            lines, count, stride = {
                TileLayout.MATRIX: (rows, cols, row),
                TileLayout.TURNED: (cols, rows, col),
                TileLayout.SPREAD_COLUMN: (rows, 1, row),
            }.get(layout, (cols, 1, col))
            self._load_rows(tile.rows(pitch), source.rows(stride), register.dtype, lines, count, dense)

    def load_row(self, number: int, row: Number, at: Sequence[Number], cols: Number, shift: Number) -> None:
        """One row of an input whose columns lie side by side, to row `row` of its tile."""
        load = next(x for x in self.code.loads if x.input == number)
        tile, item = self._tiles[load.register], self.code.registers[load.register].dtype.itemsize
        source = self._input_address(load, at, item, cols).at(shift * item)
        self.kb.issue("gm_to_ub", dst=tile.at(row * cast("int", tile.pitch)), src=source, bytes=cols * item)

    def _load_rows(
        self, part: Part, source: Address, dtype: DType, rows: Number, cols: Number, dense: bool = False
    ) -> None:
        wide = dtype.itemsize == 8
        self.kb.load_rows(part, source, DType.U32 if wide else dtype, rows, cols * 2 if wide else cols, dense)

    def _input_address(self, load: TileLoad, at: Sequence[Number], item: int, cols: Number) -> Address:
        """The lowest byte read."""
        walk = self.program.inputs[load.input]
        start = place(walk.offset, walk.strides, at) * (item * load.scale) + load.shift * item
        if load.col_stride < 0:
            start = start - (cols - 1) * (-load.col_stride * item)
        return self.kb.operand(walk.source, start)

    # In UB ------------------------------------------------------------------------------------------------------------

    def compute(self, rows: Number, cols: Number) -> None:
        """The vector commands."""
        for step in self.code.steps:
            if step.dst not in self._tiles:
                continue
            if step.command == "v_transpose":
                self._transpose(step, rows, cols)
            else:
                self._vector(step, rows, cols)

    def _vector(self, step: TileCommand, rows: Number, cols: Number) -> None:
        kb, layout = self.kb, self.code.registers[step.dst].layout
        shape = {TileLayout.MATRIX: (rows, cols), TileLayout.ROW: (1, cols), TileLayout.COLUMN: (1, rows)}
        height, width = shape.get(layout, (1, 1))
        if cols == self.size.cols and self.is_packed(step):
            height, width = 1, rows * self.size.cols
        values: dict[str, object] = {"cols": width}
        flat = step.command in ("v_iota", "v_gather")
        if not flat:
            values.update(rows=height)
        for name, value in step.params:
            values[name] = (cols - 1) * int(value[4:]) if name == "start" and isinstance(value, str) else value
        column = dict(step.params).get("b_form") == "column"
        for name, register in step.operands:
            values[name] = self._tiles[register]
            if flat or step.command == "v_broadcast":
                continue
            repeats_element = column and name == "b"
            values[f"{name}_stride"] = self._stride(register, layout, repeats_element)
        if step.command == "v_gather":
            values["table_bytes"] = cols * step.types[0].itemsize
        kb.issue(step.command, *step.types, dst=self._tiles[step.dst], **values)  # type: ignore[arg-type]

    def is_packed(self, step: TileCommand) -> bool:
        """Whether a step on whole rows may take them as one: nothing lies between the rows of any operand."""
        return self.code.is_packed(step, self.size) and all(
            self._tiles[r].pitch == self.size.pitch(self.code.registers[r])
            for r in (step.dst, *(r for _, r in step.operands))
        )

    def _stride(self, register: int, layout: TileLayout, element: bool) -> Number | None:
        """From row to row of an operand of a command with that layout."""
        own = self.code.registers[register]
        if element:
            return own.dtype.itemsize if own.layout is TileLayout.COLUMN and layout is TileLayout.MATRIX else 0
        return self._tiles[register].pitch if own.layout is TileLayout.MATRIX else 0

    def _transpose(self, step: TileCommand, rows: Number, cols: Number) -> None:
        source = step.operands[0][1]
        count, lines, width = self.code.transposition(step, rows, cols)
        # Rows of an anchor may lie further apart than ours.
        origin, target = (
            tile if tile.pitch else tile.rows(self.size.pitch(self.code.registers[r]))
            for tile, r in ((self._tiles[source], source), (self._tiles[step.dst], step.dst))
        )
        from_pitch, to_pitch = cast("int", origin.pitch), cast("int", target.pitch)
        spread = self.code.registers[source].layout is TileLayout.SPREAD
        block = self.size.cols * (from_pitch if spread else to_pitch)

        def issue(src: Part, dst: Part) -> None:
            self.kb.issue("v_transpose", *step.types, dst=dst, src=src, rows=lines, cols=width)

        if isinstance(count, int) and count == 1:
            issue(origin, target)
            return
        with self.kb.loop(0, count) as r:
            if spread:
                issue(origin.at(r * block), target.at(r * to_pitch))
            else:
                issue(origin.at(r * from_pitch), target.at(r * block))

    # Out of UB --------------------------------------------------------------------------------------------------------

    def store(
        self, at: Sequence[Number], rows: Number, cols: Number, shifts: Shifts = NO_SHIFTS, but: Collection[int] = ()
    ) -> None:
        """Store the outputs. `shifts`: elements by which outputs lie further on than their walks say; `but`: outputs
        that the caller stores."""
        for store in self.code.stores:
            if store.output in but:
                continue
            self._store_one(store, at, rows, cols, shifts.get(store.output, 0))

    def _store_one(self, store: TileStore, at: Sequence[Number], rows: Number, cols: Number, shift: Number) -> None:
        kb, register, tile = self.kb, self.code.registers[store.register], self._tiles[store.register]
        item, walk = register.dtype.itemsize, self.program.outputs[store.output]
        target = kb.operand(walk.target, (place(walk.offset, walk.strides, at) + shift) * item)
        row, col, pitch = store.row_stride * item, store.col_stride * item, cast("int", tile.pitch)
        if store.layout in (TileLayout.ROW, TileLayout.COLUMN):
            count = cols if store.layout is TileLayout.ROW else rows
            kb.issue("ub_to_gm", dst=target, src=tile, bytes=count * item)
        elif store.layout is TileLayout.SPREAD:
            with kb.loop(0, rows) as r:
                part = tile.at(r * (self.size.cols * pitch))
                kb.store_rows(target.at(r * row).rows(col), part, cols, item)
        elif store.layout is TileLayout.MATRIX and isinstance(cols, int) and cols * item == row == pitch:
            kb.store_rows(target, tile, rows, pitch, dense=True)
        else:
            shape = {TileLayout.MATRIX: (rows, cols * item, row), TileLayout.TURNED: (cols, rows * item, col)}
            lines, nbytes, stride = shape.get(store.layout, (cols, item, col))
            kb.store_rows(target.rows(stride), tile, lines, nbytes)


def place(offset: int, strides: Sequence[int], at: Sequence[Number]) -> Number:
    """Element number of a coordinate."""
    total: Number = offset
    for stride, coordinate in zip(strides, at, strict=True):
        total = coordinate * stride + total
    return total
