"""What operators do to the places of elements: one rule per operator or family, in `mixing`, `moving`, `products` and
`finding`.

Model: an operator is applied twice, to tensors and to their padded counterparts. Its inputs are `PaddedValue`s: it is
known that each element of the tensor equals the one at its place in the padded tensor, whatever the rest holds. A rule
says where the elements of the results lie, or raises UnsupportedError, in plain words, where they need not be the same.
It may go by what results are computed from, never by what padding holds.

An operator without a rule of its own is the same function of the same operands where nothing is padded; else it is
refused. That is right for whatever operator comes.

Operators that take elements of an axis together ask for *guards* where it is padded: what the padding holds is made the
identity of what they do (`guards.py`). So attention hides the keys in the padding, and makes their values 0 as well: a
weight of 0 hides a value only if that is finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from superkernel.ops.opdef import Family
from superkernel.padding import finding, mixing, moving, products
from superkernel.padding.padded import PaddedNode, PaddedResult, Rule, broadcast_result, whole_operands


def apply_rule(step: PaddedNode) -> PaddedResult:
    """Where the results' elements lie. Raises UnsupportedError, without location."""
    definition = step.definition
    rule = _RULES.get(definition.name) or _FAMILIES.get(definition.family, whole_operands)
    result = rule(step)
    if definition.name in _MOVES and (moved := step.input(0)).below is not None:
        headless = not moved.headed or (definition.name == "slice" and moving.leaves_first(step))
        return replace(result, below=moved.below) if headless else result
    return result


def _pointwise(step: PaddedNode) -> PaddedResult:
    step.same_attrs()
    return broadcast_result(step, step.inputs)


_MOVES = frozenset({"reshape", "transpose", "slice", "expand", "identity", "cast", "gather"})
"""Operators whose results are elements of their first operand."""
_FAMILIES: Mapping[Family, Rule] = {
    Family.POINTWISE: _pointwise,
    Family.RESHAPE: moving.reshape,
    Family.REDUCE: mixing.reduced,
    Family.CONV: mixing.samples,
}
_RULES: Mapping[str, Rule] = {
    "conv": mixing.convolved,
    "conv_transpose": mixing.convolved,
    "max_pool": mixing.largest,
    "global_max_pool": mixing.largest,
    "lp_pool": mixing.summed,
    "avg_pool": mixing.averaged,
    "global_avg_pool": mixing.mean_of_all,
    "transpose": moving.transpose,
    "slice": moving.slice,
    "split": moving.split,
    "expand": lambda step: broadcast_result(step, step.inputs),
    "concat": moving.concat,
    "pad": moving.pad,
    "tile": moving.tile,
    "gather": moving.gather,
    "gather_elements": moving.gather_elements,
    "gather_nd": moving.gather_nd,
    "scatter_elements": moving.scatter,
    "scatter_nd": moving.scatter,
    "trilu": moving.triangle,
    "one_hot": moving.one_hot,
    "resize": mixing.resized,
    "topk": mixing.topk,
    "cumsum": mixing.scan,
    "softmax": mixing.softmax,
    "log_softmax": mixing.softmax,
    "softmax_integer": mixing.line,
    "lp_norm": mixing.lp_norm,
    "layer_norm": mixing.tail,
    "rms_norm": mixing.tail,
    "group_norm": mixing.samples,
    "instance_norm": mixing.samples,
    "batch_norm": mixing.channels,
    "lrn": mixing.channels,
    "matmul": products.product,
    "gemm": products.product,
    "matmul_integer": products.product,
    "block_matmul": products.rows,
    "attention": products.attention,
    "rope": products.rope,
    "nonzero": finding.nonzero,
    "non_max_suppression": finding.suppression,
}
