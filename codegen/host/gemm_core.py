"""The register-tile core of all multiply-accumulate kernels (matmul, convolution, attention).

Model: a *tile* of `rows` x `vectors * lanes` results lives in registers while the depth loop runs. Each depth step
loads `vectors` vectors of the right operand and one scalar per row of the left one (folded into the multiply-add as a
broadcast where the CPU can). With few rows the depth is divided among `phases` independent sets of accumulators, so
that the latency of the multiply-add is hidden; they are added up in a fixed order at the end. Vectors of the right
operand that find no register beside the accumulators are read again for every row (`vectors_kept`, `load_again`).

Invariant: the sequence of operations behind a result depends on the depth and the tile shape only, never on where the
tile lies or on which core computes it; so any split of the work over cores gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from superkernel.codegen.host.builder import (
    I64,
    Index,
    KernelBuilder,
    LoadAgain,
    register_type,
    storage_type,
    vector_type,
)
from superkernel.codegen.host.convert import convert
from superkernel.core.dtypes import DType
from superkernel.target.cpu import CpuTarget

SCALARS = 2  # registers for broadcasts of the left operand: a row's, and the next row's, which LLVM loads ahead

LoadScalar = Callable[[int, Index], Any]
LoadVector = Callable[[Index, int], Any]
Dot = Callable[[ir.Value, Any, Any], ir.Value]
Values = list[ir.Value]


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of a register tile: `rows` x (`vectors` of `lanes`), accumulated in `acc` (f32, f64 or an integer of 32 or
    64 bits). The last vector may have fewer lanes, `last`, where its emitter can do that (0: as many as all)."""

    rows: int
    vectors: int
    lanes: int
    acc: DType
    phases: int = 1
    last: int = 0

    @property
    def widths(self) -> list[int]:
        """Lanes of each vector."""
        return [self.lanes] * (self.vectors - 1) + [self.last or self.lanes]

    @property
    def columns(self) -> int:
        """Columns of a full tile."""
        return self.vectors * self.lanes

    def rows_of(self, flat: Values) -> list[Values]:
        """Values that stand one row after the other, by row and vector."""
        return [flat[r * self.vectors : (r + 1) * self.vectors] for r in range(self.rows)]

    @property
    def nbytes(self) -> int:
        """Bytes of its accumulators, all lanes full."""
        return self.rows * self.columns * self.acc.itemsize


def fold(
    kb: KernelBuilder,
    start: Index,
    stop: Index,
    step: int,
    state: Sequence[ir.Value],
    body: Callable[[Index, Values], Values],
) -> Values:
    """`for i in range(start, stop, step): state = body(i, state)` with the state in registers; returns the last state.
    A range known to be empty or of one trip emits no loop."""
    if isinstance(start, int) and isinstance(stop, int):
        if stop <= start:
            return list(state)
        if stop - start <= step:
            return body(start, list(state))
    b = kb.b
    head = kb.function.append_basic_block("fold.head")
    inside = kb.function.append_basic_block("fold.body")
    after = kb.function.append_basic_block("fold.after")
    first, last, before = kb.i64(start), kb.i64(stop), b.block
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(first, before)
    phis = []
    for value in state:
        phi = b.phi(value.type)
        phi.add_incoming(value, before)
        phis.append(phi)
    b.cbranch(b.icmp_signed("<", index, last), inside, after)
    b.position_at_end(inside)
    result = body(index, list(phis))
    index.add_incoming(b.add(index, ir.Constant(I64, step), flags=("nsw",)), b.block)
    for phi, value in zip(phis, result, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(after)
    return list(phis)


def zero(acc: DType, lanes: int) -> ir.Value:
    """The neutral accumulator."""
    return ir.Constant(register_type(acc, lanes), None)


def scalars_kept(cpu: CpuTarget) -> int:
    """Vector registers for broadcasts of the left operand; MVE multiplies by a general one."""
    return 0 if cpu.has("mve") else SCALARS


def vectors_kept(tile: Tile, cpu: CpuTarget) -> int:
    """Vectors of a step that stay in registers beside all accumulators. The others are memory operands of every row's
    multiply-add: a load each, where LLVM would spill accumulators, and move all the others round, in every step."""
    return max(0, min(tile.vectors, cpu.vector_registers - scalars_kept(cpu) - tile.rows * tile.vectors * tile.phases))


def load_again(kb: KernelBuilder, base: ir.Value, element: Index, dtype: DType, lanes: int) -> ir.Value:
    """As `kb.load` of a dtype that is computed as itself, but read where it is used, whoever read it before."""
    kind = vector_type(storage_type(dtype), lanes)
    load = LoadAgain(kb.b.block, kb.at(base, element, dtype), typ=kind)
    load.align = dtype.itemsize
    kb.b._insert(load)
    return load


def multiply_add(kb: KernelBuilder, a: ir.Value, b: ir.Value, c: ir.Value, acc: DType) -> ir.Value:
    """a*b + c in the accumulator's type (integers wrap)."""
    return kb.fma(a, b, c) if acc.is_float else kb.b.add(kb.b.mul(a, b), c)


def accumulate(
    kb: KernelBuilder,
    tile: Tile,
    depth: Index,
    left: LoadScalar,
    right: LoadVector,
    before_step: Callable[[Index], None] | None = None,
    dot: Dot | None = None,
    alone: bool = True,
    start: list[Values] | None = None,
) -> list[Values]:
    """Results[row][vector] = sum over k < depth of left(row, k) * right(k, vector). `before_step` may emit prefetches
    for the depth index it gets. With several phases the depth must be known at compile time, and the phases are added
    pairwise. `dot`: adds the product of what left and right give, where that is no scalar and no vector. `alone`: the
    loop may fill all registers. `start`: sums to go on from, of one phase."""
    state = [zero(tile.acc, tile.lanes)] * (tile.rows * tile.vectors * tile.phases)
    if start is not None:
        assert tile.phases == 1
        state = [value for row in start for value in row]

    def steps(k: Index, values: Values, count: int) -> Values:
        if before_step is not None:
            before_step(k)
        for phase in range(count):
            at = kb.add(k, phase)
            vectors = [right(at, v) for v in range(tile.vectors)]
            base = phase * tile.rows * tile.vectors
            for row in range(tile.rows):
                operand = left(row, at) if dot is not None else kb.splat(left(row, at), tile.lanes)
                for v, vector in enumerate(vectors):
                    i = base + row * tile.vectors + v
                    if dot is not None:
                        values[i] = dot(values[i], operand, vector)
                    else:
                        values[i] = multiply_add(kb, operand, vector, values[i], tile.acc)
        return values

    if alone:
        kb.forget_vectors()
    if tile.phases == 1:
        state = fold(kb, 0, depth, 1, state, lambda k, s: steps(k, s, 1))
    else:
        assert isinstance(depth, int)
        whole = depth - depth % tile.phases
        state = fold(kb, 0, whole, tile.phases, state, lambda k, s: steps(k, s, tile.phases))
        if depth > whole:
            state = steps(whole, state, depth - whole)
    size = tile.rows * tile.vectors
    parts = [state[p * size : (p + 1) * size] for p in range(tile.phases)]
    plus = kb.b.fadd if tile.acc.is_float else kb.b.add
    while len(parts) > 1:
        pairs = [[plus(x, y) for x, y in zip(parts[i], parts[i + 1], strict=True)] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return tile.rows_of(parts[0])


def store_tile(kb: KernelBuilder, tile: Tile, results: list[Values], base: ir.Value, pitch: int) -> None:
    """Park a tile in memory: row r at base[r * pitch]."""
    for r, row in enumerate(results):
        for v, value in enumerate(row):
            kb.store(value, base, r * pitch + v * tile.lanes, tile.acc)


def load_tile(kb: KernelBuilder, tile: Tile, base: ir.Value, pitch: int) -> list[Values]:
    """The sums that `store_tile` parked."""
    return [
        [kb.load(base, r * pitch + v * tile.lanes, tile.acc, tile.lanes) for v in range(tile.vectors)]
        for r in range(tile.rows)
    ]


def as_result(kb: KernelBuilder, value: ir.Value, acc: DType, dtype: DType) -> ir.Value:
    """An accumulator as the compute form of the anchor's output: integers keep their low bits."""
    return value if acc.is_float else convert(kb, value, acc, dtype)
