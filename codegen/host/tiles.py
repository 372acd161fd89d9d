"""Matrix units: AMX's tile registers, and what stands in for them where the CPU has none.

Model: eight registers hold a matrix each, of up to 16 rows of 64 bytes. A kernel configures them once, saying what
shape each has, works in them, and releases them before it returns: whoever runs next on the core has none of that state
to save. A product adds to a tile of 32-bit sums that of a tile of rows and one of words of weights (16 columns of words
per row of the tile):

- bf16: per pair of numbers, the even and the odd ones along the depth are summed apart by multiply-adds, from 0 on,
  then with one another, then with what the tile of sums holds. Denormal numbers are taken and left as zeros, before
  rounding and behind it.
- bytes: unsigned by signed, exactly, modulo 2^32.

*Emulated* tiles are the same by ordinary vectors: 8 KB of the kernel's stack are the registers, every operation is a
loop over rows. (Source of all this: Intel's manual of instructions, volume 2, LDTILECFG to TILEZERO.) Not the same are
the bits of a NaN, the rows that a tile of rows has beyond its own (zeros there too, but nobody sees them), and what
LDTILECFG refuses.

Invariant: as many rows of as many bytes are read and written as the configuration says, `stride` bytes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from superkernel.codegen.host.builder import I8, I32, VOID, Index, KernelBuilder, vector_type
from superkernel.codegen.host.gemm_core import Values, fold, zero
from superkernel.core.dtypes import DType
from superkernel.core.formats import TILE_BYTES, TILE_ROWS, NumberFormat

TILE_REGISTERS = 8


class TileShape(NamedTuple):
    """Of a tile: rows, and the bytes of each."""

    rows: int
    row_bytes: int = TILE_BYTES


_LANES = TILE_BYTES // 4
_PALETTE = 1
_ROW_BYTES_AT, _ROWS_AT = 16, 48  # in the 64 bytes of a configuration: u16 and u8 per tile
_SMALLEST = 2.0**-126  # normal number of f32
_SCALE = 2.0**64


Step = Callable[[Values, ir.Value, ir.Value], Values]


class Tiles:
    """The CPU's own. `shapes`: of each register."""

    def __init__(self, kb: KernelBuilder, shapes: Sequence[TileShape]) -> None:
        assert len(shapes) <= TILE_REGISTERS
        assert all(1 <= s.rows <= TILE_ROWS and 4 <= s.row_bytes <= TILE_BYTES and not s.row_bytes % 4 for s in shapes)
        self.kb, self.shapes = kb, list(shapes)

    def configure(self) -> None:
        """Tiles are there from here on; all hold zeros."""
        self._call("ldtilecfg", [self.kb.opaque(self.kb.table("tiles", configuration(self.shapes), DType.U8))])

    def release(self) -> None:
        """They are there no longer."""
        self._call("tilerelease", [])

    def clear(self, tile: int) -> None:
        """Zeros in all of a tile."""
        self._call("tilezero", [_register(tile)])

    def load(self, tile: int, base: ir.Value, stride: int, passing: bool = False) -> None:
        """The rows of a tile from memory. `passing`: what is read so need not stay in the first-level cache."""
        name = "tileloaddt164" if passing else "tileloadd64"
        self._call(name, [_register(tile), base, self.kb.i64(stride)])

    def store(self, tile: int, base: ir.Value, stride: int) -> None:
        """Inverse of `load`."""
        self._call("tilestored64", [_register(tile), base, self.kb.i64(stride)])

    def multiply_add(self, number: NumberFormat, sums: int, rows: int, weights: int) -> None:
        """sums += rows * weights, in the numbers of a format; of matching shapes."""
        self._require(sums, rows, weights)
        name = "tdpbf16ps" if number.rows is DType.BF16 else "tdpbusd"
        self._call(name, [_register(tile) for tile in (sums, rows, weights)])

    def _require(self, sums: int, rows: int, weights: int) -> None:
        """What the instruction refuses (#UD)."""
        c, a, b = (self.shapes[tile] for tile in (sums, rows, weights))
        assert (c.rows, c.row_bytes, a.row_bytes) == (a.rows, b.row_bytes, 4 * b.rows), (c, a, b)

    def _call(self, name: str, args: Sequence[ir.Value]) -> None:
        function = self.kb.intrinsic(f"llvm.x86.{name}", VOID, [arg.type for arg in args])
        self.kb.b.call(function, list(args))


class EmulatedTiles(Tiles):
    """The same by vectors, on any CPU with FMA."""

    def __init__(self, kb: KernelBuilder, shapes: Sequence[TileShape]) -> None:
        super().__init__(kb, shapes)
        self.file = kb.stack(TILE_REGISTERS * TILE_ROWS * TILE_BYTES)

    def configure(self) -> None:
        for tile in range(len(self.shapes)):
            self.clear(tile)

    def release(self) -> None:
        pass

    def clear(self, tile: int) -> None:
        with self.kb.loop(0, TILE_ROWS, name="tile.row") as row:
            self._set(tile, row, zero(DType.I32, _LANES))

    def load(self, tile: int, base: ir.Value, stride: int, passing: bool = False) -> None:
        kb, (rows, row_bytes) = self.kb, self.shapes[tile]
        with kb.loop(0, rows, name="tile.row") as row:
            source = kb.offset(base, kb.mul(row, stride))
            if row_bytes < TILE_BYTES:
                self._set(tile, row, zero(DType.I32, _LANES))
            self._set(tile, row, kb.b.load(source, typ=vector_type(I32, row_bytes // 4), align=1))

    def store(self, tile: int, base: ir.Value, stride: int) -> None:
        kb, (rows, row_bytes) = self.kb, self.shapes[tile]
        assert row_bytes == TILE_BYTES, "no kernel stores others"
        with kb.loop(0, rows, name="tile.row") as row:
            kb.b.store(self._row(tile, row), kb.offset(base, kb.mul(row, stride)), align=1)

    def multiply_add(self, number: NumberFormat, sums: int, rows: int, weights: int) -> None:
        self._require(sums, rows, weights)
        kb, floats = self.kb, number.rows is DType.BF16
        with kb.loop(0, self.shapes[sums].rows, name="tile.row") as row:
            before = self._row(sums, row)
            if floats:
                even, odd = self._walk([zero(DType.F32, _LANES)] * 2, rows, weights, row, self._pairs)
                added = flushed(kb, kb.b.fadd(even, odd))
                before = flushed(kb, kb.b.bitcast(before, added.type))
                after = kb.b.bitcast(flushed(kb, kb.b.fadd(before, added)), ir.VectorType(I32, _LANES))
            else:
                (after,) = self._walk([before], rows, weights, row, self._bytes)
            self._set(sums, row, after)

    def _walk(self, state: Values, rows: int, weights: int, row: Index, step: Step) -> Values:
        """The words of a row times the rows of the weights, one after the other."""
        kb = self.kb

        def turn(k: Index, values: Values) -> Values:
            word = kb.b.load(kb.offset(self._at(rows, row), kb.mul(k, 4)), typ=I32, align=4)
            return step(values, kb.splat(word, _LANES), self._row(weights, k))

        return fold(kb, 0, self.shapes[weights].rows, 1, state, turn)

    def _pairs(self, sums: Values, row: ir.Value, weights: ir.Value) -> Values:
        return [
            _multiply_add(self.kb, a, w, total)
            for a, w, total in zip(_halves(self.kb, row), _halves(self.kb, weights), sums, strict=True)
        ]

    def _bytes(self, sums: Values, row: ir.Value, weights: ir.Value) -> Values:
        b, (total,) = self.kb.b, sums
        for shift in range(0, 32, 8):
            of_row = b.and_(b.lshr(row, self._int(shift)), self._int(255))
            of_weights = b.ashr(b.shl(weights, self._int(24 - shift)), self._int(24))
            total = b.add(total, b.mul(of_row, of_weights))
        return [total]

    def _int(self, value: int) -> ir.Value:
        return self.kb.const(value, DType.I32, _LANES)

    def _at(self, tile: int, row: Index) -> ir.Value:
        return self.kb.offset(self.file, self.kb.add(self.kb.mul(row, TILE_BYTES), tile * TILE_ROWS * TILE_BYTES))

    def _row(self, tile: int, row: Index) -> ir.Value:
        return self.kb.b.load(self._at(tile, row), typ=ir.VectorType(I32, _LANES), align=TILE_BYTES)

    def _set(self, tile: int, row: Index, value: ir.Value) -> None:
        self.kb.b.store(value, self._at(tile, row), align=TILE_BYTES)


def tiles_of(kb: KernelBuilder, shapes: Sequence[TileShape]) -> Tiles:
    """Tiles of some shapes, as the CPU has them."""
    return (EmulatedTiles if kb.cpu.emulates_tiles else Tiles)(kb, shapes)


def configuration(shapes: Sequence[TileShape]) -> NDArray[np.uint8]:
    """The 64 bytes that LDTILECFG takes."""
    made = np.zeros(64, np.uint8)
    made[0] = _PALETTE
    made[_ROW_BYTES_AT : _ROW_BYTES_AT + 2 * len(shapes)].view(np.uint16)[:] = [s.row_bytes for s in shapes]
    made[_ROWS_AT : _ROWS_AT + len(shapes)] = [s.rows for s in shapes]
    return made


def flushed(kb: KernelBuilder, value: ir.Value) -> ir.Value:
    """f32 values, zeros of their sign where they are denormal."""
    lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
    small = kb.b.fcmp_ordered("<", kb.call_float("llvm.fabs", value), kb.const(_SMALLEST, DType.F32, lanes))
    return kb.b.select(small, kb.call_float("llvm.copysign", kb.const(0.0, DType.F32, lanes), value), value)


def _multiply_add(kb: KernelBuilder, a: ir.Value, w: ir.Value, total: ir.Value) -> ir.Value:
    """a * w + total of values that are not denormal, rounded once, a zero where the result, rounded to all of its 24
    bits, is below the normal numbers. That is not the same as a result that is denormal: one just below the smallest
    normal number is rounded to it by a unit that keeps denormal numbers. So it is seen on larger numbers of the same
    bits."""
    found, scale = kb.fma(a, w, total), kb.const(_SCALE, DType.F32, _LANES)
    large = kb.call_float("llvm.fabs", kb.fma(kb.b.fmul(a, scale), w, kb.b.fmul(total, scale)))
    small = kb.b.fcmp_ordered("<", large, kb.const(_SMALLEST * _SCALE, DType.F32, _LANES))
    return kb.b.select(small, kb.call_float("llvm.copysign", kb.const(0.0, DType.F32, _LANES), found), found)


def _halves(kb: KernelBuilder, words: ir.Value) -> Values:
    """The two bf16 of words as f32, denormal ones as zeros."""
    b, floats = kb.b, ir.VectorType(ir.FloatType(), _LANES)
    early = b.shl(words, kb.const(16, DType.I32, _LANES))
    late = b.and_(words, kb.const(-65536, DType.I32, _LANES))
    return [flushed(kb, b.bitcast(value, floats)) for value in (early, late)]


def _register(tile: int) -> ir.Constant:
    return ir.Constant(I8, tile)
