"""Attention and rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.emitter import scaled_query
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers


def split_heads(call: OnnxCall, x: Tensor, heads: int) -> Tensor:
    """[B, S, H*D] -> [B, H, S, D]; four axes stay as they are."""
    if x.rank == 4:
        return x
    b, s, width = x.shape
    if heads < 1 or width % heads:
        raise call.contradiction("not a whole number of heads", found=f"{heads} heads of {x.type}")
    return call.transpose(call.reshape(x, (b, s, heads, width // heads)), (0, 2, 1, 3))


def join_heads(call: OnnxCall, x: Tensor) -> Tensor:
    """[B, H, S, D] -> [B, S, H*D]."""
    b, h, s, d = x.shape
    return call.reshape(call.transpose(x, (0, 2, 1, 3)), (b, s, h * d))


@lowers("Attention")
def attention(call: OnnxCall) -> list[Tensor | None]:
    q, k, v = call.input(0), call.input(1), call.input(2)
    flat = q.rank == 3
    q = split_heads(call, q, call.attr("q_num_heads", 1))
    k, v = (split_heads(call, t, call.attr("kv_num_heads", 1)) for t in (k, v))
    if call.has(4):
        k = call.emit("concat", call.input(4), k, axis=2)
        v = call.emit("concat", call.input(5), v, axis=2)
    causal = bool(call.attr("is_causal", 0))
    length = call.optional(6)
    past = k.shape[2] - call.input(1).shape[-2 if call.input(1).rank == 4 else 1]
    left, right = call.attr("left_window_size", -1), call.attr("right_window_size", -1)
    # The table's causal rule counts from the end of the valid keys. Without a cache the standard counts from their
    # start; where the two differ, and for windows, the rule becomes a mask.
    rule: Tensor | None = None
    if length is not None and (left >= 0 or right >= 0):
        rule = _window_of_lengths(call, q.shape[2], k.shape[2], length, left, right)
    elif left >= 0 or right >= 0 or (causal and length is None and q.shape[2] + past != k.shape[2]):
        rule = call.constant(_visible(q.shape[2], k.shape[2], past, causal, left, right))
        causal = False
    mask = _mask(call, q, k, rule)
    q, scale = scaled_query(call, q, call.attr("scale"))
    options = {"scale": scale, "causal": causal, "softcap": call.attr("softcap", 0.0)}
    y = call.emit("attention", q, k, v, mask, length, **options)
    products = _products(call, q, k, mask, length, past, options) if call.wants(3) else None
    return [join_heads(call, y) if flat else y, k, v, products]


def _visible(rows: int, columns: int, past: int, causal: bool, left: int, right: int) -> NDArray[np.bool_]:
    """Which key each query may see, by position alone."""
    query, key = np.arange(rows)[:, None] + past, np.arange(columns)[None, :]
    seen = np.ones((rows, columns), np.bool_)
    if causal:
        seen &= key <= query
    if left >= 0:
        seen &= key >= query - left
    if right >= 0:
        seen &= key <= query + right
    return seen


def _window_of_lengths(call: OnnxCall, rows: int, columns: int, length: Tensor, left: int, right: int) -> Tensor:
    """The window of each query, positions counted back from each sample's own number of keys: [B, 1, rows, columns]."""
    distance = np.arange(columns)[None, :] - np.arange(rows)[:, None] + rows  # key - (query - rows), against length
    offset = call.reshape(call.cast(length, DType.I64), (-1 if length.rank else 1, 1, 1, 1))
    seen = []
    if left >= 0:
        seen.append(call.emit("greater_equal", call.constant((distance + left).astype(np.int64)), offset))
    if right >= 0:
        seen.append(call.emit("less_equal", call.constant((distance - right).astype(np.int64)), offset))
    return seen[0] if len(seen) == 1 else call.emit("logical_and", *seen)


def _mask(call: OnnxCall, q: Tensor, k: Tensor, rule: Tensor | None) -> Tensor | None:
    """The node's mask, padded to all keys, together with the positional rule."""
    mask = call.optional(3)
    if mask is not None:
        call.require_rank(mask, 1)
        if mask.dtype is not DType.BOOL:
            mask = call.cast(mask, q.dtype)
        missing = k.shape[2] - mask.shape[-1]
        if missing > 0 and mask.shape[-1] != 1:
            fill = 0.0 if mask.dtype is DType.BOOL else -np.inf
            pads = [0] * (2 * mask.rank - 1) + [missing]
            mask = call.emit("pad", mask, pads=pads, value=fill)
    if rule is None or mask is None:
        return mask if rule is None else rule
    if mask.dtype is DType.BOOL:
        return call.emit("logical_and", mask, rule)
    return call.emit("where", rule, mask, call.like(-np.inf, mask))


def _products(
    call: OnnxCall,
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    length: Tensor | None,
    past: int,
    options: Mapping[str, Any],
) -> Tensor:
    """What qk_matmul_output asks for: raw products (0), capped (1), masked (2) or probabilities (3)."""
    mode = call.attr("qk_matmul_output_mode", 0)
    if mode == 3:
        # Attention over the identity matrix: row i of it is key i, so the result is the probabilities.
        eye = np.eye(k.shape[2], dtype=q.dtype.numpy)
        unit = call.constant(np.broadcast_to(eye, (*k.shape[:2], *eye.shape)))
        return call.emit("attention", q, k, unit, mask, length, **options)
    if k.shape[1] != q.shape[1]:
        b, h, s, d = k.shape
        k = call.expand(call.reshape(k, (b, h, 1, s, d)), (b, h, q.shape[1] // h, s, d))
        k = call.reshape(k, (b, q.shape[1], s, d))
    x = call.emit("matmul", q, k, trans_b=True)
    x = call.emit("mul", x, call.like(options["scale"] or 1.0 / float(np.sqrt(q.shape[3])), x))
    softcap = options["softcap"]
    if mode >= 1 and softcap:
        x = call.emit("mul", call.emit("tanh", call.emit("div", x, call.like(softcap, x))), call.like(softcap, x))
    if mode < 2:
        return x
    if length is not None:
        raise call.unsupported("masked qk_matmul_output together with nonpad_kv_seqlen is not supported")
    if options["causal"]:
        mask = _mask(call, q, k, call.constant(_visible(q.shape[2], k.shape[2], past, True, -1, -1)))
    if mask is None:
        return x
    if mask.dtype is DType.BOOL:
        return call.emit("where", mask, x, call.like(-np.inf, x))
    return call.emit("add", x, mask)


@lowers("RotaryEmbedding")
def rotary_embedding(call: OnnxCall) -> Tensor:
    x, cos, sin, position = call.input(0), call.input(1), call.input(2), call.optional(3)
    flat = x.rank == 3
    heads = call.attr("num_heads", 0)
    y = split_heads(call, x, heads)
    if position is None:  # [B, S, D/2] against [B, H, S, D]
        cos, sin = (call.reshape(t, (t.shape[0], 1, *t.shape[1:])) if t.rank == 3 else t for t in (cos, sin))
    options = {"interleaved": bool(call.attr("interleaved", 0)), "rotary_dim": call.attr("rotary_embedding_dim", 0)}
    y = call.emit("rope", y, cos, sin, position, **options)
    return join_heads(call, y) if flat else y
