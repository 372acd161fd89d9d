"""Code for matrix products in narrow formats: how rows are copied, and the step of the depth loop of each format.

Model: the loops, panels and epilogues are those of `matmul`; a row of the left factor is copied as words of 32 bits
(two bf16, or four bytes), a step of the depth loop multiplies one word per row by a vector of words.

- bf16: the CPU's own instruction adds both products of a pair to an f32 sum. Without it the pair is taken apart into
  two f32 values by shifts, and the row's copy holds rounded f32 values: the same numbers, multiplied one by one.
- two bf16 parts: three such products, the smallest first; low times low is below what is left out anyway.
- bytes: rows are unsigned, 0 of a row is its zero point. The sum of products is exact in 32 bits; what the zero point
  adds is known from the sum of the weights, and taken off before the two scales are put on.
- 16 bits in two bytes: two such sums, of high and of low bytes.
- bytes as weights only: widened to f32 in registers, the column's scale put on the finished sum.

Invariant: as of all tiles, the operations behind a result depend on the depth and the tile's shape only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llvmlite import ir

from superkernel.codegen.host import streaming
from superkernel.codegen.host.builder import I32, Index, KernelBuilder
from superkernel.codegen.host.gemm_core import Values, accumulate, fold, join_phases, strips, zero
from superkernel.codegen.host.matmul import MatmulEmitter
from superkernel.codegen.host.narrow import Bf16, dot_bf16, dot_bytes
from superkernel.codegen.host.quantise import codes_of, put_codes
from superkernel.codegen.host.streaming import Panel
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.matmul_reduced import BF16X3, WEIGHTS8, NarrowTiling
from superkernel.scheduler.tiling import Tiling

LeftWord = Callable[[int, Index], list[ir.Value]]
RightWords = Callable[[Index, int], list[ir.Value]]


class NarrowEmitter(MatmulEmitter):
    """Writes the kernel of one body and tiling in a narrow format. Its arithmetic is so quick that prefetches of the
    next panel would only take the place of loads."""

    t: NarrowTiling
    fetches_next = False

    def __init__(self, kb: KernelBuilder, body: Body, tiling: NarrowTiling) -> None:
        super().__init__(kb, body, tiling)
        self.row = kb.offset(kb.scratch, tiling.scratch_bytes - 4 * tiling.row_words)
        self.bf16 = Bf16(kb, tiling.native)

    # Depth loop -------------------------------------------------------------------------------------------------------

    def _results(
        self, origin: ir.Value, line: int, depth: int, source: Panel, zeros: list[ir.Value] | None
    ) -> list[Values]:
        if self.t.format == WEIGHTS8:
            return self._weights8(origin, line, depth, source)
        if self.t.is_bytes:
            return self._int8(origin, line, source)
        return self._bf16(origin, line, source)

    def _steps(self, acc: DType, source: Panel, step: Callable[[Values, Index], Values]) -> list[Values]:
        """The depth loop over words: `step(sums, word)` with the sums of one phase."""
        kb, t = self.kb, self.t
        rows = t.tile_rows * (t.parts if t.is_bytes else 1)
        size = rows * t.vectors
        word = t.panel * 4 * (2 if t.format == BF16X3 else 1)
        prefetch = streaming.prefetch(kb, t, source, word)

        def steps(k: Index, values: Values, count: int) -> Values:
            if prefetch is not None:
                prefetch(k)
            for phase in range(count):
                part = slice(phase * size, (phase + 1) * size)
                values[part] = step(values[part], kb.add(k, phase))
            return values

        state = [zero(acc, t.lanes)] * (size * t.phases)
        kb.forget_vectors()
        whole = t.words - t.words % t.phases
        state = fold(kb, 0, whole, t.phases, state, lambda k, s: steps(k, s, t.phases))
        if t.words > whole:
            state = steps(whole, state, t.words - whole)
        return join_phases(kb, replace(self.tile, acc=acc, rows=rows), state)

    def _word(self, base: ir.Value, at: Index, lanes: int = 1) -> ir.Value:
        return self.kb.load(base, at, DType.I32, lanes)

    def _bf16(self, origin: ir.Value, line: int, source: Panel) -> list[Values]:
        kb, t = self.kb, self.t
        parts = 2 if t.format == BF16X3 else 1

        def step(sums: Values, k: Index) -> Values:
            vectors = [
                [
                    self.bf16.right(
                        self._word(source.base, kb.add(kb.mul(k, parts * t.panel), p * t.panel + v), t.lanes)
                    )
                    for p in range(parts)
                ]
                for v in range(0, t.panel, t.lanes)
            ]
            for row in range(t.tile_rows):
                left = [self.bf16.left(origin, row * line + p * t.plane, k, t.lanes) for p in range(parts)]
                for v, right in enumerate(vectors):
                    i = row * t.vectors + v
                    for a, b in [(1, 0), (0, 1), (0, 0)] if parts == 2 else [(0, 0)]:
                        sums[i] = dot_bf16(kb, sums[i], left[a], right[b])
            return sums

        return self._steps(DType.F32, source, step)

    def _int8(self, origin: ir.Value, line: int, source: Panel) -> list[Values]:
        kb, t = self.kb, self.t

        parts = [(row, part) for row in range(t.tile_rows) for part in range(t.parts)]

        def step(sums: Values, k: Index) -> Values:
            vectors = [
                self._word(source.base, kb.add(kb.mul(k, t.panel), v), t.lanes) for v in range(0, t.panel, t.lanes)
            ]
            for i, (row, part) in enumerate(parts):
                left = kb.splat(self._word(origin, kb.add(k, row * line + part * t.plane)), t.lanes)
                for v, right in enumerate(vectors):
                    at = i * t.vectors + v
                    sums[at] = dot_bytes(kb, sums[at], left, right, t.native)
            return sums

        results = self._steps(DType.I32, source, step)
        behind = kb.offset(source.base, t.words * t.panel * 4)
        rows: list[Values] = []
        for row in range(t.tile_rows):
            at = row * line + t.plane * t.parts
            row_scale = kb.splat(kb.load(origin, at, DType.F32), t.lanes)
            row_zero = kb.splat(self._word(origin, at + 1), t.lanes)
            sums = results[row * t.parts : (row + 1) * t.parts]
            rows.append([self._scaled([s[v] for s in sums], behind, v, row_scale, row_zero) for v in range(t.vectors)])
        return rows

    def _scaled(self, sums: Values, behind: ir.Value, v: int, row_scale: ir.Value, row_zero: ir.Value) -> ir.Value:
        """Exact sums of one vector of columns (of high and of low bytes) as f32: zero point off, scales on."""
        kb, t = self.kb, self.t
        scale = kb.load(behind, v * t.lanes, DType.F32, t.lanes)
        total = self._word(behind, t.panel + v * t.lanes, t.lanes)
        zeros = [row_zero]
        if t.parts == 2:
            zeros = [
                kb.b.lshr(row_zero, kb.const(8, DType.I32, t.lanes)),
                kb.b.and_(row_zero, kb.const(255, DType.I32, t.lanes)),
            ]
        parts = [kb.b.sitofp(kb.b.sub(s, kb.b.mul(z, total)), scale.type) for s, z in zip(sums, zeros, strict=True)]
        value = parts[0] if t.parts == 1 else kb.fma(parts[0], kb.const(256.0, DType.F32, t.lanes), parts[1])
        return kb.b.fmul(value, kb.b.fmul(scale, row_scale))

    def _weights8(self, origin: ir.Value, line: int, depth: int, source: Panel) -> list[Values]:
        kb, t = self.kb, self.t

        def left(row: int, k: Index) -> ir.Value:
            return kb.load(origin, kb.add(kb.mul(k, depth), row * line), DType.F32)

        def right(k: Index, v: int) -> ir.Value:
            raw = kb.load(source.base, kb.add(kb.mul(k, t.panel), v * t.lanes), DType.I8, t.lanes)
            return kb.b.sitofp(kb.b.sext(raw, ir.VectorType(I32, t.lanes)), ir.VectorType(ir.FloatType(), t.lanes))

        ahead = streaming.prefetch(kb, t, source, t.panel)
        results = accumulate(kb, self.tile, t.depth, left, right, ahead)
        behind = kb.offset(source.base, t.depth * t.panel)
        for sums in results:
            for v in range(t.vectors):
                sums[v] = kb.b.fmul(sums[v], kb.load(behind, v * t.lanes, DType.F32, t.lanes))
        return results

    # Rows -------------------------------------------------------------------------------------------------------------

    def _keep(self, value: ir.Value, row: Index, k: Index) -> None:
        kb, t = self.kb, self.t
        if t.format == WEIGHTS8:
            super()._keep(value, row, k)
        elif t.is_bytes:
            kb.store(value, self.row, k, DType.F32)
        else:
            self._keep_bf16(value, kb.at(self.left_copy, row, DType.F32), k)

    def _keep_bf16(self, value: ir.Value, row: ir.Value, k: Index) -> None:
        """As bf16, or as two parts; the low part of an infinity or NaN is 0, the high part says it all."""
        kb, t = self.kb, self.t
        rounded = self.bf16.store(value, row, k)
        if t.format == BF16X3:
            rest = kb.b.fsub(value, rounded)
            rest = kb.b.select(kb.b.fcmp_ordered("ord", rest, rest), rest, ir.Constant(rest.type, None))
            self.bf16.store(rest, kb.at(row, t.plane, DType.F32), k)

    def _finish_row(self, row: Index) -> None:
        t = self.t
        if t.is_bytes:
            self._quantise_row(self.kb.at(self.left_copy, row, DType.F32))
        elif t.format != WEIGHTS8 and t.depth % 2:
            self._keep(ir.Constant(ir.FloatType(), 0.0), row, t.depth)

    def _quantise_row(self, row: ir.Value) -> None:
        """The row in `self.row` as unsigned bytes: 0 is always one of the numbers, so that padding adds nothing."""
        kb, t = self.kb, self.t
        strips(kb, t.row_words - t.depth, t.lanes, lambda at, n: self._clear(kb.add(at, t.depth), n))
        codes = codes_of(kb, self.row, t.row_words, t.lanes, 256**t.parts - 1)
        planes = [kb.offset(row, part * t.plane * 4) for part in range(t.parts)]
        put_codes(kb, self.row, -(-t.words * 4 // t.lanes) * t.lanes, t.lanes, codes, planes)
        kb.store(codes.scale, row, t.plane * t.parts, DType.F32)
        kb.store(codes.zero_point, row, t.plane * t.parts + 1, DType.I32)

    def _clear(self, at: Index, lanes: int) -> None:
        self.kb.store(zero(DType.F32, lanes), self.row, at, DType.F32)


def emit_narrow(kb: KernelBuilder, body: Body, tiling: Tiling) -> None:
    """Emit the kernel of a matrix product in a narrow format."""
    if not isinstance(tiling, NarrowTiling):
        raise InternalError("wrong tiling for a narrow matrix product", found=type(tiling).__name__)
    NarrowEmitter(kb, body, tiling).emit()


emit = emit_narrow
