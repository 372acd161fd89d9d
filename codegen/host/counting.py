"""host.nonzero, host.non_max_suppression: one scalar unit each, whose results stand one behind the other.

nonzero: vectors of elements that are all 0 are passed over; of others every element's index is stored where the next
one belongs, and stays there if it counts.

non_max_suppression, per class: the boxes whose score allows it become a heap in scratch, the best on top; of each that
is taken off the edges are held against those of the boxes selected before, a vector of which at a time: they stand
behind the heap, each number of all boxes for itself, and zeros where there is no box yet. Equal scores go by
index. Comparisons and arithmetic are the reference's, in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from llvmlite import ir

from superkernel.codegen.host.builder import I64, Carry, Index, KernelBuilder
from superkernel.codegen.host.loops import each_row, repeated, vector_loop
from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, View
from superkernel.ops.counting import ROW, least_score
from superkernel.scheduler.families.counting import EDGES, CountingTiling, view_of
from superkernel.scheduler.families.rowops import integer, real


def emit(kb: KernelBuilder, body: Body, tiling: CountingTiling) -> None:
    """Write the kernel."""
    with kb.when(kb.compare("<", kb.begin, kb.end)):
        if body.op == "nonzero":
            _emit_nonzero(kb, _Results(kb, body, 1))
        else:
            _Suppression(kb, body, tiling).emit()


class _Results:
    """Rows of `width` numbers that are found one after the other, and how many there are so far."""

    def __init__(self, kb: KernelBuilder, body: Body, width: int) -> None:
        self.kb, self.body, self.width = kb, body, width
        self.size = integer(body.attr["size"])
        self.outs = [(kb.operands[o.target], o.offset) for o in body.epilogue.outputs]
        self.count = kb.carry(I64, kb.i64(0))

    def put(self, *row: Index) -> None:
        """The next row; room is the caller's business."""
        self._store(self.kb.add(self.count.get(), 1), row)

    def take(self, counts: ir.Value) -> None:
        """The row put last stays if it counts, an i1."""
        self.count.set(self.kb.b.add(self.count.get(), self.kb.b.zext(counts, I64)))

    def has_room(self) -> ir.Value:
        """Whether one more row fits, an i1."""
        return self.kb.compare("<", self.count.get(), self.size)

    def finish(self) -> None:
        """How many there are, and zeros behind the last."""
        self._store(0, [self.count.get(), *[0] * (self.width - 1)])
        with self.kb.loop(self.kb.add(self.count.get(), 1), self.size + 1, name="rest") as number:
            self._store(number, [0] * self.width)

    def _store(self, number: Index, row: Sequence[Index]) -> None:
        kb = self.kb
        for base, offset in self.outs:
            for place, value in enumerate(row):
                at = kb.add(kb.add(kb.mul(number, self.width), place), offset)
                kb.store(kb.i64(value), base, at, DType.I64)


def _emit_nonzero(kb: KernelBuilder, results: _Results) -> None:
    view, kind = view_of(results.body, 0), results.body.anchor_input_types[0]
    assert kind is not None
    shape = view.shape or (1,)
    if not prod(shape):
        results.finish()
        return
    strides = view.strides or (1,)
    inner, always_fits = shape[-1], results.size >= prod(shape)
    base = kb.operands[view.operand]
    with each_row(kb, 0, prod(shape[:-1]), shape[:-1]) as outer:
        start = kb.element(view.offset, outer, strides[:-1])
        first = kb.element(0, outer, [prod(shape[d + 1 :]) for d in range(len(shape) - 1)])

        def is_set(position: Index, lanes: int) -> ir.Value:
            element = kb.add(start, kb.mul(position, strides[-1]))
            return _is_set(kb, kb.load(base, element, kind.dtype, lanes, strides[-1]), kind.dtype)

        def note(position: Index) -> None:
            _note(results, kb.add(first, position), is_set(position, 1), always_fits)

        _each_of_some(kb, inner, max(1, kb.cpu.vector_bytes // kind.dtype.itemsize), is_set, note)
    results.finish()


def _each_of_some(
    kb: KernelBuilder,
    extent: int,
    lanes: int,
    looks: Callable[[Index, int], ir.Value],
    visit: Callable[[Index], None],
) -> None:
    """Visits the positions of all vectors of which some lane `looks` right, an i1 each."""

    def look(position: Index, lanes: int) -> None:
        if lanes == 1:
            visit(position)
            return
        with kb.when(_any(kb, looks(position, lanes))), kb.loop(0, lanes, name="lane") as lane:
            visit(kb.add(position, lane))

    vector_loop(kb, extent, lanes, look)


def _any(kb: KernelBuilder, lanes: ir.Value) -> ir.Value:
    """Whether one of some i1 is true."""
    if not isinstance(lanes.type, ir.VectorType):
        return lanes
    bits = ir.IntType(lanes.type.count)
    return kb.b.icmp_unsigned("!=", kb.b.bitcast(lanes, bits), ir.Constant(bits, 0))


def _is_set(kb: KernelBuilder, values: ir.Value, dtype: DType) -> ir.Value:
    """Which are not 0; NaN is not."""
    if dtype is DType.BOOL:
        return values
    zero = kb.const(0, dtype, values.type.count if isinstance(values.type, ir.VectorType) else 1)
    return kb.b.fcmp_unordered("une", values, zero) if dtype.is_float else kb.b.icmp_unsigned("!=", values, zero)


def _note(results: _Results, index: Index, counts: ir.Value, always_fits: bool) -> None:
    if always_fits:
        results.put(index)
        results.take(counts)
        return
    with results.kb.when(results.kb.b.and_(counts, results.has_room())):
        results.put(index)
        results.take(counts)


# non_max_suppression --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Edges:
    """Of a box, f32: the least y and x, the greatest, and the area."""

    low: tuple[Expr, Expr]
    high: tuple[Expr, Expr]
    area: Expr

    def numbers(self) -> tuple[Expr, ...]:
        """In the order in which they are kept."""
        return *self.low, *self.high, self.area


class _Suppression:
    """See the module docstring."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: CountingTiling) -> None:
        self.kb, self.body, self.tiling = kb, body, tiling
        self.boxes, self.scores = view_of(body, 0), view_of(body, 1)
        self.kept = kb.offset(kb.scratch, tiling.heap_bytes)
        self.results = _Results(kb, body, ROW)
        self.threshold = real(body.attr["iou_threshold"])
        self.least = least_score(body.attr)
        self.length = kb.carry(I64)  # of the heap
        self.sample: Index = 0
        self.number: Index = 0

    def emit(self) -> None:
        kb, (samples, classes, _) = self.kb, self.scores.shape
        if self.tiling.kept:
            with kb.loop(0, samples, name="sample") as self.sample, kb.loop(0, classes, name="class") as self.number:
                self._gather()
                with kb.loop(0, kb.div(self.length.get(), 2), name="ordered") as done:
                    self._sift(kb.sub(kb.sub(kb.div(self.length.get(), 2), 1), done))
                self._select()
        self.results.finish()

    def _gather(self) -> None:
        """The boxes that may be selected, into the heap."""
        kb = self.kb
        self.length.set(kb.i64(0))

        def allowed(box: Index, lanes: int) -> ir.Value:
            score = self._score(box, lanes)
            return (score.is_nan().invert() if self.least is None else score > self.least).v

        def visit(box: Index) -> None:
            self._put_candidate(self.length.get(), box)
            self.length.set(kb.b.add(self.length.get(), kb.b.zext(allowed(box, 1), I64)))

        _each_of_some(kb, self.tiling.boxes, self.tiling.lanes, allowed, visit)

    def _select(self) -> None:
        kb = self.kb
        selected = kb.carry(I64, kb.i64(0))
        with repeated(kb, "best") as leave:
            enough = kb.compare(">=", selected.get(), self.tiling.kept)
            leave(kb.b.or_(enough, kb.compare("<=", self.length.get(), 0)))
            leave(kb.b.not_(self.results.has_room()))
            best = self._candidate(0)
            self.length.set(kb.b.sub(self.length.get(), kb.i64(1)))
            self._put_candidate(0, self._candidate(self.length.get()))
            self._sift(0)
            edges = self._edges(best)
            with kb.when(kb.b.not_(self._overlaps(edges, selected))):
                self._keep(edges, selected.get())
                self.results.put(self.sample, self.number, best)
                self.results.take(ir.Constant(ir.IntType(1), 1))
                selected.set(kb.b.add(selected.get(), kb.i64(1)))

    def _keep(self, edges: _Edges, number: ir.Value) -> None:
        """Another selected box, where a vector begins with no box behind it."""
        kb, lanes = self.kb, self.tiling.lanes
        with kb.when(kb.compare("==", kb.rem(number, lanes), 0)):
            for place in range(EDGES):
                kb.store(kb.const(0.0, DType.F32, lanes), self.kept, kb.add(number, self._column(place)), DType.F32)
        for place, value in enumerate(edges.numbers()):
            kb.store(value.v, self.kept, kb.add(number, self._column(place)), DType.F32)

    def _column(self, place: int) -> int:
        """Where the numbers of one kind of all selected boxes begin."""
        return place * self.tiling.kept_rounded

    def _sift(self, start: Index) -> None:
        """The candidate at a place of the heap goes down to where it belongs."""
        kb, b = self.kb, self.kb.b
        at = kb.carry(I64, kb.i64(start))
        length = self.length.get()
        moving = self._candidate(start)
        with repeated(kb, "sift") as leave:
            left = kb.add(kb.mul(at.get(), 2), 1)
            leave(kb.compare(">=", left, length))
            right = kb.minimum(kb.add(left, 1), kb.sub(length, 1))  # the left one itself where it is the last
            child = b.select(self._before(self._candidate(right), self._candidate(left)), kb.i64(right), kb.i64(left))
            below = self._candidate(child)
            leave(b.not_(self._before(below, moving)))
            self._put_candidate(at.get(), below)
            at.set(child)
        self._put_candidate(at.get(), moving)

    def _before(self, a: Index, b: Index) -> ir.Value:
        """Whether a box is better than another one: by score, then by index."""
        one, other = self._score(a), self._score(b)
        return ((one > other) | (one.equals(other) & Expr(self.kb, self.kb.compare("<", a, b)))).v

    def _overlaps(self, edges: _Edges, selected: Carry) -> ir.Value:
        """Whether a box overlaps one of those selected so far."""
        kb, lanes = self.kb, self.tiling.lanes
        found = kb.carry(ir.IntType(1), ir.Constant(ir.IntType(1), 0))
        number = kb.carry(I64, kb.i64(0))
        top, left, bottom, right, own = (Expr(kb, kb.splat(each.v, lanes)) for each in edges.numbers())
        with repeated(kb, "pairs") as leave:
            leave(kb.compare(">=", number.get(), selected.get()))
            y0, x0, y1, x1, area = (
                Expr(kb, kb.load(self.kept, kb.add(number.get(), self._column(place)), DType.F32, lanes))
                for place in range(EDGES)
            )
            height = _less(bottom, y1) - _more(top, y0)
            width = _less(right, x1) - _more(left, x0)
            shared = height * width
            union = own + area - shared
            meet = (height > 0.0) & (width > 0.0)
            for value in (shared, own, area, union):
                meet = meet & (value > 0.0)
            found.set(_any(kb, (meet & (shared / union > self.threshold)).v))
            leave(found.get())
            number.set(kb.b.add(number.get(), kb.i64(lanes)))
        return found.get()

    def _edges(self, box: Index) -> _Edges:
        kb, view = self.kb, self.boxes
        a, b, c, d = (Expr(kb, self._load(view, (self.sample, box, place))) for place in range(4))
        if self.body.attr["centers"]:
            half_width, half_height = c / 2.0, d / 2.0
            low, high = (b - half_height, a - half_width), (b + half_height, a + half_width)
        else:
            low, high = (_less(a, c), _less(b, d)), (_more(a, c), _more(b, d))
        return _Edges(low, high, (high[0] - low[0]) * (high[1] - low[1]))

    def _score(self, box: Index, lanes: int = 1) -> Expr:
        return Expr(self.kb, self._load(self.scores, (self.sample, self.number, box), lanes))

    def _load(self, view: View, at: Sequence[Index], lanes: int = 1) -> ir.Value:
        """Elements of a view along its last axis."""
        kb, dtype = self.kb, self.body.operands[view.operand].type.dtype
        element = kb.element(view.offset, at, view.strides)
        return kb.load(kb.operands[view.operand], element, dtype, lanes, view.strides[-1])

    def _candidate(self, place: Index) -> ir.Value:
        return self.kb.b.zext(self.kb.load(self.kb.scratch, place, DType.I32), I64)

    def _put_candidate(self, place: Index, box: Index) -> None:
        kb = self.kb
        kb.store(kb.b.trunc(kb.i64(box), ir.IntType(32)), kb.scratch, place, DType.I32)


def _less(a: Expr, b: Expr) -> Expr:
    return (a < b).choose(a, b)


def _more(a: Expr, b: Expr) -> Expr:
    return (a > b).choose(a, b)
