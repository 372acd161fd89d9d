"""Walking rows: what emitters of softmax, norms, reductions and scans are written in.

Model: a `RowWalk` stands at one unit of a `RowSpace`, or at `width` inner positions of one. `each` visits all
elements of the row, a vector at a time; `reduce` does so with accumulators. Row mode (no inner dimension): vectors
lie along the last row dimension, statistics are scalars. Column mode: each lane is a row of its own, statistics are
vectors of `width` lanes. Formulas are the same in both: `spread` brings a statistic to a vector's width.

Invariants: a row's sums are formed in an order that depends only on the row's geometry; every visit passes the row's
elements in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from llvmlite import ir

from superkernel.codegen.host.builder import I64, Carry, Index, KernelBuilder
from superkernel.codegen.host.loops import split_index, vector_loop
from superkernel.codegen.host.program import ProgramEmitter, ProgramRow
from superkernel.codegen.host.shuffle import larger
from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.scheduler.families.rowspace import RowSpace
from superkernel.scheduler.families.rowtiling import RowTiling

Site = str | int
BLOCK_STEPS = 256
"""Additions in a row before a partial sum is put aside: the rounding error of n additions becomes that of BLOCK_STEPS +
n / BLOCK_STEPS."""


@dataclass(slots=True)
class Point:
    """One vector of elements of the row. `index`: its place in a per-row buffer of the compute type; `position`:
    along the row."""

    kb: KernelBuilder
    rows: dict[int, ProgramRow]
    at: Index
    index: Index
    position: Index
    lanes: int
    site: Site

    def read(self, slot: int, store: bool = False) -> Expr:
        """The value of an input slot; with `store` the slot's further outputs are written."""
        return Expr(self.kb, self.rows[slot].eval(self.at, self.lanes, store=store)[0])

    def emit(self, *results: Expr) -> None:
        """Run the epilogue on the results here."""
        self.rows[-1].eval(self.at, self.lanes, [r.v for r in results])

    def save(self, value: Expr, dtype: DType) -> None:
        """Keep a value in the row's buffer."""
        self.kb.store(value.v, self.kb.scratch, self.index, dtype)

    def saved(self, dtype: DType) -> Expr:
        """What an earlier pass over the row kept of these elements, of type `dtype`."""
        return Expr(self.kb, self.kb.load(self.kb.scratch, self.index, dtype, self.lanes))


Step = Callable[[Point, list[Expr]], list[Expr]]


@dataclass(slots=True)
class Accumulator:
    """One running statistic: its start value for a number of lanes, how two are joined, how the lanes of one become a
    scalar."""

    start: Callable[[int], ir.Value]
    merge: Callable[[Expr, Expr], Expr]
    fold: Callable[[Expr], Expr]


def accumulator(kb: KernelBuilder, dtype: DType, kind: str) -> Accumulator:
    """The sum, prod, max or min of a compute type; max and min of floats keep NaN, of bools they are any and all."""
    start: float = 0 if kind == "sum" else 1
    name = {"sum": "add", "prod": "mul"}.get(kind, kind)
    if dtype is DType.BOOL:
        name, start = ("or", 0) if kind == "max" else ("and", 1)
    elif kind in ("max", "min"):
        low, high = (float("-inf"), float("inf")) if dtype.is_float else dtype.limits
        name, start = ("s" if dtype.is_signed else "u") + kind, low if kind == "max" else high
    if dtype.is_float:
        name = "f" + name[-3:]

    def merge(a: Expr, b: Expr) -> Expr:
        if dtype is DType.BOOL:
            return a | b if name == "or" else a & b
        if kind in ("sum", "prod"):
            return a + b if kind == "sum" else a * b
        return a.extreme(">" if kind == "max" else "<", b, dtype.is_signed)

    return Accumulator(
        lambda lanes: kb.const(start, dtype, lanes), merge, lambda v: Expr(kb, kb.reduce_lanes(name, v.v))
    )


def greatest_number(kb: KernelBuilder, dtype: DType) -> Accumulator:
    """The greatest float but for NaN, which it passes over: one instruction in place of four. For what meets every
    element again."""

    def merge(a: Expr, b: Expr) -> Expr:
        return Expr(kb, larger(kb, b.v, a.v))

    return Accumulator(
        lambda lanes: kb.const(float("-inf"), dtype, lanes),
        merge,
        lambda v: Expr(kb, kb.reduce_tree(v.v, lambda a, b: larger(kb, a, b))),
    )


class RowWalk:
    """See the module docstring."""

    def __init__(
        self,
        kb: KernelBuilder,
        space: RowSpace,
        emitters: Sequence[ProgramEmitter | None],
        outer: Sequence[Index],
        start: Index = 0,
        width: int = 0,
    ) -> None:
        self.kb, self.space, self.emitters = kb, space, emitters
        self.outer, self.start, self.width = list(outer), start, width
        self.lanes = max(e.lanes for e in emitters if e is not None)
        if emitters[0] is not None:
            self.lanes = emitters[0].lanes

    @property
    def is_column(self) -> bool:
        """Whether vectors go across rows, `width` of them at a time."""
        return self.width > 0

    def has(self, slot: int) -> bool:
        """Whether an optional input is there."""
        return slot < len(self.emitters) - 1 and self.emitters[slot] is not None

    def spread(self, value: Expr, lanes: int) -> Expr:
        """A statistic in all lanes of a vector along the row."""
        return value if self.is_column else Expr(self.kb, self.kb.splat(value.v, lanes))

    def coords(self, row: Sequence[Index]) -> list[Index]:
        """Coordinates in the program's space of a place in the row."""
        return [*self.outer, *row, self.start] if self.is_column else [*self.outer, *row]

    def emit_once(self, *results: Expr) -> None:
        """Run the epilogue once for the whole row (reductions)."""
        self.emit_at([0] * len(self.space.row), *results)

    def emit_at(self, row: Sequence[Index], *results: Expr) -> None:
        """Run the epilogue at one place in the row."""
        epilogue = self.emitters[-1]
        if epilogue is None:
            raise InternalError("a row space without an epilogue")
        epilogue.eval(self.coords(row), max(1, self.width), [r.v for r in results], store=True)

    def each(self, slots: Sequence[int], visit: Callable[[Point], None], unroll: int = 1) -> None:
        """Visit the row. `slots` are the inputs that will be read, -1 the epilogue."""
        kb, row = self.kb, self.space.row
        lead = row if self.is_column else row[:-1]
        with kb.loop(0, prod(lead), name="r") as r:
            inner = split_index(kb, r, lead)
            rows = self._rows(slots, inner if self.is_column else [*inner, 0])
            if self.is_column:
                visit(Point(kb, rows, self.start, kb.mul(r, self.width), r, self.width, "column"))
            else:
                self._along(rows, kb.mul(r, row[-1]), row[-1], visit, unroll)

    def _rows(self, slots: Sequence[int], inner: Sequence[Index]) -> dict[int, ProgramRow]:
        rows = {}
        for slot in slots:
            emitter = self.emitters[slot]
            if emitter is None:
                raise InternalError("an absent input is read", found=slot)
            rows[slot] = emitter.row(self.coords(inner))
        return rows

    def _along(
        self, rows: dict[int, ProgramRow], base: Index, extent: int, visit: Callable[[Point], None], unroll: int
    ) -> None:
        """Row mode: groups of `unroll` vectors, single vectors, the tail."""
        kb, lanes = self.kb, self.lanes

        def point(p: Index, width: int, site: Site) -> Point:
            index = kb.add(base, p)
            return Point(kb, rows, p, index, index, width, site)

        for start, stop, count, width in _spans(extent, lanes, unroll):
            with kb.loop(start, stop, count * width, name="e") as p:
                for k in range(count):
                    visit(point(kb.add(p, k * width), width, k if width == lanes else "tail"))

    def reduce(
        self,
        slots: Sequence[int],
        accumulators: Sequence[Accumulator],
        step: Step,
        unroll: int = 1,
        blocks: bool = False,
    ) -> list[Expr]:
        """Statistics of the row: scalars in row mode, vectors of `width` lanes in column mode. `blocks`: sum long
        rows in pieces of BLOCK_STEPS additions that are added up in turn (`accumulators` then merge by addition of
        partial results)."""
        parts = self.visit_with(slots, accumulators, step, unroll, blocks)
        return [self._fold(a, {s: values[i] for s, values in parts.items()}) for i, a in enumerate(accumulators)]

    def visit_with(
        self,
        slots: Sequence[int],
        accumulators: Sequence[Accumulator],
        step: Step,
        unroll: int = 1,
        blocks: bool = False,
    ) -> dict[Site, list[Expr]]:
        """The accumulators, not yet folded, by the place in the code that formed them."""
        kb = self.kb
        sites: dict[Site, int] = {"column": self.width}
        steps = self.space.row_size
        if not self.is_column:
            spans = _spans(self.space.row[-1], self.lanes, unroll)
            sites = {k if w == self.lanes else "tail": w for _, _, count, w in spans for k in range(count)} or {
                "tail": 1
            }
            steps //= self.lanes * unroll
        carries = {site: self._start(accumulators, width) for site, width in sites.items()}
        summed = [site for site in sites if site != "tail"] if blocks and steps > BLOCK_STEPS else []
        sums = {site: self._start(accumulators, sites[site]) for site in summed}
        counts = {site: kb.carry(I64, kb.i64(0)) for site in summed}

        def flush(site: Site) -> None:
            """Add the running statistics to their sums and start them anew."""
            for accumulator, cell, total in zip(accumulators, carries[site], sums[site], strict=True):
                total.set(accumulator.merge(Expr(kb, total.get()), Expr(kb, cell.get())).v)
                cell.set(accumulator.start(sites[site]))

        def visit(point: Point) -> None:
            cells = carries[point.site]
            for cell, value in zip(cells, step(point, [Expr(kb, c.get()) for c in cells]), strict=True):
                cell.set(value.v)
            if point.site in sums:
                counter = counts[point.site]
                count = kb.add(counter.get(), 1)
                counter.set(kb.i64(count))
                with kb.when(kb.compare("==", count, BLOCK_STEPS)):
                    counter.set(kb.i64(0))
                    flush(point.site)

        self.each(slots, visit, unroll)
        for site in sums:
            flush(site)
        return {s: [Expr(kb, c.get()) for c in sums.get(s, cells)] for s, cells in carries.items()}

    def _start(self, accumulators: Sequence[Accumulator], width: int) -> list[Carry]:
        starts = [a.start(width) for a in accumulators]
        return [self.kb.carry(s.type, s) for s in starts]

    def _fold(self, accumulator: Accumulator, parts: dict[Site, Expr]) -> Expr:
        if self.is_column:
            return parts["column"]
        mains = [v for s, v in parts.items() if s != "tail"]
        while len(mains) > 1:
            mains = [
                accumulator.merge(*mains[i : i + 2]) if i + 1 < len(mains) else mains[i]
                for i in range(0, len(mains), 2)
            ]
        scalars = [accumulator.fold(v) for v in mains]
        if "tail" in parts:
            scalars.append(accumulator.fold(parts["tail"]))
        return scalars[0] if len(scalars) == 1 else accumulator.merge(scalars[0], scalars[1])


def _spans(extent: int, lanes: int, unroll: int) -> list[tuple[int, int, int, int]]:
    """(start, stop, vectors per step, width) of the loops over a row: unrolled, single, tail."""
    group = lanes * unroll
    grouped, full = extent // group * group, extent // lanes * lanes
    spans = [(0, grouped, unroll, lanes), (grouped, full, 1, lanes), (full, extent, 1, extent - full)]
    if unroll == 1:
        spans.pop(1)
    return [s for s in spans if s[0] < s[1]]


def each_unit(kb: KernelBuilder, space: RowSpace, tiling: RowTiling, build: Callable[[RowWalk], None]) -> None:
    """Emit `build` for every unit of the kernel's range. In column mode a unit is cut into vectors the code is
    written for: the whole block if it is full, else single vectors and a narrower one."""
    emitters = [None if p is None else ProgramEmitter(kb, p) for p in space.programs]
    is_column = len(space.outer) + len(space.row) < len(space.epilogue.shape)
    with kb.loop(kb.begin, kb.end, name="unit") as unit:
        if not is_column:
            build(RowWalk(kb, space, emitters, split_index(kb, unit, space.outer)))
            return
        outer = split_index(kb, kb.div(unit, tiling.blocks), space.outer)
        start = kb.mul(kb.rem(unit, tiling.blocks), tiling.block)
        lanes = next(e.lanes for e in (emitters[0], emitters[-1]) if e is not None)
        rest = space.inner % tiling.block

        def pieces(size: int) -> None:
            step = size if size == tiling.block and size % lanes == 0 else lanes
            vector_loop(
                kb, size, step, lambda at, n: build(RowWalk(kb, space, emitters, outer, kb.add(start, at), n)), "piece"
            )

        if not rest:
            pieces(tiling.block)
        elif tiling.blocks == 1:
            pieces(rest)
        else:
            is_last = kb.compare("==", start, (tiling.blocks - 1) * tiling.block)
            with kb.b.if_else(is_last) as (then, otherwise):
                with then:
                    pieces(rest)
                with otherwise:
                    pieces(tiling.block)
