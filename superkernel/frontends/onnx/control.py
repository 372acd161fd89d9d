"""Control flow of ONNX: If, Loop, Scan and SequenceMap, whose bodies are walked in their place.

A kernel is a straight line, so loops are unrolled: their number of turns must be known, or bounded. Conditions may be
known only at run time where nothing depends on them but values: of an If both branches are computed and one is
selected; a Loop that may end early goes through all its turns and keeps its values from the turn that ended it. Both
are exact, because operators have no effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from superkernel.builder.tensor import Tensor
from superkernel.core.errors import FileFormatError
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.types import element_type
from superkernel.frontends.onnx.values import LOST, Bound, TensorSequence

NODES_MAX = 1 << 16
"""Most nodes that a loop may become: what takes a minute or so to compile."""

RunBody: TypeAlias = Callable[[onnx.GraphProto, Sequence[Bound], str], list[Bound]]
"""Walks a body with values for its inputs, under a name for this turn; its outputs."""


def branch(call: OnnxCall, run: RunBody) -> list[Bound]:
    """If: the taken branch where the condition is known, else both and a selection."""
    condition = call.input(0)
    if condition.value.data is not None:
        way = bool(call.static_scalar(0))
        call.found.branches.append(way)
        return run(call.required("then_branch" if way else "else_branch"), (), "")
    then = run(call.required("then_branch"), (), "then/")
    other = run(call.required("else_branch"), (), "else/")
    if LOST in then or LOST in other:
        return [LOST] * len(then)
    if len(then) != len(other):
        found = f"{len(then)} and {len(other)}"
        raise call.contradiction("the branches have another number of outputs", found=found)
    return [_selected(call, condition, a, b, f"output {i}") for i, (a, b) in enumerate(zip(then, other, strict=True))]


def loop(call: OnnxCall, run: RunBody) -> list[Bound]:
    """Loop: its turns one after the other."""
    body, carried = call.required("body"), list(call.values[2:])
    turns = int(call.static_scalar(0)) if call.has(0) else None
    condition = call.optional(1)
    scanned: list[list[Bound]] = [[] for _ in body.output[1 + len(carried) :]]
    turn = 0
    # None: the loop goes on, whatever happens; else a scalar that says so, known or not
    while (turns is None or turn < turns) and not _is_false(condition):
        if turns is None and condition is not None and condition.value.data is None:
            message = "a loop without a largest number of turns, whose end is known at run time only"
            raise call.computed(condition, message, ", input 1")
        _refuse_long(call, body, turn, turns)
        number = call.constant(np.asarray(turn, np.int64))
        entered = call.constant(np.asarray(True)) if condition is None else condition
        outputs = run(body, (number, entered, *carried), f"{turn}/")
        if LOST in outputs:
            return [LOST] * len(call.node.output)
        after, found, rows = outputs[0], outputs[1 : 1 + len(carried)], outputs[1 + len(carried) :]
        if condition is None or condition.value.data is not None:
            carried = found
        else:
            if scanned:
                raise call.computed(condition, "the condition decides how long the loop's outputs are")
            carried = [
                _selected(call, condition, new, old, f"carried value {i}")
                for i, (new, old) in enumerate(zip(found, carried, strict=True))
            ]
        for rows_of, row in zip(scanned, rows, strict=True):
            rows_of.append(row)
        condition = _going_on(call, condition, after)
        turn += 1
    kinds = body.output[1 + len(carried) :]
    stacked = [_stacked(call, rows, 0, info) for rows, info in zip(scanned, kinds, strict=True)]
    return [*carried, *stacked]


def scan(call: OnnxCall, run: RunBody) -> list[Bound]:
    """Scan: a turn per element of the scanned inputs, whose extent is a shape's and so known."""
    body, count = call.required("body"), int(call.required("num_scan_inputs"))
    first = 0 if call.opset >= 9 else 1  # ahead of the states: lengths of sequences
    operands = [call.input(i) for i in range(first, len(call.values))]
    if not 0 < count <= len(operands):
        raise FileFormatError("num_scan_inputs is out of range", location=call.where, found=count)
    states, inputs = operands[: len(operands) - count], operands[len(operands) - count :]
    if call.opset >= 9:
        axes = [call.axis(a, t.rank) for a, t in zip(_per(call, "scan_input_axes", count), inputs, strict=True)]
        return _scanned(call, run, body, states, inputs, axes, _per(call, "scan_input_directions", count))
    if call.has(0):
        raise call.unsupported("lengths of sequences are not supported", found="input 'sequence_lens'")
    backwards = _per(call, "directions", count)
    for tensor in operands:
        call.require_rank(tensor, 1)
    if not operands[0].shape[0]:
        raise call.unsupported("a batch of no elements is not supported", found=operands[0].type)
    results = []
    for batch in range(operands[0].shape[0]):
        mine = [_element(call, t, 0, batch) for t in operands]
        pair = mine[: len(states)], mine[len(states) :]
        results.append(_scanned(call, run, body, *pair, [0] * count, backwards, f"{batch}/"))
        if LOST in results[-1]:
            return results[-1]
    return [
        _stacked(call, list(rows), 0, info) for rows, info in zip(zip(*results, strict=True), body.output, strict=True)
    ]


def sequence_map(call: OnnxCall, run: RunBody) -> list[Bound]:
    """SequenceMap: the body once per element of the first sequence; other tensors are the same in each turn."""
    body, first = call.required("body"), call.sequence(0)
    results = []
    for turn in range(len(first.items)):
        _refuse_long(call, body, turn, len(first.items))
        given = []
        for index, value in enumerate(call.values):
            if isinstance(value, TensorSequence) and len(value.items) != len(first.items):
                raise FileFormatError(
                    "sequences of different lengths",
                    location=f"{call.where}, input {index}",
                    expected=len(first.items),
                    found=len(value.items),
                )
            given.append(value.items[turn] if isinstance(value, TensorSequence) else value)
        results.append(run(body, given, f"{turn}/"))
        if LOST in results[-1]:
            return results[-1]
    columns: list[tuple[Any, ...]] = list(zip(*results, strict=True)) if results else [()] * len(body.output)
    return [TensorSequence(tuple(column)) for column in columns]


CONTROL: dict[str, Callable[[OnnxCall, RunBody], list[Bound]]] = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
    "SequenceMap": sequence_map,
}
"""The operators with bodies, all of the standard's own domain."""


def _scanned(
    call: OnnxCall,
    run: RunBody,
    body: onnx.GraphProto,
    states: Sequence[Tensor],
    inputs: Sequence[Tensor],
    axes: Sequence[int],
    backwards: Sequence[int],
    prefix: str = "",
) -> list[Bound]:
    """The final states, and each turn's other outputs stacked."""
    for tensor in inputs:
        call.require_rank(tensor, 1)
    extents = {t.shape[axis] for t, axis in zip(inputs, axes, strict=True)}
    if len(extents) != 1:
        raise FileFormatError("scanned inputs of different lengths", location=call.where, found=sorted(extents))
    (turns,) = extents
    current: list[Bound] = list(states)
    count = len(body.output) - len(states)
    rows: list[list[Bound]] = [[] for _ in range(count)]
    for turn in range(turns):
        _refuse_long(call, body, turn, turns)
        elements = [
            _element(call, t, axis, turns - 1 - turn if back else turn)
            for t, axis, back in zip(inputs, axes, backwards, strict=True)
        ]
        outputs = run(body, (*current, *elements), f"{prefix}{turn}/")
        if LOST in outputs:
            return outputs
        current = outputs[: len(states)]
        for row, value in zip(rows, outputs[len(states) :], strict=True):
            row.append(value)
    if call.opset >= 9:
        targets, reverse = _per(call, "scan_output_axes", count), _per(call, "scan_output_directions", count)
    else:
        targets, reverse = [0] * count, [0] * count
    infos = body.output[len(states) :]
    stacked = [
        _stacked(call, row[::-1] if back else row, axis, info)
        for row, axis, back, info in zip(rows, targets, reverse, infos, strict=True)
    ]
    return [*current, *stacked]


def _per(call: OnnxCall, name: str, count: int) -> list[int]:
    """An attribute with a number per input or output; zeros where it is left out."""
    found = list(call.attr(name) or [0] * count)
    if len(found) != count:
        raise FileFormatError(
            f"attribute {name!r} has another length", location=call.where, expected=count, found=found
        )
    return found


def _element(call: OnnxCall, x: Tensor, axis: int, index: int) -> Tensor:
    """`x` at an index of an axis, which goes."""
    return call.reshape(call.slice(x, axis, index, index + 1), x.shape[:axis] + x.shape[axis + 1 :])


def _stacked(call: OnnxCall, rows: Sequence[Bound], axis: int, info: onnx.ValueInfoProto) -> Tensor:
    """Rows of one type along a new axis. Of no rows the type is what the body declares."""
    tensors = [row for row in rows if isinstance(row, Tensor)]
    if len(tensors) != len(rows):
        raise call.unsupported("only tensors can be stacked", found=f"output {info.name!r} of the body")
    if not tensors:
        tensor = info.type.tensor_type
        sizes = [d.dim_value for d in tensor.shape.dim if d.WhichOneof("value") == "dim_value"]
        if not tensor.HasField("shape") or len(sizes) != len(tensor.shape.dim):
            raise call.unsupported("a loop without turns, whose output's shape nobody declares", found=info.name)
        dtype = element_type(tensor.elem_type, f"{call.where}, output {info.name!r} of the body")
        return call.constant(np.zeros((0, *sizes), dtype.numpy))
    kinds = {t.type for t in tensors}
    if len(kinds) > 1:
        raise call.unsupported(
            "a loop's turns give outputs of different types",
            expected=str(tensors[0].type),
            found=", ".join(sorted(str(k) for k in kinds - {tensors[0].type})),
        )
    rank = tensors[0].rank + 1
    at = call.axis(axis, rank)
    shape = (*tensors[0].shape[:at], 1, *tensors[0].shape[at:])
    return call.concat([call.reshape(t, shape) for t in tensors], at)


def _selected(call: OnnxCall, condition: Tensor, then: Bound, other: Bound, what: str) -> Bound:
    """`then` where the condition holds, else `other`. UnsupportedError where their types differ."""
    if then is other:
        return then
    if isinstance(then, TensorSequence) and isinstance(other, TensorSequence) and len(then.items) == len(other.items):
        pairs = zip(then.items, other.items, strict=True)
        items = [_selected(call, condition, a, b, what) for a, b in pairs]
        return TensorSequence(tuple(t for t in items if isinstance(t, Tensor)))
    if isinstance(then, Tensor) and isinstance(other, Tensor) and then.type == other.type:
        return call.emit("where", call.reshape(condition, ()), then, other)
    message = f"the condition decides what {what} is: {_kind(then)}, or {_kind(other)}"
    raise call.computed(condition, message)


def _kind(value: Bound) -> str:
    if isinstance(value, Tensor):
        return str(value.type)
    return f"a sequence of {len(value.items)}" if isinstance(value, TensorSequence) else "an empty optional"


def _going_on(call: OnnxCall, before: Tensor | None, after: Bound) -> Tensor:
    """Whether the loop goes on behind a turn: once it has ended, it stays so."""
    if not isinstance(after, Tensor) or after.type.dtype.numpy != np.bool_ or after.type.size != 1:
        raise FileFormatError("a loop's condition is one bool", location=call.where, found=_kind(after))
    if before is None or before.value.data is not None:
        return after
    return call.emit("logical_and", call.reshape(before, ()), call.reshape(after, ()))


def _is_false(condition: Tensor | None) -> bool:
    return condition is not None and condition.value.data is not None and not condition.value.data.all()


def _refuse_long(call: OnnxCall, body: onnx.GraphProto, turn: int, turns: int | None) -> None:
    """UnsupportedError where the loop is, or has become, too long to be unrolled."""
    if max(turn + 1, turns or 0) * max(1, len(body.node)) > NODES_MAX:
        raise call.unsupported(
            "the loop is too long to be unrolled",
            expected=f"at most {NODES_MAX} nodes",
            found=f"{'endless' if turns is None else turns} turns of {len(body.node)} nodes",
        )
