"""Scaled dot-product attention (also grouped-query, causal, with a KV cache's length) and rotary position embedding.

Model: scores = q k^T * scale, soft-capped, then masked; softmax over the visible keys; times v. A key is visible to a
query if it lies below `length`, if `causal` allows it and if the mask does not hide it (bool False, float -inf). Keys
at or beyond `length` are never looked at, whatever is stored there. A query that sees no key gives zeros.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import (
    attr,
    get,
    optional,
    present,
    require,
    require_broadcast_to,
    require_rank,
    require_same_dtype,
    require_shape,
    slot,
    to_f64,
)
from superkernel.ops.opdef import BOOLS, FLOATS, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types
from superkernel.ops.ragged import check_lengths, slots_of

_INDEX = frozenset({DType.I64, DType.I32})
_TABLE = frozenset({DType.I32})
_ARGS = (
    ArgDef("q", FLOATS, doc="[B, Hq, Sq, D]"),
    ArgDef("k", FLOATS, doc="[B, Hkv, Skv, D]; Hq a multiple of Hkv"),
    ArgDef("v", FLOATS, doc="[B, Hkv, Skv, Dv]"),
    ArgDef("mask", FLOATS | BOOLS, optional=True, doc="broadcasts to [B, Hq, Sq, Skv]; added, or bool: True keeps"),
    ArgDef("length", _INDEX, optional=True, doc="valid keys, one value or [B], clamped to 0 .. Skv; absent: all"),
    ArgDef("tiling", _TABLE, optional=True, doc="of tile_lengths for these lengths; put in by the compiler"),
)


def _attention_infer(inputs: Types, attrs: Attrs) -> Outputs:
    q, k, v = (present(inputs, i) for i in range(3))
    for i, kind in enumerate((q, k, v)):
        require_rank(kind, 4, 4, slot(_ARGS, i))
        require(kind.dtype is q.dtype, "element types differ", q.dtype, kind.dtype, slot(_ARGS, i))
    batch, heads, rows, depth = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    require_shape(k, (batch, kv_heads, keys, depth), slot(_ARGS, 1))
    require_shape(v, (batch, kv_heads, keys, v.shape[3]), slot(_ARGS, 2))
    multiple = kv_heads > 0 and heads % kv_heads == 0
    require(multiple, "query heads are no multiple of key heads", f"a multiple of {kv_heads}", heads, slot(_ARGS, 0))
    for name in ("scale", "softcap"):
        value = get(attrs, name, float)
        require(0.0 <= value < float("inf"), f"bad {name}", "finite, 0 or more", value, f"attribute {name!r}")
    require(depth > 0 or get(attrs, "scale", float) > 0, "heads of depth 0 have no default scale", "a scale", depth)
    mask, length = optional(inputs, 3), optional(inputs, 4)
    if mask is not None:
        legal = mask.dtype is DType.BOOL or mask.dtype is q.dtype
        require(legal, "mask has the wrong element type", f"bool or {q.dtype}", mask.dtype, slot(_ARGS, 3))
        require_broadcast_to(mask, (batch, heads, rows, keys), slot(_ARGS, 3))
    if length is not None:
        legal = length.shape in ((), (1,), (batch,))
        require(legal, "length has the wrong shape", f"a scalar, [1] or [{batch}]", list(length.shape), slot(_ARGS, 4))
    ragged, tiling = get(attrs, "ragged", bool), optional(inputs, 5)
    if ragged or tiling is not None:
        legal = ragged and length is not None and length.shape == (batch,) and batch > 0
        require(legal, "ragged attention has a length per batch", f"lengths [{batch}]", length, slot(_ARGS, 4))
    if tiling is not None:
        require(
            tiling.rank == 1 and slots_of(tiling.shape[0]) > 0, "no table of lengths", "a table", tiling, slot(_ARGS, 5)
        )
    return (TensorType(q.dtype, (batch, heads, rows, v.shape[3])),)


def attention_scale(attrs: Attrs, depth: int) -> float:
    """The factor on the scores: the attribute, or 1 / sqrt(depth) where it is 0."""
    return get(attrs, "scale", float) or 1.0 / sqrt(depth)


def _attention_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    q, k, v = (to_f64(present(inputs, i)) for i in range(3))
    mask, length = optional(inputs, 3), optional(inputs, 4)
    batch, heads, rows, depth = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    if get(attrs, "ragged", bool) and length is not None:
        check_lengths(length, keys)
    valid = np.full((batch, 1), keys) if length is None else np.clip(length.astype(np.int64), 0, keys).reshape(-1, 1)
    position = np.arange(keys)
    stored = np.broadcast_to(position < valid, (batch, keys))
    # Whatever lies beyond the length, even NaN, must not reach a result through 0 * NaN.
    k, v = (np.where(stored[:, None, :, None], a, 0.0) for a in (k, v))
    visible = np.broadcast_to(stored[:, None, None, :], (batch, 1, rows, keys))
    if get(attrs, "causal", bool):
        last = np.arange(rows) + (np.broadcast_to(valid, (batch, 1)) - rows)
        visible = visible & (position <= last[:, :, None])[:, None]
    split = q.reshape(batch, k.shape[1], group * rows, depth)
    scores = (split @ k.swapaxes(-1, -2)).reshape(batch, heads, rows, keys) * attention_scale(attrs, depth)
    cap = get(attrs, "softcap", float)
    if cap:
        scores = cap * np.tanh(scores / cap)
    if mask is not None and mask.dtype == np.bool_:
        visible = visible & mask
    elif mask is not None:
        added = to_f64(mask)
        visible, scores = visible & ~np.isneginf(added), scores + np.where(np.isneginf(added), 0.0, added)
    weight = _visible_softmax(scores, np.broadcast_to(visible, scores.shape))
    mixed = weight.reshape(batch, k.shape[1], group * rows, keys) @ v
    return (mixed.reshape(outputs[0].shape),)


def _visible_softmax(scores: Array, visible: Array) -> Array:
    """Softmax over the visible keys; all 0 where a row has none."""
    hidden = np.where(visible, scores, -np.inf)
    top = np.max(hidden, axis=-1, keepdims=True, initial=-np.inf)
    power = np.where(visible, np.exp(hidden - np.where(np.isneginf(top), 0.0, top)), 0.0)
    total = power.sum(axis=-1, keepdims=True)
    result: Array = power / np.where(visible.any(axis=-1, keepdims=True), total, 1.0)
    return result


def _attention_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    """Both products over all keys (a length is not known here; causal halves are not deducted) and 5 per score."""
    q, k, v = (present(inputs, i) for i in range(3))
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return scores * (2 * q.shape[3] + 2 * v.shape[3] + 5)


# rope

_ROPE_ARGS = (
    ArgDef("x", FLOATS, doc="[B, H, S, D]"),
    ArgDef("cos", FLOATS, doc="[S, R/2], broadcastable to [B, H, S, R/2], or with position a table [max, R/2]"),
    ArgDef("sin", FLOATS, doc="as cos"),
    ArgDef("position", _INDEX, optional=True, doc="table row of the first S (scalar, [1], [B]) or of each S ([B, S])"),
)


def rotary_width(attrs: Attrs, depth: int) -> int:
    """How many leading elements of the last axis turn (R)."""
    return get(attrs, "rotary_dim", int) or depth


def _rope_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, cos, sin, position = present(inputs, 0), present(inputs, 1), present(inputs, 2), optional(inputs, 3)
    require_same_dtype(inputs[:3], _ROPE_ARGS)
    require_rank(x, 4, 4, slot(_ROPE_ARGS, 0))
    batch, _, rows, depth = x.shape
    width = rotary_width(attrs, depth)
    legal = 0 < width <= depth and width % 2 == 0
    require(legal, "bad rotary_dim", f"even, 2 to {depth}", width, "attribute 'rotary_dim'", "0 means all of x's depth")
    require_shape(sin, cos.shape, slot(_ROPE_ARGS, 2))
    where = slot(_ROPE_ARGS, 1)
    require(cos.rank > 0 and cos.shape[-1] == width // 2, "wrong last extent", width // 2, list(cos.shape), where)
    if position is None:
        require(cos.rank in (2, 4), "wrong rank", "2 or 4", cos, where)
        require_broadcast_to(cos, (*x.shape[:3], width // 2), where)
        return (x,)
    require_rank(cos, 2, 2, where)
    require(cos.shape[0] > 0 or x.size == 0, "the table is empty", "at least one row", cos, where)
    shapes: tuple[tuple[int, ...], ...] = ((), (1,), (batch,), (batch, rows))
    expected = f"a scalar, [1], [{batch}] or [{batch}, {rows}]"
    require(position.shape in shapes, "wrong shape", expected, list(position.shape), slot(_ROPE_ARGS, 3))
    return (x,)


def _rope_rows(table: Array, position: Array, rows: int) -> Array:
    """The table's rows for every position, [B or 1, 1, S, R/2]; positions outside it take its first or last row."""
    index = position.astype(np.int64)
    if index.ndim < 2:
        index = index.reshape(-1, 1) + np.arange(rows)
    picked: Array = table[np.clip(index, 0, len(table) - 1)][:, None]
    return picked


def _rope_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, cos, sin = (to_f64(present(inputs, i)) for i in range(3))
    if x.size == 0:
        return (x,)
    position = optional(inputs, 3)
    if position is not None:
        cos, sin = (_rope_rows(table, position, x.shape[2]) for table in (cos, sin))
    width = rotary_width(attrs, x.shape[3])
    spread = get(attrs, "interleaved", bool)
    first = slice(0, width, 2) if spread else slice(0, width // 2)
    second = slice(1, width, 2) if spread else slice(width // 2, width)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return (out,)


def _rope_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    x = present(inputs, 0)
    return 3 * x.shape[0] * x.shape[1] * x.shape[2] * rotary_width(attrs, x.shape[3])


OPS: tuple[OpDef, ...] = (
    OpDef(
        "attention",
        Family.ATTENTION,
        "softmax(softcap(q k^T * scale) + mask) v over the visible keys.",
        _ARGS,
        (
            attr("scale", 0.0, "0: 1 / sqrt(D)"),
            attr("causal", False, "query i sees keys j <= i + length - Sq"),
            attr("softcap", 0.0, "scores become softcap * tanh(scores / softcap); 0: off"),
            attr("ragged", False, "a padded batch: work is divided by lengths [B]; one out of range is an error"),
        ),
        _attention_infer,
        _attention_reference,
        _attention_flops,
    ),
    OpDef(
        "rope",
        Family.ATTENTION,
        "Rotary position embedding: pairs (a, b) become (a cos - b sin, b cos + a sin).",
        _ROPE_ARGS,
        (
            attr("interleaved", False, "pairs are neighbours instead of the two halves"),
            attr("rotary_dim", 0, "leading elements that turn; 0: all"),
        ),
        _rope_infer,
        _rope_reference,
        _rope_flops,
    ),
)
