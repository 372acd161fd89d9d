"""aicore.kv_update: new rows into a cache at a run-time position. A unit is one (batch, head) pair.

Model: the new rows are a pointwise program over [B, H, T, D] whose outputs lie `position` rows further on, a number
that the control unit reads and clamps (`shifts` of the tile program). In place nothing else is touched; where the rows
land is data, so the pair's whole cache is declared written. Otherwise each pair's cache is copied first: the copy and
the new rows leave through the same queue, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import ClassVar

from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Box, Region, regions_of_box
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ir.collapse import collapse, feed, restrict
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.aicore.base import AicoreTiling, VectorTiling
from superkernel.scheduler.families.aicore.cuts import Cut, Terms, code_of, cut_program, output_types
from superkernel.scheduler.families.aicore.kernel import AicoreKernelDef
from superkernel.scheduler.families.aicore.pointwise import CALL_CYCLES
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.rowspace import input_program
from superkernel.scheduler.families.update import is_in_place, read_position
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.aicore import AicoreTarget

PAIR_DIMS = (1, 2)  # B and H stay dimensions of their own


@dataclass(frozen=True)
class CopyPart:
    """A copy over [B, H, ...]. `input_steps`, `output_steps`: elements per row of the position, by input and output."""

    program: PointwiseProgram
    input_steps: tuple[int, ...]
    output_steps: tuple[int, ...]


@lru_cache(maxsize=1024)
def new_rows(body: Body) -> CopyPart:
    """The new rows at position 0."""
    source = input_program(body, 1)
    box = tuple((0, extent) for extent in source.shape)
    fed = feed(restrict(body.epilogue, box), source)
    own = [i.strides[2] for i in body.epilogue.inputs if i.source >= 0]
    stores = [o for o in source.outputs if o.target >= 0]
    steps = (*(0 for _ in source.inputs), *own)
    return CopyPart(
        collapse(fed, PAIR_DIMS), steps, (*(o.strides[2] for o in body.epilogue.outputs), *(0 for _ in stores))
    )


@lru_cache(maxsize=1024)
def whole_cache(body: Body) -> CopyPart | None:
    """The copy of the cache; None in place."""
    if is_in_place(body):
        return None
    program = collapse(feed(body.epilogue, input_program(body, 0)), PAIR_DIMS)
    return CopyPart(program, (0,) * len(program.inputs), (0,) * len(program.outputs))


def spare_rows(body: Body) -> int:
    """The largest position."""
    new = body.anchor_input_types[1]
    assert new is not None
    return body.anchor_outputs[0].shape[2] - new.shape[2]


@dataclass(frozen=True)
class UpdateTiling(VectorTiling):
    """`rows`, `cache`: how the parts are cut; a pair is a whole number of units of each."""

    engines_write_all: ClassVar[bool] = False  # a cache that is updated in place is declared as a whole
    pairs: int
    rows: Cut
    cache: Cut | None

    @property
    def units(self) -> int:
        return self.pairs

    def parts(self, body: Body) -> list[tuple[CopyPart, Cut]]:
        """What a range does, in order."""
        found = [(new_rows(body), self.rows)] if self.rows.units else []
        cache = whole_cache(body)
        if cache is not None and self.cache is not None and self.cache.units:
            found.insert(0, (cache, self.cache))
        return found

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        if begin >= end:
            return ()
        anywhere = (0, spare_rows(body) + 1)
        for part, cut in self.parts(body):
            each = cut.units // self.pairs
            for box in cut.boxes(begin * each, end * each):
                for item, step in zip(part.program.inputs, part.input_steps, strict=True):
                    found.view(item.source, *_moved(box, item.strides, step, anywhere), item.offset)
                for out, step in zip(part.program.outputs, part.output_steps, strict=True):
                    size = body.operands[out.target].type.dtype.itemsize
                    moved = _moved(box, out.strides, step, anywhere)
                    found.add(out.target, True, _union(*moved, size, out.offset))
        if self.rows.units:
            read_position(found, body)
        return found.result()

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        total = float(CALL_CYCLES + target.control.global_load_cycles)
        for part, cut in self.parts(body):
            each = cut.units // self.pairs
            code = code_of(cut, part.program, output_types(body, part.program))
            total += cut.cycles(part.program, code, begin * each, end * each, target)
        return total


def _moved(box: Box, strides: tuple[int, ...], step: int, anywhere: tuple[int, int]) -> tuple[Box, tuple[int, ...]]:
    """A box at every position."""
    return ((*box, anywhere), (*strides, step)) if step else (box, strides)


def _union(box: Box, strides: tuple[int, ...], itemsize: int, offset: int) -> tuple[Region, ...]:
    """Bytes that a box covers, pair by pair: no byte between the rows of two pairs."""
    (first, last), (low, high), *rest = box
    return tuple(
        region
        for b, h in product(range(first, last), range(low, high))
        for region in regions_of_box(((b, b + 1), (h, h + 1), *rest), strides, itemsize, offset)
    )


class UpdateFamily(KernelFamily[AicoreTarget]):
    """Updates of a state."""

    view_slots = (1, 2)
    prologue_slots = (1,)

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        pairs = prod(body.anchor_outputs[0].shape[:2])
        rows, cache = new_rows(body), whole_cache(body)
        # The two parts share memory where there are two.
        share = target.memory.ub_bytes // (1 if cache is None else 2)
        cuts = [None if p is None else _cut(body, p.program, target, share) for p in (rows, cache)]
        first = cuts[0]
        assert first is not None
        return (UpdateTiling(0 if 0 in body.anchor_outputs[0].shape else pairs, first, cuts[1]),)


def _cut(body: Body, program: PointwiseProgram, target: AicoreTarget, ub_bytes: int) -> Cut:
    """Heads as the tile's rows where a head's rows are one run that fits, else head by head."""
    dtypes, rank = output_types(body, program), len(program.shape)
    terms = Terms(ub_bytes, pooled=True, unit=1)
    if rank <= 3:
        try:
            cut = cut_program(program, dtypes, target, replace(terms, rows=(1,), cols=(rank - 1,)))
            if cut.blocks == 1:
                return cut
        except UnsupportedError:
            pass
        return cut_program(program, dtypes, target, replace(terms, rows=(-1,), cols=(rank - 1,), unit=0))
    columns = tuple(range(2, rank))
    return cut_program(program, dtypes, target, replace(terms, rows=(-1, *columns), cols=columns, unit=0))


FAMILY = UpdateFamily()

KERNELS = (
    AicoreKernelDef(
        id="aicore.kv_update",
        ops=("kv_update",),
        family=FAMILY,
        emitter="update",
        micro="kvupdate",
        rounding=EXACT,
        code_bytes=1024,
    ),
)
