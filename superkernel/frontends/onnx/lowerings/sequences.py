"""Sequences and optionals: what they hold is known while the model is walked, so their operators leave nothing."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.errors import FileFormatError
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers
from superkernel.frontends.onnx.values import EMPTY, Result, TensorSequence


@lowers("SequenceEmpty")
def sequence_empty(call: OnnxCall) -> TensorSequence:
    return TensorSequence()


@lowers("SequenceConstruct")
def sequence_construct(call: OnnxCall) -> TensorSequence:
    return TensorSequence(tuple(call.input(i) for i in range(len(call.values))))


@lowers("SequenceAt")
def sequence_at(call: OnnxCall) -> Tensor:
    items = call.sequence(0).items
    return items[_position(call, len(items) - 1)]


@lowers("SequenceInsert")
def sequence_insert(call: OnnxCall) -> TensorSequence:
    items = call.sequence(0).items
    at = _position(call, len(items), 2) if call.has(2) else len(items)
    return TensorSequence((*items[:at], call.input(1), *items[at:]))


@lowers("SequenceErase")
def sequence_erase(call: OnnxCall) -> TensorSequence:
    items = call.sequence(0).items
    at = _position(call, len(items) - 1) if call.has(1) else len(items) - 1
    return TensorSequence(items[:at] + items[at + 1 :])


@lowers("SequenceLength")
def sequence_length(call: OnnxCall) -> Tensor:
    return call.constant(np.asarray(len(call.sequence(0).items), np.int64))


@lowers("SplitToSequence")
def split_to_sequence(call: OnnxCall) -> TensorSequence:
    """Parts of given sizes; without sizes one per index, whose axis goes unless `keepdims`."""
    x = call.input(0)
    axis = call.axis(call.attr("axis", 0), x.rank)
    sizes = _part_sizes(call, x.shape[axis])
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    parts = [call.slice(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]
    if not call.has(1) and not call.attr("keepdims", 1):
        parts = [call.reshape(part, x.shape[:axis] + x.shape[axis + 1 :]) for part in parts]
    return TensorSequence(tuple(parts))


@lowers("ConcatFromSequence")
def concat_from_sequence(call: OnnxCall) -> Tensor:
    items, stacked = call.sequence(0).items, bool(call.attr("new_axis", 0))
    if not items:
        raise call.unsupported("a concatenation of no tensors")
    axis = call.axis(call.required("axis"), items[0].rank + stacked)
    if stacked:
        items = tuple(call.reshape(t, (*t.shape[:axis], 1, *t.shape[axis:])) for t in items)
    return call.concat(items, axis)


@lowers("Optional")
def optional(call: OnnxCall) -> Result:
    return _held(call)


@lowers("OptionalHasElement")
def optional_has_element(call: OnnxCall) -> Tensor:
    return call.constant(np.asarray(_held(call) is not EMPTY))


@lowers("OptionalGetElement")
def optional_get_element(call: OnnxCall) -> Result:
    held = _held(call)
    if held is EMPTY:
        raise FileFormatError("the optional is empty", location=call.where)
    return held


def _part_sizes(call: OnnxCall, extent: int) -> list[int]:
    """Extents of the parts: one each without input 1, all alike but the last for a scalar, else as listed."""
    if not call.has(1):
        return [1] * extent
    split = call.static(1)
    sizes = [int(v) for v in split.reshape(-1)]
    if split.ndim == 0 and sizes[0] > 0:
        sizes = [min(sizes[0], extent - start) for start in range(0, extent, sizes[0])]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise FileFormatError("the parts do not add up", location=call.where, expected=extent, found=sizes)
    return sizes


def _held(call: OnnxCall) -> Result:
    """What the optional holds that is the first input; a tensor or a sequence holds itself."""
    value = call.values[0] if call.values else EMPTY
    return value if isinstance(value, Tensor | TensorSequence) else EMPTY


def _position(call: OnnxCall, last: int, index: int = 1) -> int:
    """The position that input `index` gives, counted from the start. FileFormatError where it is beyond the ends."""
    position = int(call.static_scalar(index))
    if not -last - 1 <= position <= last:
        raise FileFormatError(
            "position out of range", location=call.where, expected=f"{-last - 1} to {last}", found=position
        )
    return position % (last + 1) if last >= 0 else 0
