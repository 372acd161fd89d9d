"""The arithmetic of number formats: how the words of rows and weights are loaded, multiplied, added and stored.

Model: a vector of weights holds one word per lane, a word of a row is the same in all lanes; an *operand* is what one
of them is in registers. Elements are their own words. With the CPU's own instructions (AVX-512 BF16 and VNNI, AArch64's
dot products) a pair of bf16 or four bytes are one operand; without, a pair of bf16 is two vectors of f32 (bf16 is the
upper half of an f32), and bytes are widened to 16 bits. MVE multiplies vectors by scalars: each byte of a row is one,
and those of weights are widened to 32 bits, once for all rows of a tile.

AArch64 multiplies signed bytes by signed ones: of rows, which are unsigned in memory, `SIGN` is taken off in registers
(`shift`), and of what their zero point is for their products as well (`met`).

`multiply` is the register tile of everything but matrix products, whose rows are whole words.

The CPU's bf16 instructions take denormal numbers as zeros; the other way keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from llvmlite import ir

from superkernel.codegen.host.builder import I8, I16, I32, I64, Index, KernelBuilder, vector_type
from superkernel.codegen.host.gemm_core import Tile, Values, fold, load_again, multiply_add, vectors_kept, zero
from superkernel.codegen.host.tiles import flushed
from superkernel.core.dtypes import DType
from superkernel.core.formats import NumberFormat

SIGN = 128
"""What signed bytes are stored larger by."""

_LINE_BYTES = 64
_BYTES = (0, 8, 16, 24)  # of a word, in bits
_UNROLLED_WORDS = 4  # of a run, whose steps are written out

Operand = list[ir.Value]
"""A word of a row, or a vector of words of weights: one value, or one per number of the word."""


class BFloat(ir.types._BaseFloatType):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite lacks."""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"

    def format_constant(self, val: Any) -> str:
        """Always NotImplementedError: a decimal text could not say every bit."""
        raise NotImplementedError("bfloat constants are written as bits")


BFloat._create_instance()


class Arithmetic:
    """Of elements as they are, and what other formats change of it."""

    reads_behind = False
    """Whether the last word of a row may take in items behind it, times weights of 0."""
    signed = False
    """Whether rows of bytes come in signed."""
    word: DType | None = None
    """What a word of weights is loaded as; None: as its number."""

    def __init__(self, kb: KernelBuilder, number: NumberFormat) -> None:
        self.kb, self.format, self.item = kb, number, number.item

    @property
    def shift(self) -> int:
        """What rows are multiplied smaller by than they are stored."""
        return 0

    @property
    def takes_memory(self) -> bool:
        """Whether weights may be memory operands of a multiply-add."""
        return True

    def weights(self, base: ir.Value, word: Index, lanes: int, again: bool = False) -> Operand:
        """A vector of words; `again`: read where it is used, whoever read it before."""
        kind = self.word or self.format.weights
        raw = load_again(self.kb, base, word, kind, lanes) if again else self.kb.load(base, word, kind, lanes)
        return self._unpacked(raw)

    def row(self, base: ir.Value, at: Index, whole: bool = True) -> Operand:
        """The word of a row that starts at item `at`; with not `whole` its first number and a 0, which is not read."""
        return [self.kb.load(base, at, self.item)]

    def spread(self, word: Operand, lanes: int) -> Operand:
        """A word of a row in all lanes."""
        return [self.kb.splat(number, lanes) for number in word]

    def multiply_add(self, total: ir.Value, row: Operand, weights: Operand) -> ir.Value:
        """total + the products of the words' numbers, per lane."""
        return multiply_add(self.kb, row[0], weights[0], total, self.format.sums)

    @property
    def zero_is_nothing(self) -> bool:
        """Whether a 0 of rows adds nothing to the sums of what is multiplied."""
        return SIGN * self.signed == self.shift

    def met(self, zero_point: ir.Value) -> ir.Value:
        """What weights are multiplied by for a row's number that is stored as `zero_point` (i32, or a vector)."""
        if not self.shift:
            return zero_point
        return self.kb.b.sub(zero_point, self.kb.splat(ir.Constant(I32, self.shift), _lanes(zero_point)))

    def less_shift(self, word: ir.Value) -> ir.Value:
        """Four stored bytes, or vectors of fours, as they are multiplied."""
        if not self.shift:
            return word
        return self.kb.b.xor(word, self.kb.splat(ir.Constant(I32, SIGN * 0x01010101), _lanes(word)))

    def rounded(self, value: ir.Value) -> ir.Value:
        """Values as copies of rows hold them."""
        return value

    def bits(self, value: ir.Value) -> ir.Value:
        """Values as words hold them."""
        return self.kb.narrow(value, self.format.rows)

    def put(self, rounded: ir.Value, base: ir.Value, at: Index) -> None:
        """Stores such values from item `at` of a copy on."""
        self.kb.store(rounded, base, at, self.item)

    def store(self, value: ir.Value, base: ir.Value, at: Index) -> ir.Value:
        """Stores values rounded; returns what they are now."""
        self.put(value, base, at)
        return value

    def _unpacked(self, raw: ir.Value) -> Operand:
        return [raw]


class Bf16Arithmetic(Arithmetic):
    """Of pairs of bf16, summed in f32."""

    word = DType.I32

    @property
    def takes_memory(self) -> bool:
        return self.format.native  # a pair of f32 is no memory operand

    def row(self, base: ir.Value, at: Index, whole: bool = True) -> Operand:
        """At any address."""
        kb = self.kb
        if self.format.native:
            word = kb.b.load(kb.at(base, at, DType.BF16), typ=I32 if whole else I16, align=2)
            return [word if whole else kb.b.zext(word, I32)]
        second = kb.load(base, kb.add(at, 1), DType.F32) if whole else kb.const(0.0, DType.F32)
        return [kb.load(base, at, DType.F32), second]

    def spread(self, word: Operand, lanes: int) -> Operand:
        found = super().spread(word, lanes)
        return [self._pairs(found[0])] if self.format.native else found

    def multiply_add(self, total: ir.Value, row: Operand, weights: Operand) -> ir.Value:
        kb, kind = self.kb, total.type
        if not self.format.native:
            return kb.fma(row[0], weights[0], kb.fma(row[1], weights[1], total))
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * kind.count}"
        return kb.b.call(kb.intrinsic(name, kind, [kind, row[0].type, weights[0].type]), [total, row[0], weights[0]])

    def rounded(self, value: ir.Value) -> ir.Value:
        """The bits of bf16, or f32 that are bf16 in value."""
        if not self.format.native:
            return self.kb.widen(self.kb.narrow(value, DType.BF16), DType.BF16)
        if not self.kb.cpu.has("avx512bf16"):  # tiles are emulated: what that instruction would do
            return self.kb.narrow(flushed(self.kb, value), DType.BF16)
        lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
        return self.kb.b.bitcast(self.kb.b.fptrunc(value, vector_type(BFloat(), lanes)), vector_type(I16, lanes))

    def bits(self, value: ir.Value) -> ir.Value:
        return self.rounded(value) if self.format.native else super().bits(value)

    def put(self, rounded: ir.Value, base: ir.Value, at: Index) -> None:
        self.kb.b.store(rounded, self.kb.at(base, at, self.item), align=self.item.itemsize)

    def store(self, value: ir.Value, base: ir.Value, at: Index) -> ir.Value:
        rounded = self.rounded(value)
        self.put(rounded, base, at)
        return self.kb.widen(rounded, DType.BF16) if self.format.native else rounded

    def _unpacked(self, raw: ir.Value) -> Operand:
        """Low halves are the earlier depth."""
        b, lanes = self.kb.b, raw.type.count
        if self.format.native:
            return [self._pairs(raw)]
        floats = ir.VectorType(ir.FloatType(), lanes)
        early = b.shl(raw, self.kb.const(16, DType.I32, lanes))
        late = b.and_(raw, self.kb.const(-65536, DType.I32, lanes))
        return [b.bitcast(early, floats), b.bitcast(late, floats)]

    def _pairs(self, words: ir.Value) -> ir.Value:
        return self.kb.b.bitcast(words, ir.VectorType(BFloat(), 2 * words.type.count))


class ByteArithmetic(Arithmetic):
    """Of fours of unsigned bytes by signed ones, exactly, in i32. What stores rows of f32 values is `quantise`; signed
    rows (`signed`) are stored as unsigned ones, `SIGN` larger."""

    reads_behind = True
    word = DType.I32

    @property
    def shift(self) -> int:
        return SIGN if self.format.native and self.format.feature == "dotprod" else 0

    @property
    def takes_memory(self) -> bool:
        return not self.by_scalars  # bytes are picked apart

    @property
    def by_scalars(self) -> bool:
        """Whether each byte of a row is multiplied in a scalar register: words are four operands then."""
        return self.format.native and self.format.feature == "mve"

    def row(self, base: ir.Value, at: Index, whole: bool = True) -> Operand:
        return [self.less_shift(self.kb.b.load(self.kb.at(base, at, self.item), typ=I32, align=1))]

    def spread(self, word: Operand, lanes: int) -> Operand:
        if not self.by_scalars:
            return super().spread(word, lanes)
        b, low = self.kb.b, ir.Constant(I32, 255)
        return [self.kb.splat(b.and_(b.lshr(word[0], ir.Constant(I32, bits)), low), lanes) for bits in _BYTES]

    def _unpacked(self, raw: ir.Value) -> Operand:
        if not self.by_scalars:
            return [raw]
        b, kb, lanes = self.kb.b, self.kb, _lanes(raw)
        above = (b.shl(raw, kb.splat(ir.Constant(I32, 24 - bits), lanes)) for bits in _BYTES)
        return [b.ashr(one, kb.splat(ir.Constant(I32, 24), lanes)) for one in above]

    def rounded(self, value: ir.Value) -> ir.Value:
        if not self.signed:
            return value
        return self.kb.b.xor(value, self.kb.splat(ir.Constant(I8, SIGN), _lanes(value)))

    def store(self, value: ir.Value, base: ir.Value, at: Index) -> ir.Value:
        return super().store(self.rounded(value), base, at)

    def multiply_add(self, total: ir.Value, row: Operand, weights: Operand) -> ir.Value:
        kb, b, kind = self.kb, self.kb.b, total.type
        if self.by_scalars:
            for one, weight in zip(row, weights, strict=True):
                total = b.add(total, b.mul(one, weight))
            return total
        if self.format.native:
            octets = ir.VectorType(I8, 4 * kind.count)
            name = f"llvm.x86.avx512.vpdpbusd.{32 * kind.count}"
            if self.shift:
                name = f"llvm.aarch64.neon.sdot.v{kind.count}i32.v{4 * kind.count}i8"
            function = kb.intrinsic(name, kind, [kind, octets, octets])
            return b.call(function, [total, b.bitcast(row[0], octets), b.bitcast(weights[0], octets)])
        halves = ir.VectorType(I16, 2 * kind.count)
        eight = ir.Constant(halves, 8)
        l16, r16 = b.bitcast(row[0], halves), b.bitcast(weights[0], halves)
        even = _madd(kb, b.and_(l16, ir.Constant(halves, 255)), b.ashr(b.shl(r16, eight), eight), kind)
        odd = _madd(kb, b.lshr(l16, eight), b.ashr(r16, eight), kind)
        return b.add(total, b.add(even, odd))


class ByteWeightArithmetic(Arithmetic):
    """Of f32 rows by signed bytes, which are widened in registers."""

    def _unpacked(self, raw: ir.Value) -> Operand:
        b, lanes = self.kb.b, raw.type.count
        return [b.sitofp(b.sext(raw, ir.VectorType(I32, lanes)), ir.VectorType(ir.FloatType(), lanes))]


_ARITHMETIC: dict[tuple[DType, DType], type[Arithmetic]] = {
    (DType.BF16, DType.BF16): Bf16Arithmetic,
    (DType.U8, DType.I8): ByteArithmetic,
    (DType.F32, DType.I8): ByteWeightArithmetic,
}


def arithmetic_of(kb: KernelBuilder, number: NumberFormat) -> Arithmetic:
    """What a format's words are multiplied by in one kernel."""
    made = _ARITHMETIC[number.rows, number.weights] if number.is_reduced else Arithmetic
    return made(kb, number)


def stored_zero_point(kb: KernelBuilder, zero_point: ir.Value | None, dtype: DType) -> ir.Value:
    """What stands for 0 in stored rows of bytes, in i32. `zero_point`: in the rows' own type, None: 0."""
    if zero_point is None:
        return ir.Constant(I32, 0 if dtype is DType.U8 else SIGN)
    if dtype is DType.U8:
        return kb.b.zext(zero_point, I32)
    return kb.b.add(kb.b.sext(zero_point, I32), ir.Constant(I32, SIGN))


@dataclass(frozen=True, slots=True)
class Ahead:
    """Memory that a depth loop fetches into the second-level cache as it walks its weights: from `base` on, one byte
    for every `parts` of them (a power of two)."""

    base: ir.Value
    parts: int

    def fetch(self, kb: KernelBuilder, first: ir.Value, here: ir.Value, step: int) -> None:
        """What belongs to a step of so many bytes at `here`, of weights that begin at `first`."""
        walked = kb.b.sub(kb.b.ptrtoint(here, I64), kb.b.ptrtoint(first, I64))
        at = kb.offset(self.base, kb.b.lshr(walked, kb.i64(self.parts.bit_length() - 1)))
        for line in range(0, -(-step // self.parts), _LINE_BYTES):
            kb.prefetch(kb.b.gep(at, [kb.i64(line)], source_etype=I8), locality=2)


Nest = Sequence[tuple[Index, int]]
"""Loops from outside in: extent, known when compiling but for the first, distance between the inputs of two turns."""


def multiply(
    arithmetic: Arithmetic,
    tile: Tile,
    nest: Nest,
    run: tuple[int, int],
    position: int,
    source: ir.Value,
    weights: ir.Value,
    panel: int,
    begin: Sequence[ir.Value] = (),
    start: Values | None = None,
    ahead: Ahead | None = None,
) -> list[Values]:
    """Results[position][vector]: sums over a nest of loops of runs of items of `source` (how many, how far apart) times
    words of weights, `panel` of them a step, on top of `begin` (per vector) or of `start` (per position and vector).
    The inputs of positions are `position` items apart; steps of weights follow one another. `ahead`: what is fetched
    meanwhile."""
    a, kb, number = arithmetic, arithmetic.kb, arithmetic.format
    extent, distance = run
    words, widths = number.words(extent), tile.widths
    kept = vectors_kept(tile, kb.cpu) if a.takes_memory else tile.vectors

    def step(x: ir.Value, w: ir.Value, values: Values, whole: bool) -> Values:
        if ahead is not None:
            ahead.fetch(kb, weights, w, 4 * panel)
        near = [a.weights(w, v * tile.lanes, widths[v]) for v in range(kept)]
        found = list(values)
        for r in range(tile.rows):
            word = a.row(x, r * position, whole)
            rows = {lanes: a.spread(word, lanes) for lanes in dict.fromkeys(widths)}
            far = (a.weights(w, v * tile.lanes, widths[v], again=True) for v in range(kept, tile.vectors))
            for v, vector in enumerate(chain(near, far)):
                i = r * tile.vectors + v
                found[i] = a.multiply_add(found[i], rows[widths[v]], vector)
        return found

    def one_run(x: ir.Value, w: ir.Value, values: Values) -> Values:
        def turn(k: Index, state: Values) -> Values:
            at = kb.at(x, kb.mul(k, number.step * distance), a.item)
            return step(at, kb.at(w, kb.mul(k, panel), DType.I32), state, True)

        full = words if a.reads_behind else extent // number.step
        if full <= _UNROLLED_WORDS:
            for k in range(full):
                values = turn(k, values)
        else:
            values = fold(kb, 0, full, 1, values, turn)
        if words > full:
            at = kb.at(x, full * number.step * distance, a.item)
            values = step(at, kb.at(w, full * panel, DType.I32), values, False)
        return values

    def level(depth: int, x: ir.Value, w: ir.Value, values: Values) -> Values:
        if depth == len(nest):
            return one_run(x, w, values)
        turns, apart = nest[depth]
        steps = panel * words
        for inner, _ in nest[depth + 1 :]:
            steps *= inner
        return fold(
            kb, 0, turns, 1, values,
            lambda i, state: level(
                depth + 1, kb.at(x, kb.mul(i, apart), a.item), kb.at(w, kb.mul(i, steps), DType.I32), state
            ),
        )  # fmt: skip

    first = list(begin) or [zero(number.sums, lanes) for lanes in widths]
    flat = level(0, source, weights, first * tile.rows if start is None else start)
    return tile.rows_of(flat)


def _lanes(value: ir.Value) -> int:
    return value.type.count if isinstance(value.type, ir.VectorType) else 1


_MADD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}


def _madd(kb: KernelBuilder, a: ir.Value, c: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Products of 16-bit integers, added in pairs to 32 bits."""
    if "x86" in kb.cpu.triple:
        return kb.b.call(kb.intrinsic(_MADD[kind.count], kind, [a.type, a.type]), [a, c])
    b, sixteen = kb.b, kb.const(16, DType.I32, kind.count)
    wide = [b.bitcast(v, vector_type(I32, kind.count)) for v in (a, c)]
    low = [b.ashr(b.shl(v, sixteen), sixteen) for v in wide]
    high = [b.ashr(v, sixteen) for v in wide]
    return b.add(b.mul(low[0], low[1]), b.mul(high[0], high[1]))
