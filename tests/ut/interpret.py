"""Bodies evaluated with NumPy: what sub-operators mean, without any kernel.

`run_subops` runs sub-operators one after another on flat typed arrays that the caller hands out per operand (buffers
by name, or slices of one arena by address, so that wrong reuse of memory shows). Programs load everything before they
store anything, as kernels do per element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, PointwiseProgram, SubOperator, View
from superkernel.ir.graph import Graph
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.table import find_op
from superkernel.reference import run_reference
from superkernel.scheduler.grouping import Grouping, view_chain
from superkernel.scheduler.schedule import Schedule, Space

Flat = NDArray[Any]


def strided(flat: Flat, shape: Sequence[int], strides: Sequence[int], offset: int) -> Flat:
    """The view of a flat array; every index is checked to stay inside."""
    if 0 in shape:
        return np.zeros(shape, flat.dtype)
    ends = [(d - 1) * s for d, s in zip(shape, strides, strict=True)]
    low, high = offset + sum(min(0, e) for e in ends), offset + sum(max(0, e) for e in ends)
    assert low >= 0, "view starts before its operand"
    assert high < flat.size, "view ends behind its operand"
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [s * flat.itemsize for s in strides])


def run_program(program: PointwiseProgram, operands: Sequence[Flat], results: Sequence[Flat]) -> Flat | None:
    """Run a program; returns the value for the anchor's slot, if it has one. All stores happen last."""
    values: list[Flat] = []
    for item in program.inputs:
        if item.source >= 0:
            values.append(strided(operands[item.source], program.shape, item.strides, item.offset).copy())
        else:
            values.append(results[-1 - item.source])
    for code in program.instructions:
        if code.op == "constant":
            values.append(np.full(program.shape, code.attr("value"), code.dtype.numpy))
            continue
        row = find_op(code.op)
        assert row is not None
        attrs = canonical_attrs(row, dict(code.attrs))
        (value,) = run_reference(row, [values[a] for a in code.args], attrs, (TensorType(code.dtype, program.shape),))
        values.append(value)
    slot = None
    for out in program.outputs:
        value = values[out.value]
        if out.target < 0:
            slot = value
        else:
            strided(operands[out.target], program.shape, out.strides, out.offset)[...] = value
    return slot


def run_body(body: Body, operands: Sequence[Flat]) -> None:
    """Run one body on its operands."""
    results: Sequence[Flat] = ()
    if body.op is not None:
        row = find_op(body.op)
        assert row is not None
        feeds: list[Flat | None] = []
        for feed, kind in zip(body.anchor_inputs, body.anchor_input_types, strict=True):
            if feed is None or kind is None:
                feeds.append(None)
            elif isinstance(feed, View):
                assert feed.shape == kind.shape
                feeds.append(strided(operands[feed.operand], feed.shape, feed.strides, feed.offset).copy())
            else:
                assert feed.shape == kind.shape
                feeds.append(run_program(feed, operands, ()))
        results = run_reference(row, feeds, body.attr, body.anchor_outputs)
    run_program(body.epilogue, operands, results)


def run_subops(subops: Sequence[SubOperator], operand: Callable[[SubOperator, int], Flat]) -> None:
    """Run all in order; `operand(sub, i)` is the flat array of operand i."""
    for sub in subops:
        run_body(sub.body, [operand(sub, i) for i in range(len(sub.body.operands))])


def garbage(dtype: DType, size: int) -> Flat:
    """Memory that nobody wrote yet."""
    return np.full(size, 0xA5, np.uint8).repeat(dtype.itemsize)[: size * dtype.itemsize].view(dtype.numpy).copy()


def interpret_grouping(
    grouping: Grouping, graph: Graph, inputs: Mapping[str, Any]
) -> tuple[list[Flat], dict[str, Flat]]:
    """Outputs in order and next state contents, every buffer an array of its own (states: one per state)."""
    memory: dict[object, Flat] = {}
    for name, buffer in grouping.buffers.items():
        key: object = name if buffer.address is None or buffer.address.space is Space.CONSTANT else buffer.address
        if name in inputs:
            memory[key] = np.ascontiguousarray(inputs[name]).reshape(-1).copy()
        elif name in graph.states:
            memory[key] = graph.states[name].reshape(-1).copy()
        elif name in grouping.constants:
            memory[key] = np.ascontiguousarray(grouping.constants[name]).reshape(-1)
        else:
            memory.setdefault(key, garbage(buffer.type.dtype, buffer.type.size))

    def operand(sub: SubOperator, i: int) -> Flat:
        kind = grouping.buffers[sub.values[i]].type
        *_, (name, buffer, offset) = view_chain(grouping.buffers, sub.values[i])
        whole = memory[name if buffer.address is None or buffer.address.space is Space.CONSTANT else buffer.address]
        return whole[offset // kind.dtype.itemsize :][: kind.size]

    run_subops(grouping.subops, operand)
    by_address = {
        (b.address.space, b.address.slot): b.address for b in grouping.buffers.values() if b.address is not None
    }
    outputs = []
    for slot, name in enumerate(graph.outputs):
        outputs.append(memory[by_address[Space.OUTPUT, slot]].reshape(graph.types[name].shape))
    states = {
        name: memory[by_address[Space.STATE, i]].reshape(graph.types[name].shape) for i, name in enumerate(graph.states)
    }
    return outputs, states


def interpret_schedule(
    schedule: Schedule, graph: Graph, inputs: Mapping[str, Any], constants: Mapping[str, Flat]
) -> tuple[list[Flat], dict[str, Flat]]:
    """The same on the planned addresses: one arena of garbage, constants unpacked."""
    arena = np.full(schedule.arena_bytes, 0xA5, np.uint8)
    blocks: dict[tuple[Space, int], NDArray[np.uint8]] = {(Space.ARENA, 0): arena}
    for i, name in enumerate(graph.inputs):
        blocks[Space.INPUT, i] = np.ascontiguousarray(inputs[name]).reshape(-1).view(np.uint8).copy()
    for i, name in enumerate(graph.outputs):
        blocks[Space.OUTPUT, i] = np.full(graph.types[name].nbytes, 0xA5, np.uint8)
    for i, name in enumerate(graph.states):
        blocks[Space.STATE, i] = graph.states[name].reshape(-1).view(np.uint8).copy()

    def operand(sub: SubOperator, i: int) -> Flat:
        address, kind = schedule.addresses[sub.index][i], sub.body.operands[i].type
        if address.space is Space.CONSTANT:
            return np.ascontiguousarray(constants[sub.values[i]]).reshape(-1)
        raw = blocks[address.space, address.slot]
        return raw[address.offset : address.offset + kind.nbytes].view(kind.dtype.numpy)

    run_subops(schedule.subops, operand)
    outputs = [
        blocks[Space.OUTPUT, i].view(graph.types[n].dtype.numpy).reshape(graph.types[n].shape)
        for i, n in enumerate(graph.outputs)
    ]
    states = {
        n: blocks[Space.STATE, i].view(graph.types[n].dtype.numpy).reshape(graph.types[n].shape)
        for i, n in enumerate(graph.states)
    }
    return outputs, states
