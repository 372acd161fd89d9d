"""From a finished cluster to its `Body`: buffers become numbered operands, cells become SSA programs without dead code.

Canonical: operands stand in order of first use within their role (inputs, constants, outputs), SSA numbers in order
of first use, so that equal work gives equal bodies whatever the buffers are called. Where a target allows it
(`begins_inside`), operands are parts of their buffers, so that it does not matter either where in a buffer work begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from superkernel.core.tensor import TensorType
from superkernel.ir.body import (
    AnchorInput,
    Body,
    Instruction,
    Operand,
    PointwiseProgram,
    ProgramInput,
    ProgramOutput,
    Role,
    View,
)
from superkernel.scheduler.affine import Ref, Shape
from superkernel.scheduler.cluster import Cell, Cluster, Load, Prologue, Result, Store
from superkernel.scheduler.values import Values


def build_body(values: Values, cluster: Cluster) -> tuple[Body, tuple[str, ...]]:
    """The body and the buffer behind each operand."""
    anchor = cluster.anchor
    live = live_cells(cluster.cells, [s.cell for s in cluster.stores])
    roles = _roles(values, cluster, live)
    order = sorted(roles, key=lambda name: _RANK[roles[name]])  # stable: first use within the role
    index = {name: i for i, name in enumerate(order)}
    types = {name: values.buffers[name].type for name in order}
    if anchor is not None and anchor.in_place is not None:  # both names are the same bytes
        assert isinstance(anchor.feeds[0], Ref)
        index[anchor.in_place] = index[anchor.feeds[0].buffer]
    operands = tuple([_operand(roles[name], types[name]) for name in order])
    epilogue = _program(cluster.shape, cluster.cells, live, cluster.stores, index)
    if anchor is None:
        return Body(None, (), operands, (), (), (), epilogue), tuple(order)
    feeds = tuple(_feed(feed, index) for feed in anchor.feeds)
    attrs = tuple(anchor.node.attrs.items())
    body = Body(anchor.node.op, attrs, operands, feeds, anchor.types, anchor.outputs, epilogue)
    return body, tuple(order)


def parts_only(values: Values, body: Body, names: tuple[str, ...]) -> tuple[Body, tuple[str, ...]]:
    """The same where each operand begins with the first element that is touched of it, a part of its buffer."""
    moved, starts = _from_parts(body)
    found = list(names)
    for index, first in starts:
        operand = moved.operands[index]
        found[index] = values.part(names[index], first, operand.type, written=operand.role is Role.OUTPUT)
    return moved, tuple(found)


@lru_cache(maxsize=256)  # equal layers share their bodies
def _from_parts(body: Body) -> tuple[Body, tuple[tuple[int, int], ...]]:
    """The body on parts of buffers, and which operands these are, with the element that each begins with."""
    starts: dict[int, int] = {}
    operands = list(body.operands)
    for index, (first, stop) in _extents(body).items():
        role, dtype = operands[index].role, operands[index].type.dtype
        if first > 0 and role in (Role.INPUT, Role.OUTPUT):
            starts[index] = first
            operands[index] = Operand(role, TensorType(dtype, (stop - first,)))
    if not starts:
        return body, ()

    def moved(source: AnchorInput) -> AnchorInput:
        if isinstance(source, View):
            return replace(source, offset=source.offset - starts.get(source.operand, 0))
        return None if source is None else program(source)

    def program(source: PointwiseProgram) -> PointwiseProgram:
        inputs = tuple(replace(i, offset=i.offset - starts.get(i.source, 0)) for i in source.inputs)
        outputs = tuple(replace(o, offset=o.offset - starts.get(o.target, 0)) for o in source.outputs)
        return replace(source, inputs=inputs, outputs=outputs)

    feeds = tuple(map(moved, body.anchor_inputs))
    found = replace(body, operands=tuple(operands), anchor_inputs=feeds, epilogue=program(body.epilogue))
    return found, tuple(starts.items())


def _extents(body: Body) -> dict[int, tuple[int, int]]:
    """By operand the first element that a body touches, and the one behind the last."""
    found: dict[int, tuple[int, int]] = {}

    def walk(operand: int, shape: Shape, strides: Shape, offset: int) -> None:
        if operand < 0 or 0 in shape:
            return
        ends = [(d - 1) * s for d, s in zip(shape, strides, strict=True)]
        low, high = offset + sum(e for e in ends if e < 0), offset + sum(e for e in ends if e > 0)
        first, stop = found.get(operand, (low, 0))
        found[operand] = min(first, low), max(stop, high + 1)

    for source in (body.epilogue, *body.anchor_inputs):
        if isinstance(source, View):
            walk(source.operand, source.shape, source.strides, source.offset)
        elif source is not None:
            for item in source.inputs:
                walk(item.source, source.shape, item.strides, item.offset)
            for out in source.outputs:
                walk(out.target, source.shape, out.strides, out.offset)
    return found


# Made once where they are alike, as equal layers have them: then bodies are soon found equal.
_operand, _view = lru_cache(maxsize=1024)(Operand), lru_cache(maxsize=1024)(View)
_input, _output = lru_cache(maxsize=1024)(ProgramInput), lru_cache(maxsize=1024)(ProgramOutput)

_RANK = {Role.INPUT: 0, Role.CONSTANT: 1, Role.OUTPUT: 2, Role.INOUT: 2}


def live_cells(cells: list[Cell], wanted: Iterable[int]) -> list[int]:
    """Numbers of the cells that the wanted ones need, in order."""
    live: set[int] = set()
    stack = list(wanted)
    while stack:
        at = stack.pop()
        if at not in live:
            live.add(at)
            cell = cells[at]
            if isinstance(cell, Instruction):
                stack.extend(cell.args)
    return sorted(live)


def _roles(values: Values, cluster: Cluster, live: list[int]) -> dict[str, Role]:
    """Buffer -> role, in order of first use: anchor slots, prologues, epilogue."""
    roles: dict[str, Role] = {}

    def reads(buffer: str) -> None:
        roles.setdefault(buffer, Role.CONSTANT if values.buffers[buffer].is_constant else Role.INPUT)

    anchor = cluster.anchor
    stores = list(cluster.stores)
    if anchor is not None:
        for feed in anchor.feeds:
            if isinstance(feed, Ref):
                reads(feed.buffer)
            elif isinstance(feed, Prologue):
                for number in live_cells(feed.cells, [feed.value, *(s.cell for s in feed.stores)]):
                    if isinstance(cell := feed.cells[number], Load):
                        reads(cell.buffer)
                stores = [*feed.stores, *stores]
    for number in live:
        if isinstance(cell := cluster.cells[number], Load):
            reads(cell.buffer)
    for store in stores:
        roles[store.buffer] = Role.OUTPUT
    if anchor is not None and anchor.in_place is not None:
        roles[cluster.stores[0].buffer] = Role.INOUT
    return roles


def _feed(feed: Ref | Prologue | None, index: dict[str, int]) -> AnchorInput:
    if feed is None:
        return None
    if isinstance(feed, Ref):
        return _view(index[feed.buffer], feed.shape, feed.strides, feed.offset)
    live = live_cells(feed.cells, [feed.value, *(s.cell for s in feed.stores)])
    return _program(feed.shape, feed.cells, live, feed.stores, index, slot_value=feed.value)


def _program(
    shape: Shape,
    cells: list[Cell],
    live: list[int],
    stores: list[Store],
    index: dict[str, int],
    slot_value: int | None = None,
) -> PointwiseProgram:
    inputs: list[ProgramInput] = []
    code: list[Instruction] = []
    numbers: dict[int, int] = {}
    for at in live:
        cell = cells[at]
        if isinstance(cell, Load):
            numbers[at] = len(inputs)
            inputs.append(_input(index[cell.buffer], cell.dtype, _still(shape, cell.strides), cell.offset))
        elif isinstance(cell, Result):
            numbers[at] = len(inputs)
            inputs.append(_input(-1 - cell.index, cell.dtype))
    for at in live:
        cell = cells[at]
        if isinstance(cell, Instruction):
            numbers[at] = len(inputs) + len(code)
            code.append(Instruction(cell.op, tuple(numbers[a] for a in cell.args), cell.dtype, cell.attrs))
    outputs = [_output(numbers[slot_value], -1)] if slot_value is not None else []
    outputs += [_output(numbers[s.cell], index[s.buffer], _still(shape, s.strides), s.offset) for s in stores]
    return PointwiseProgram(shape, tuple(inputs), tuple(code), tuple(outputs))


@lru_cache(maxsize=4096)
def _still(shape: Shape, strides: Shape) -> Shape:
    """Strides with those of extent 1 set to 0: they mean nothing, and bodies that differ only there are equal."""
    return tuple(0 if d == 1 else s for d, s in zip(shape, strides, strict=True))
