"""The common geometry of row-wise operators: softmax, norms, reductions, scans.

Model: such an operator looks at a tensor as outer x row x inner: statistics run over the `row` dimensions, once for
every (outer, inner) index. A `RowSpace` brings all programs of a body (one per input slot, and the epilogue) into
that one space: dimensions reordered (the one the data is contiguous along last), merged, slots broadcast. Where the
data is contiguous along a row dimension (`inner` is 1) vectors lie along the row; else they lie along `inner`, one
row per lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from superkernel.core.errors import InternalError
from superkernel.ir.body import Body, PointwiseProgram, ProgramInput, ProgramOutput, View
from superkernel.ir.collapse import merge_dims, regroup, walked, walks_of


def slot_program(body: Body, slot: int) -> PointwiseProgram | None:
    """The program that yields an anchor input: its prologue, or a plain load through its view. None for an absent
    input."""
    if slot >= len(body.anchor_inputs):
        return None
    source, kind = body.anchor_inputs[slot], body.anchor_input_types[slot]
    if isinstance(source, View) and kind is not None:
        load = ProgramInput(source.operand, kind.dtype, source.strides, source.offset)
        return PointwiseProgram(source.shape, (load,), (), (ProgramOutput(0, -1),))
    return source if isinstance(source, PointwiseProgram) else None


def input_program(body: Body, slot: int) -> PointwiseProgram:
    """`slot_program` of an input that must be there. Raises InternalError where it is absent."""
    program = slot_program(body, slot)
    if program is None:
        raise InternalError("an input is absent", location=str(body.op), found=slot)
    return program


def remap(program: PointwiseProgram, shape: Sequence[int], dims: Sequence[int | None]) -> PointwiseProgram:
    """The program over `shape`: dimension d of the new space is dimension dims[d] of the old one, None for a
    broadcast one."""

    def walk(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(0 if d is None or program.shape[d] == 1 else strides[d] for d in dims)

    return walked(program, shape, walk)


def split_dim(program: PointwiseProgram, dim: int, inner: int) -> PointwiseProgram:
    """Dimension `dim` as two: (extent / inner, inner)."""

    def walk(strides: tuple[int, ...]) -> tuple[int, ...]:
        return (*strides[:dim], strides[dim] * inner, strides[dim], *strides[dim + 1 :])

    shape = program.shape
    return walked(program, (*shape[:dim], shape[dim] // inner, inner, *shape[dim + 1 :]), walk)


def flip_dim(program: PointwiseProgram, dim: int) -> PointwiseProgram:
    """The program with dimension `dim` walked backwards."""
    last = program.shape[dim] - 1

    def walk(strides: tuple[int, ...]) -> tuple[int, ...]:
        return (*strides[:dim], -strides[dim], *strides[dim + 1 :])

    return walked(program, program.shape, walk, lambda strides: last * strides[dim])


@dataclass(frozen=True)
class RowSpace:
    """See the module docstring. `programs[k]` is slot k (None: absent), the last one the epilogue; all over outer +
    row + inner."""

    outer: tuple[int, ...]
    row: tuple[int, ...]
    inner: int  # 1: vectors lie along the last row dimension
    programs: tuple[PointwiseProgram | None, ...]

    @property
    def epilogue(self) -> PointwiseProgram:
        """The program behind the row operator."""
        program = self.programs[-1]
        assert program is not None
        return program

    @property
    def data(self) -> PointwiseProgram:
        """The program that reads slot 0, the values of the row."""
        program = self.programs[0]
        assert program is not None
        return program

    @property
    def row_size(self) -> int:
        """Elements of a row."""
        return prod(self.row)


def row_space(shape: tuple[int, ...], row_dims: Sequence[int], programs: Sequence[PointwiseProgram | None]) -> RowSpace:
    """Programs over one `shape` (slots first, the epilogue last), with the statistics over `row_dims`."""
    rows = set(row_dims)
    order = _order(shape, programs)
    kept = [d for d in order if d not in rows]
    moving_rows = [d for d in order if d in rows]
    last_row = max((k for k, d in enumerate(order) if d in rows and shape[d] != 1), default=-1)
    trailing = (
        [d for k, d in enumerate(order) if d not in rows and shape[d] != 1 and k > last_row] if last_row >= 0 else []
    )
    if last_row < 0:  # every row is a single element: vectors lie along the data
        trailing = [d for d in kept if shape[d] != 1]
    leading = [d for d in kept if d not in trailing]
    dims = leading + moving_rows + trailing
    space = tuple(shape[d] for d in dims)
    moved = [None if p is None else remap(p, space, dims) for p in programs]
    fences = (len(leading), len(leading) + len(moving_rows))
    walks = [w for p in moved if p is not None for w in walks_of(p)]
    groups = merge_dims(space, walks, fences)
    outer = [g for g in groups if g[0] < fences[0]]
    row = [g for g in groups if fences[0] <= g[0] < fences[1]]
    inner = [g for g in groups if g[0] >= fences[1]]
    final = [*outer, *inner[:-1], *row, *inner[-1:]] if inner else [*outer, *row]
    flat = [d for g in final for d in g]
    position = {d: k for k, d in enumerate(flat)}
    regrouped = tuple(tuple(position[d] for d in g) for g in final)
    ordered = tuple(space[d] for d in flat)
    merged = tuple(None if p is None else regroup(remap(p, ordered, flat), regrouped) for p in moved)
    sizes = [prod(space[d] for d in g) for g in final]
    count = len(final) - len(row) - (1 if inner else 0)
    if not inner:
        return RowSpace(tuple(sizes[:count]), tuple(sizes[count:]), 1, merged)
    return RowSpace(tuple(sizes[:count]), tuple(sizes[count:-1]), sizes[-1], merged)


def _order(shape: tuple[int, ...], programs: Sequence[PointwiseProgram | None]) -> list[int]:
    """Dimensions by how far the data moves along them, farthest first."""
    data = programs[0]
    walks = [i.strides for i in data.inputs if i.source >= 0] if data is not None else []
    key = max(walks, key=lambda w: sum(1 for s in w if s), default=(0,) * len(shape))
    return sorted(range(len(shape)), key=lambda d: -abs(key[d]) if key[d] else float("-inf"))
