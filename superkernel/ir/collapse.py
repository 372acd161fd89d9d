"""Iteration spaces made simple: merging, reordering and cutting the dimensions of pointwise programs.

Model: a pointwise program may be run in any order of its coordinates. Two adjacent dimensions that every input and
output walks as one (contiguous or broadcast over both) are one dimension; dimensions of extent 1 are none.
`canonical` also sorts dimensions by the distance the first output moves, so that the last dimension is the one stores
are contiguous over.

Invariants: the byte sets that inputs and outputs touch do not change; the number of iterations does not change;
`runs_of_range` covers a flattened index range exactly, with boxes that do not overlap. `exact_regions` never widens,
whatever the number of regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import TypeVar

from superkernel.core.tensor import Box, Region, regions_of_box
from superkernel.ir.body import Instruction, PointwiseProgram, ProgramInput, ProgramOutput

Strides = tuple[int, ...]
Walker = TypeVar("Walker", ProgramInput, ProgramOutput)


def merge_dims(
    shape: Sequence[int], walks: Sequence[Strides], fences: Iterable[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """Groups of adjacent dimensions that can be walked as one. `walks`: the strides of everything that is accessed;
    `fences`: dimensions before which no group may extend (a group never holds both f-1 and f). Dimensions of extent 1
    join their left neighbour (or the next one, at the start); the groups cover all dimensions in order."""
    stops = set(fences)
    groups: list[list[int]] = []
    for dim, extent in enumerate(shape):
        if groups and dim not in stops:
            last = [d for d in groups[-1] if shape[d] != 1]
            if extent == 1 or not last or all(w[last[-1]] == w[dim] * extent for w in walks):
                groups[-1].append(dim)
                continue
        groups.append([dim])
    return tuple(tuple(g) for g in groups)


def merged_strides(shape: Sequence[int], strides: Strides, groups: Sequence[Sequence[int]]) -> Strides:
    """The strides after merging: of each group's innermost dimension that moves (extent not 1)."""
    picked = []
    for group in groups:
        moving = [d for d in group if shape[d] != 1]
        picked.append(strides[moving[-1]] if moving else 0)
    return tuple(picked)


def walked(
    program: PointwiseProgram, shape: Sequence[int], walk: Callable[[Strides], Strides],
    start: Callable[[Strides], int] = lambda strides: 0,
) -> PointwiseProgram:  # fmt: skip
    """The program over a space of that `shape`: `walk` turns strides over the old space into those over the new one,
    `start` into how many elements further on the walk begins. Anchor results and register outputs have no strides and
    stay as they are."""

    def there(item: Walker) -> Walker:
        return replace(item, strides=walk(item.strides), offset=item.offset + start(item.strides))

    return replace(
        program,
        shape=tuple(shape),
        inputs=tuple(there(i) if i.source >= 0 else i for i in program.inputs),
        outputs=tuple(there(o) if o.target >= 0 else o for o in program.outputs),
    )


def regroup(program: PointwiseProgram, groups: Sequence[Sequence[int]]) -> PointwiseProgram:
    """The program over merged dimensions."""
    shape = program.shape
    merged = tuple(prod(shape[d] for d in group) for group in groups)
    return walked(program, merged, lambda strides: merged_strides(shape, strides, groups))


def walks_of(program: PointwiseProgram) -> list[Strides]:
    """The strides of all operands the program touches."""
    return [i.strides for i in program.inputs if i.source >= 0] + [o.strides for o in program.outputs if o.target >= 0]


@lru_cache(maxsize=1024)
def collapse(program: PointwiseProgram, fences: tuple[int, ...] = ()) -> PointwiseProgram:
    """Merge adjacent dimensions where possible, never across a fence; with fences (f1, f2, ...) the groups of
    dimensions [0, f1), [f1, f2), ... stay apart. Use `merge_dims` for the mapping of old to new dimensions."""
    return regroup(program, merge_dims(program.shape, walks_of(program), fences))


@lru_cache(maxsize=1024)
def canonical(program: PointwiseProgram) -> PointwiseProgram:
    """For programs without an anchor: dimensions sorted by the outputs' strides (largest first), size 1 dropped, the
    rest merged. The rank of the result is 0 only for a single element."""
    return canonical_together((program,))[0]


def canonical_together(programs: Sequence[PointwiseProgram]) -> tuple[PointwiseProgram, ...]:
    """As `canonical` for programs over one space that must stay in step: the first one's outputs decide the order."""
    shape = programs[0].shape
    dims = [d for d, extent in enumerate(shape) if extent != 1]
    walks = [o.strides for o in programs[0].outputs if o.target >= 0]
    walks += [i.strides for p in programs for i in p.inputs if i.source >= 0]
    dims.sort(key=lambda d: tuple(-abs(w[d]) for w in walks))
    ordered = [permuted(p, dims) for p in programs]
    groups = merge_dims(ordered[0].shape, [w for p in ordered for w in walks_of(p)])
    return tuple(regroup(p, groups) for p in ordered)


def permuted(program: PointwiseProgram, dims: Sequence[int]) -> PointwiseProgram:
    """The program with dimension dims[i] at place i; dimensions left out must have extent 1."""
    return walked(program, [program.shape[d] for d in dims], lambda strides: tuple(strides[d] for d in dims))


def restrict(program: PointwiseProgram, box: Box) -> PointwiseProgram:
    """The program over a box of its space, coordinates counted from the box's start."""

    def start(strides: Strides) -> int:
        return sum(first * stride for (first, _), stride in zip(box, strides, strict=True))

    return walked(program, [stop - first for first, stop in box], lambda strides: strides, start)


def feed(program: PointwiseProgram, source: PointwiseProgram | Instruction) -> PointwiseProgram:
    """An epilogue without its anchor: result 0 comes from `source`, a program over the same space with one register
    output, or a `constant` instruction. Further outputs of the source are stored as well."""
    if isinstance(source, Instruction):
        source = PointwiseProgram(program.shape, (), (source,), (ProgramOutput(0, -1),))
    own = [i for i in program.inputs if i.source >= 0]
    first, added, width = len(source.inputs), len(own), len(source.inputs) + len(own)
    value = next(o.value for o in source.outputs if o.target < 0)

    def of_source(number: int) -> int:
        return number if number < first else number + added

    numbers: list[int] = []  # of the epilogue's inputs, in the joined program
    place = first
    for item in program.inputs:
        numbers.append(place if item.source >= 0 else of_source(value))
        place += item.source >= 0
    shift = width + len(source.instructions) - len(program.inputs)

    def of_program(number: int) -> int:
        return number if number < 0 else numbers[number] if number < len(numbers) else number + shift

    before = [replace(i, args=tuple(of_source(a) if a >= 0 else a for a in i.args)) for i in source.instructions]
    behind = [replace(i, args=tuple(of_program(a) for a in i.args)) for i in program.instructions]
    stores = [replace(o, value=of_source(o.value)) for o in source.outputs if o.target >= 0]
    return PointwiseProgram(
        program.shape,
        (*source.inputs, *own),
        (*before, *behind),
        (*(replace(o, value=of_program(o.value)) for o in program.outputs), *stores),
    )


def runs_of_range(shape: Sequence[int], begin: int, end: int) -> list[Box]:
    """Disjoint boxes whose union is the row-major index range [begin, end) of `shape`; at most 2*rank - 1 of them."""
    if begin >= end:
        return []
    if not shape:
        return [()]
    if len(shape) == 1:
        return [((begin, end),)]
    inner = prod(shape[1:])
    first, last = begin // inner, (end - 1) // inner
    if first == last:
        return [
            ((first, first + 1), *box) for box in runs_of_range(shape[1:], begin - first * inner, end - first * inner)
        ]
    boxes: list[Box] = []
    if begin % inner:
        boxes += [((first, first + 1), *box) for box in runs_of_range(shape[1:], begin - first * inner, inner)]
        first += 1
    stop = last + 1 if end % inner == 0 else last
    if stop > first:
        boxes.append(((first, stop), *((0, d) for d in shape[1:])))
    if end % inner:
        boxes += [((last, last + 1), *box) for box in runs_of_range(shape[1:], 0, end - last * inner)]
    return boxes


def exact_regions(box: Box, strides: Sequence[int], itemsize: int, offset: int = 0) -> tuple[Region, ...]:
    """As `regions_of_box`, but one region per outer index, however many: writes must not be over-claimed."""
    cover = regions_of_box(box, strides, itemsize, offset)
    if sum(r.nbytes for r in cover) == itemsize * prod(
        stop - start for (start, stop), s in zip(box, strides, strict=True) if s
    ):
        return cover
    moving = sorted(((abs(s), d) for d, s in enumerate(strides) if s and box[d][1] - box[d][0] > 1), reverse=True)
    runs = 2 if moving[-1][0] == 1 else 1  # levels that one region can express: a run of elements and a count of runs
    outer = [d for _, d in moving[:-runs]]
    part = tuple((start, start + 1) if d in outer else (start, stop) for d, (start, stop) in enumerate(box))
    first = regions_of_box(part, strides, itemsize, offset)
    steps = [[i * strides[d] * itemsize for i in range(box[d][1] - box[d][0])] for d in outer]
    return tuple(region.shifted(sum(step)) for step in product(*steps) for region in first)
