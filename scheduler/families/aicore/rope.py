"""aicore.rope: rotary position embedding as pointwise programs.

Model: the turned pairs are one program over [B, H, S, R/2]: it reads both halves of x (its prologue for both), cosine
and sine, and writes both halves of the result through the epilogue. Elements behind the turned ones are a second
program. Without a position input both are programs like any other; with one the tables' rows are found at run time:
the control unit reads the position, and loads the tables itself. Tiles then run over the positions of one head, or,
where there is one position, over the heads.

Where x is read and the result written row by row, a pair's two elements travel together (`wide`): a tile's rows are
loaded whole, and the program works on halves of them, or on neighbours that the vector engine gathers and scatters.

With a position the tables are declared read in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError, UnsupportedError
from superkernel.core.tensor import full_box
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, ProgramOutput, View
from superkernel.ir.collapse import canonical, collapse, feed, walked
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.cuts import (
    GRAIN_ROWS,
    Cut,
    Terms,
    code_of,
    cut_program,
    even_tile,
    output_types,
    plain,
    ub_bytes,
)
from superkernel.scheduler.families.aicore.kernel import FLOATS, INDEX_TYPES, AicoreKernelDef
from superkernel.scheduler.families.aicore.pointwise import ProgramsTiling
from superkernel.scheduler.families.aicore.tilecode import COUNT_MAX, TileLayout
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.rowops import integer
from superkernel.scheduler.families.rowspace import input_program, remap
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.aicore import AicoreTarget

FENCES = (1, 2, 3)  # batch, head and place stay dimensions of their own
WIDE = (0, 1)  # the inputs, and the outputs, that are a pair's elements
OFFSET_BYTES = 4
BLOCK_BYTES = 32  # what a half's bytes must be a multiple of, whatever block a target has


@dataclass(frozen=True)
class RopePlan:
    """`pairs`, `tail` (None: all elements turn), `tables`: the inputs of `pairs` that are cosine and sine."""

    pairs: PointwiseProgram
    tail: PointwiseProgram | None
    tables: tuple[int, int]
    has_position: bool
    interleaved: bool
    is_wide: bool

    @property
    def programs(self) -> tuple[PointwiseProgram, ...]:
        """What there is to compute."""
        return (self.pairs,) if self.tail is None else (self.pairs, self.tail)

    @property
    def shown(self) -> PointwiseProgram:
        """The program that tiles compute: wide neighbours are set side by side before and behind it."""
        if not (self.is_wide and self.interleaved):
            return self.pairs
        inputs = tuple(
            replace(i, strides=(*i.strides[:-1], 1)) if k in WIDE else i for k, i in enumerate(self.pairs.inputs)
        )
        outputs = tuple(replace(o, strides=(*o.strides[:-1], 1)) for o in self.pairs.outputs)
        return replace(self.pairs, inputs=inputs, outputs=outputs)


class _Joined:
    """Programs over one space put together: all inputs first, then the instructions of each in turn."""

    def __init__(self, shape: tuple[int, ...], programs: Sequence[PointwiseProgram]) -> None:
        self.shape = shape
        self.inputs: list[ProgramInput] = []
        self.instructions: list[Instruction] = []
        self.outputs: list[ProgramOutput] = []
        self._numbers: dict[int, list[int]] = {}
        for program in programs:
            numbers = []
            for item in program.inputs:
                numbers.append(len(self.inputs) if item.source >= 0 else -1)
                if item.source >= 0:
                    self.inputs.append(item)
            self._numbers[id(program)] = numbers

    def run(self, program: PointwiseProgram, anchor: int = -1) -> int:
        """Append a program's instructions and stores; the number of the value that feeds the anchor (-1: none)."""
        numbers = [anchor if n < 0 else n for n in self._numbers[id(program)]]
        for instruction in program.instructions:
            args = tuple(numbers[a] if a >= 0 else a for a in instruction.args)
            numbers.append(self.add(instruction.op, args, instruction.dtype, instruction.attrs))
        result = -1
        for output in program.outputs:
            if output.target >= 0:
                self.outputs.append(replace(output, value=numbers[output.value]))
            else:
                result = numbers[output.value]
        return result

    def add(self, op: str, args: tuple[int, ...], dtype: DType, attrs: tuple[tuple[str, object], ...] = ()) -> int:
        self.instructions.append(Instruction(op, args, dtype, attrs))  # type: ignore[arg-type]
        return len(self.inputs) + len(self.instructions) - 1

    def first_input(self, program: PointwiseProgram) -> int:
        return self._numbers[id(program)][0]

    def program(self) -> PointwiseProgram:
        return PointwiseProgram(self.shape, tuple(self.inputs), tuple(self.instructions), tuple(self.outputs))


def _columns(program: PointwiseProgram, start: int, step: int, count: int) -> PointwiseProgram:
    """The program at columns start, start + step, ..."""
    shape = (*program.shape[:-1], count)
    return walked(program, shape, lambda s: (*s[:-1], s[-1] * step), lambda s: start * s[-1])


@lru_cache(maxsize=1024)
def rope_plan(body: Body) -> RopePlan:
    """The programs of a body."""
    x, epilogue, kind = input_program(body, 0), body.epilogue, body.anchor_outputs[0]
    depth = kind.shape[3]
    half = (integer(body.attr["rotary_dim"]) or depth) // 2
    starts, step = ((0, 1), 2) if body.attr["interleaved"] else ((0, half), 1)
    shape = (*kind.shape[:3], half)
    has_position = len(body.anchor_inputs) > 3 and body.anchor_inputs[3] is not None
    sources, stores = ([_columns(p, start, step, half) for start in starts] for p in (x, epilogue))
    tables = [_table(body, slot, shape, has_position) for slot in (1, 2)]
    joined = _Joined(shape, [*sources, *tables, *stores])
    a, b = (joined.run(p) for p in sources)
    cos, sin = (joined.run(p) for p in tables)

    def product_of(u: int, v: int) -> int:
        return joined.add("mul", (u, v), kind.dtype)

    first = joined.add("sub", (product_of(a, cos), product_of(b, sin)), kind.dtype)
    second = joined.add("add", (product_of(b, cos), product_of(a, sin)), kind.dtype)
    for program, value in zip(stores, (first, second), strict=True):
        joined.run(program, value)
    pairs = joined.program()
    rest = depth - 2 * half
    tail = None
    if rest:
        tail = plain(canonical(feed(_columns(epilogue, 2 * half, 1, rest), _columns(x, 2 * half, 1, rest))))
    places = joined.first_input(tables[0]), joined.first_input(tables[1])
    interleaved = bool(body.attr["interleaved"])
    is_wide = isinstance(body.anchor_inputs[0], View) and _is_wide(body, pairs, starts[1] - starts[0], step)
    keeps = is_wide or has_position
    program = collapse(pairs, FENCES) if keeps else plain(canonical(pairs))
    return RopePlan(program, tail, places, has_position, interleaved, is_wide)


def _is_wide(body: Body, pairs: PointwiseProgram, distance: int, step: int) -> bool:
    """Whether both elements of every pair lie in one run of the operand, which whole blocks of UB hold."""
    (a, b), half = pairs.inputs[:2], pairs.shape[-1]
    if len(pairs.outputs) != 2 or half < 2 or 0 in pairs.shape:
        return False
    u, v = pairs.outputs
    items = [body.operands[o].type.dtype.itemsize for o in (a.source, u.target)]
    return (
        u.target == v.target
        and a.strides == b.strides
        and u.strides == v.strides
        and a.strides[-1] == u.strides[-1] == step
        and min(*a.strides, *u.strides) >= 0
        and b.offset - a.offset == v.offset - u.offset == distance
        and all(half * item % BLOCK_BYTES == 0 for item in items)
        and (step == 1 or items[0] == items[1])
    )


def _table(body: Body, slot: int, shape: tuple[int, ...], has_position: bool) -> PointwiseProgram:
    """Cosine or sine over the pairs' space; with a position, from the table's first row on."""
    program = input_program(body, slot)
    if program.instructions:
        raise InternalError("a table is computed", location="rope", found=slot)
    rank = len(program.shape)
    if not has_position:
        return remap(program, shape, [*[None] * (4 - rank), *range(rank)])
    item = program.inputs[0]
    walk = replace(item, strides=(0, 0, item.strides[0] if shape[2] > 1 else 0, item.strides[1]))
    return PointwiseProgram(shape, (walk,), (), program.outputs)


@dataclass(frozen=True)
class RopeTiling(ProgramsTiling):
    """Units are the pairs', then the tail's."""

    is_wide: bool = False

    def programs(self, body: Body) -> Sequence[PointwiseProgram]:
        return rope_plan(body).programs

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        plan, found = rope_plan(body), AccessSet(body)
        for k, first, last in self.ranges(begin, end):
            program = plan.programs[k]
            if plan.has_position and k == 0:
                for table in (input_program(body, slot) for slot in (1, 2, 3)):
                    found.program(table, full_box(table.shape))
                program = replace(
                    program, inputs=tuple(i for j, i in enumerate(program.inputs) if j not in plan.tables)
                )
            found.program(program, *self.cuts[k].boxes(first, last))
        return found.result()

    def program_cycles(self, body: Body, k: int, begin: int, end: int, target: AicoreTarget) -> float:
        program, cut = rope_plan(body).programs[k] if k else rope_plan(body).shown, self.cuts[k]
        code = code_of(cut, program, output_types(body, program))
        apart = (WIDE, self._wide_cycles(body, target)) if self.is_wide and k == 0 else ()
        return cut.cycles(program, code, begin, end, target, *apart)

    def _wide_cycles(self, body: Body, target: AicoreTarget) -> Callable[[int], tuple[int, int, int]]:
        """What moving pairs whole costs MTE2, V and MTE3 per tile of so many rows."""
        plan, v = rope_plan(body), target.vector
        items = [plan.pairs.inputs[0].dtype.itemsize, output_types(body, plan.pairs)[0].itemsize]
        paths = ("rates.gm_to_ub_gb_per_s", "rates.ub_to_gm_gb_per_s")

        def cycles(rows: int) -> tuple[int, int, int]:
            elements = rows * self.cuts[0].block
            load, store = (
                target.move_cycles(path, 1, 2 * elements * item) for path, item in zip(paths, items, strict=True)
            )
            gather = v.startup_cycles + -(-elements // v.lanes_gather)
            return load, 4 * gather if plan.interleaved else 0, store

        return cycles


class RopeFamily(KernelFamily[AicoreTarget]):
    """Rotary position embedding."""

    view_slots = (0,)
    prologue_slots = (0,)

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        plan = rope_plan(body)
        share = target.memory.ub_bytes // (1 if plan.tail is None else 2)
        terms = Terms(share, pooled=plan.tail is not None)
        if plan.has_position:
            terms = Terms(share, pooled=True, rows=(1,) if plan.pairs.shape[2] == 1 else (2,), cols=(3,))
        elif plan.is_wide:
            terms = replace(terms, pooled=True, rows=(1, 2), cols=(3,))
        dtypes = output_types(body, plan.pairs)
        pairs = cut_program(plan.shown, dtypes, target, terms)
        is_wide = plan.is_wide and pairs.blocks == 1
        if is_wide:
            pairs = _shrunk(plan, pairs, dtypes, share, target)
        elif plan.is_wide:
            pairs = cut_program(plan.pairs, dtypes, target, terms)
        self._check(plan, pairs, body)
        tails = [
            cut_program(tail, output_types(body, tail), target, Terms(share, pooled=True)) for tail in plan.programs[1:]
        ]
        return (RopeTiling((pairs, *tails), is_wide),)

    def _check(self, plan: RopePlan, cut: Cut, body: Body) -> None:
        """Tables with a position are loaded row by row, into rows."""
        if not plan.has_position or not cut.units:
            return
        code = code_of(cut, plan.shown, output_types(body, plan.pairs))
        layouts = {code.registers[x.register].layout for x in code.loads if x.input in plan.tables}
        if not layouts <= {TileLayout.ROW, TileLayout.MATRIX}:
            raise UnsupportedError(
                "tables with a position must have rows of two elements or more, side by side", location="rope",
                found=", ".join(sorted(x.value for x in layouts)),
            )  # fmt: skip


def spare_bytes(plan: RopePlan, cut: Cut, dtypes: Sequence[DType]) -> int:
    """UB that wide neighbours need beside the program's: both elements of a pair apart, once, and their offsets."""
    if not plan.interleaved:
        return 0
    item = plan.pairs.inputs[0].dtype.itemsize + dtypes[0].itemsize
    return 2 * cut.tile * cut.block * (item + OFFSET_BYTES) + 6 * BLOCK_BYTES


def _shrunk(plan: RopePlan, cut: Cut, dtypes: tuple[DType, ...], limit: int, target: AicoreTarget) -> Cut:
    """The cut with tiles that leave room for the spare bytes, and fit the count of a command."""
    code = code_of(cut, plan.shown, dtypes)
    while cut.tile > 1 and (
        ub_bytes(cut, code, target) + spare_bytes(plan, cut, dtypes) > limit or cut.tile * cut.block > COUNT_MAX
    ):
        cut = replace(cut, tile=cut.tile - max(1, cut.tile // 8))
    whole = cut.tile // GRAIN_ROWS * GRAIN_ROWS
    return replace(cut, tile=even_tile(cut.extent, whole, GRAIN_ROWS)) if whole else cut


FAMILY = RopeFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.rope",
        ops=("rope",),
        family=FAMILY,
        emitter="rope",
        micro="rope",
        dtypes=FLOATS,
        others=(None, None, INDEX_TYPES),
    ),
)
