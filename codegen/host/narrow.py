"""Products of narrow numbers in words of 32 bits: pairs of bf16, fours of bytes.

Model: a right vector holds one word per lane, a left word is the same in all lanes. With the CPU's own instructions
(AVX-512 BF16 and VNNI) a word is one operand; without, a pair of bf16 is a list of two f32 vectors (bf16 is the upper
half of an f32), and bytes are widened to 16 bits.

`multiply_runs` is the register tile of everything but matrix products, whose rows are whole words.

The CPU's bf16 instructions take denormal numbers as zeros; the other way keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from llvmlite import ir

from superkernel.codegen.host.builder import I8, I16, I32, Index, KernelBuilder, vector_type
from superkernel.codegen.host.gemm_core import Tile, Values, fold, load_again, vectors_kept, zero
from superkernel.core.dtypes import DType

_UNROLLED_WORDS = 4  # of a run, whose steps are written out

Pair = list[ir.Value]
"""A pair of bf16 as operands of `dot_bf16`: one vector of words, or two vectors of f32."""


class BFloat(ir.types._BaseFloatType):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite lacks."""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"

    def format_constant(self, val: Any) -> str:
        raise NotImplementedError("bfloat constants are written as bits")


BFloat._create_instance()


class Bf16:
    """Loads and stores of bf16 for one kernel; `native`: words stay words."""

    def __init__(self, kb: KernelBuilder, native: bool) -> None:
        self.kb, self.native = kb, native

    def right(self, words: ir.Value) -> Pair:
        """A vector of words, low halves the earlier depth."""
        b, lanes = self.kb.b, words.type.count
        if self.native:
            return [b.bitcast(words, ir.VectorType(BFloat(), 2 * lanes))]
        floats = ir.VectorType(ir.FloatType(), lanes)
        early = b.shl(words, self.kb.const(16, DType.I32, lanes))
        late = b.and_(words, self.kb.const(-65536, DType.I32, lanes))
        return [b.bitcast(early, floats), b.bitcast(late, floats)]

    def left(self, base: ir.Value, row: int, k: Index, lanes: int) -> Pair:
        """Word `k` of a row whose copy begins `row` words from `base`, in all lanes."""
        kb = self.kb
        if self.native:
            word = kb.splat(kb.load(base, kb.add(k, row), DType.I32), lanes)
            return [kb.b.bitcast(word, ir.VectorType(BFloat(), 2 * lanes))]
        at = kb.add(kb.mul(k, 2), row)
        return [kb.splat(kb.load(base, kb.add(at, i), DType.F32), lanes) for i in range(2)]

    @property
    def item(self) -> DType:
        """As what copies of rows are stored."""
        return DType.BF16 if self.native else DType.F32

    def pair(self, base: ir.Value, at: Index, lanes: int, whole: bool) -> Pair:
        """Elements `at` and `at` + 1 of copies, in all lanes, at any address; with not `whole` 0 in place of the
        second, which is not read."""
        kb = self.kb
        if self.native:
            here = kb.at(base, at, DType.BF16)
            word = kb.b.load(here, typ=I32 if whole else I16, align=2)
            word = kb.splat(word if whole else kb.b.zext(word, I32), lanes)
            return [kb.b.bitcast(word, ir.VectorType(BFloat(), 2 * lanes))]
        second = kb.load(base, kb.add(at, 1), DType.F32) if whole else kb.const(0.0, DType.F32)
        return [kb.splat(kb.load(base, at, DType.F32), lanes), kb.splat(second, lanes)]

    def rounded(self, value: ir.Value) -> ir.Value:
        """Values as copies hold them: the bits of bf16, or without `native` f32 that are bf16 in value."""
        if not self.native:
            return self.kb.widen(self.kb.narrow(value, DType.BF16), DType.BF16)
        lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
        return self.kb.b.bitcast(self.kb.b.fptrunc(value, vector_type(BFloat(), lanes)), vector_type(I16, lanes))

    def bits(self, value: ir.Value) -> ir.Value:
        """Values as 16 bits each."""
        return self.rounded(value) if self.native else self.kb.narrow(value, DType.BF16)

    def put(self, raw: ir.Value, base: ir.Value, at: Index) -> None:
        """Stores such values."""
        self.kb.b.store(raw, self.kb.at(base, at, self.item), align=self.item.itemsize)

    def store(self, value: ir.Value, row: ir.Value, k: Index) -> ir.Value:
        """Depths from `k` on of a row's copy: bf16, or without `native` f32 that are bf16 in value. Returns the
        rounded f32."""
        raw = self.rounded(value)
        self.put(raw, row, k)
        return self.kb.widen(raw, DType.BF16) if self.native else raw


def dot_bf16(kb: KernelBuilder, total: ir.Value, left: Pair, right: Pair) -> ir.Value:
    """total + the products of both halves, per lane."""
    if len(left) == 2:
        return kb.fma(left[0], right[0], kb.fma(left[1], right[1], total))
    bits = 32 * total.type.count
    kind = total.type
    function = kb.intrinsic(f"llvm.x86.avx512bf16.dpbf16ps.{bits}", kind, [kind, left[0].type, right[0].type])
    return kb.b.call(function, [total, left[0], right[0]])


def multiply_runs(
    bf16: Bf16,
    tile: Tile,
    nest: Sequence[tuple[int, int]],
    run: int,
    position: int,
    source: ir.Value,
    weights: ir.Value,
    panel: int,
) -> list[Values]:
    """Results[position][vector]: sums over a nest of loops (extent, distance between the inputs of two turns) of runs
    of `run` neighbours of `source` times words of weights, `panel` of them a step. The inputs of positions are
    `position` apart; steps of weights follow one another."""
    kb = bf16.kb
    words = -(-run // 2)
    kept = vectors_kept(tile, kb.cpu) if bf16.native else tile.vectors  # a pair of f32 is no memory operand

    def step(x: ir.Value, w: ir.Value, values: Values, whole: bool) -> Values:
        near = [bf16.right(kb.load(w, v * tile.lanes, DType.I32, tile.lanes)) for v in range(kept)]
        found = list(values)
        for r in range(tile.rows):
            left = bf16.pair(x, r * position, tile.lanes, whole)
            again = (load_again(kb, w, v * tile.lanes, DType.I32, tile.lanes) for v in range(kept, tile.vectors))
            for v, right in enumerate(chain(near, map(bf16.right, again))):
                i = r * tile.vectors + v
                found[i] = dot_bf16(kb, found[i], left, right)
        return found

    def one_run(x: ir.Value, w: ir.Value, values: Values) -> Values:
        def turn(k: Index, state: Values) -> Values:
            at = kb.at(x, kb.mul(k, 2), bf16.item)
            return step(at, kb.at(w, kb.mul(k, panel), DType.I32), state, True)

        full = run // 2
        if full <= _UNROLLED_WORDS:
            for k in range(full):
                values = turn(k, values)
        else:
            values = fold(kb, 0, full, 1, values, turn)
        if run % 2:
            values = step(kb.at(x, run - 1, bf16.item), kb.at(w, full * panel, DType.I32), values, False)
        return values

    def level(depth: int, x: ir.Value, w: ir.Value, values: Values) -> Values:
        if depth == len(nest):
            return one_run(x, w, values)
        extent, distance = nest[depth]
        steps = panel * words
        for inner, _ in nest[depth + 1 :]:
            steps *= inner
        return fold(
            kb, 0, extent, 1, values,
            lambda i, state: level(
                depth + 1, kb.at(x, kb.mul(i, distance), bf16.item), kb.at(w, kb.mul(i, steps), DType.I32), state
            ),
        )  # fmt: skip

    flat = level(0, source, weights, [zero(DType.F32, tile.lanes)] * (tile.rows * tile.vectors))
    return [flat[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]


def dot_bytes(kb: KernelBuilder, total: ir.Value, left: ir.Value, right: ir.Value, native: bool) -> ir.Value:
    """total + the products of four unsigned by four signed bytes, per lane of words, exactly."""
    b, kind = kb.b, total.type
    if native:
        octets = ir.VectorType(I8, 4 * kind.count)
        function = kb.intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * kind.count}", kind, [kind, octets, octets])
        return b.call(function, [total, b.bitcast(left, octets), b.bitcast(right, octets)])
    halves = ir.VectorType(I16, 2 * kind.count)
    eight = ir.Constant(halves, [8] * halves.count)
    l16, r16 = b.bitcast(left, halves), b.bitcast(right, halves)
    even = _madd(kb, b.and_(l16, ir.Constant(halves, [255] * halves.count)), b.ashr(b.shl(r16, eight), eight), kind)
    odd = _madd(kb, b.lshr(l16, eight), b.ashr(r16, eight), kind)
    return b.add(total, b.add(even, odd))


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
