"""Scaled dot-product attention."""

from __future__ import annotations

from math import prod

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.emitter import scaled_query
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


@lowers("scaled_dot_product_attention")
def attention(call: TorchCall) -> Tensor:
    q, k, v, mask = (call.optional(n) for n in ("query", "key", "value", "attn_mask"))
    assert q is not None
    assert k is not None
    assert v is not None
    if float(call.get("dropout_p", 0.0)) > 0:
        raise call.unsupported("dropout of attention draws random numbers", hint="dropout_p=0.0 outside training")
    outer = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3]) if q.rank >= 3 else ()
    if not call.get("enable_gqa", False) and q.rank >= 3:
        heads = np.broadcast_shapes(*(t.shape[-3:-2] for t in (q, k, v)))
        q, k, v = (call.expand(t, (*outer, *heads, *t.shape[-2:])) for t in (q, k, v))
    else:
        q, k, v = (call.expand(t, (*outer, *t.shape[-3:])) for t in (q, k, v))
    causal = bool(call.get("is_causal", False))
    if causal and q.shape[-2] != k.shape[-2]:  # torch counts from the first key, the table from the last
        mask, causal = call.constant(np.tri(q.shape[-2], k.shape[-2], dtype=np.bool_)), False
    length = None if mask is None or causal else _visible_length(call, mask, k.shape[-2])
    if length is not None:
        mask = None
    elif mask is not None:
        mask = _four_axes(call, mask if mask.dtype is DType.BOOL else call.cast(mask, q.dtype), outer)
    shape = (*q.shape[:-1], v.shape[-1])
    q, scale = scaled_query(call, q, call.args.get("scale"))
    options = {"scale": scale, "causal": causal}
    four = [call.reshape(t, (prod(t.shape[:-3]), *(t.shape[-3:] if t.rank > 2 else (1, *t.shape)))) for t in (q, k, v)]
    return call.reshape(call.emit("attention", *four, mask, length, **options), shape)


def _four_axes(call: TorchCall, mask: Tensor, outer: tuple[int, ...]) -> Tensor:
    """A mask for [batch, heads, queries, keys]; more batch axes become one."""
    if mask.rank > 4:
        mask = call.expand(mask, (*outer, *mask.shape[-3:]))
        return call.reshape(mask, (prod(outer), *mask.shape[-3:]))
    return mask


def _visible_length(call: TorchCall, mask: Tensor, keys: int) -> Tensor | None:
    """The number of keys that a mask shows to all queries, where it is written as 0, 1, 2, ... < length (or <= last)
    with a length known at run time: attention then stops there instead of reading what it hides."""
    if mask.dtype is not DType.BOOL or mask.type.size != keys or not mask.rank or mask.shape[-1] != keys:
        return None
    record = mask.value.record
    while record is not None and record.op in ("reshape", "expand"):
        record = record.inputs[0].record
    if record is None or record.op not in ("less", "greater", "less_equal", "greater_equal"):
        return None
    steps, length = record.inputs if record.op.startswith("less") else record.inputs[::-1]
    known = steps.data is not None and np.array_equal(steps.data.reshape(-1), np.arange(keys))
    if not known or length.type.size != 1 or length.type.dtype not in (DType.I64, DType.I32):
        return None
    count = call.reshape(Tensor(call.builder, length), (1,))
    return call.emit("add", count, call.like(1, count)) if record.op.endswith("equal") else count
