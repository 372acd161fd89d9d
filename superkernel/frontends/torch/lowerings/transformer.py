"""The operators that `torch.nn.MultiheadAttention` and `TransformerEncoderLayer` are while no gradients are taken.

torch.export sees through them; TorchDynamo, and so `torch.compile`, hands them on as they are.
"""

from __future__ import annotations

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.lowerings.matmul import product
from superkernel.frontends.torch.registry import lowers

_OF_KEYS = 1
"""torch's number for a mask [batch, keys]; one of queries and keys is 0, of batch, heads, queries and keys 2."""


@lowers("_native_multi_head_attention")
def multi_head_attention(call: TorchCall) -> list[Tensor | None]:
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    if not (query.value is key.value is value.value):
        raise call.unsupported("this operator with other keys than its queries", hint="scaled_dot_product_attention")
    heads = int(call.args["num_head"])
    if not call.wants(1):
        return [_attention(call, query, heads), None]
    q, k, v = _projected(call, query, heads)
    scores = call.emit("matmul", q, k, trans_b=True)
    scores = call.emit("mul", scores, call.like((query.shape[-1] // heads) ** -0.5, scores))
    visible = _visible(call, query)
    if visible is not None:
        scores = call.emit("where", visible, scores, call.like(-float("inf"), scores))
    weights = call.emit("softmax", scores, axis=3)
    y = _merged(call, call.emit("matmul", weights, v), query.shape)
    if call.args["average_attn_weights"]:
        weights = call.emit("reduce_mean", weights, axes=(1,), keepdims=False)
    return [y, weights]


@lowers("_transformer_encoder_layer_fwd")
def encoder_layer(call: TorchCall) -> Tensor:
    """Attention, and two products with a pointwise function between them, each with a sum and a norm around it."""
    x, heads, first = call.tensor("src"), int(call.args["num_heads"]), bool(call.args["norm_first"])
    given = _normed(call, x, 1) if first else x
    x = call.emit("add", _attention(call, given, heads), x)
    x = x if first else _normed(call, x, 1)
    given = _normed(call, x, 2) if first else x
    inner = call.emit("gelu" if call.args["use_gelu"] else "relu", _dense(call, given, "ffn_weight_1", "ffn_bias_1"))
    x = call.emit("add", _dense(call, inner, "ffn_weight_2", "ffn_bias_2"), x)
    return x if first else _normed(call, x, 2)


def _attention(call: TorchCall, x: Tensor, heads: int) -> Tensor:
    """Of x [batch, tokens, width] to itself, projected."""
    q, k, v = _projected(call, x, heads)
    return _merged(call, call.emit("attention", q, k, v, _visible(call, x)), x.shape)


def _projected(call: TorchCall, x: Tensor, heads: int) -> list[Tensor]:
    """Queries, keys and values [batch, heads, tokens, width / heads]."""
    batch, tokens, width = x.shape
    joint = call.reshape(_dense(call, x, "qkv_weight", "qkv_bias"), (batch, tokens, 3, heads, width // heads))
    parts = (call.reshape(call.slice(joint, 2, i, i + 1), (batch, tokens, heads, width // heads)) for i in range(3))
    return [call.transpose(part, (0, 2, 1, 3)) for part in parts]


def _merged(call: TorchCall, y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """All heads of y [batch, heads, tokens, width / heads] side by side, projected."""
    return _dense(call, call.reshape(call.transpose(y, (0, 2, 1, 3)), shape), "proj_weight", "proj_bias")


def _visible(call: TorchCall, x: Tensor) -> Tensor | None:
    """torch's mask of what is hidden, turned round, with axes for batch, heads, queries and keys."""
    mask = call.optional("mask")
    if mask is None:
        return None
    batch, tokens, _ = x.shape
    hidden = mask if mask.dtype is DType.BOOL else call.emit("not_equal", mask, call.like(0, mask))
    shape = (batch, 1, 1, tokens) if call.get("mask_type") == _OF_KEYS else (1,) * (4 - mask.rank) + mask.shape
    return call.reshape(call.emit("logical_not", hidden), shape)


def _dense(call: TorchCall, x: Tensor, weight: str, bias: str) -> Tensor:
    return call.emit("add", product(call, x, call.tensor(weight), trans_b=True), call.tensor(bias))


def _normed(call: TorchCall, x: Tensor, which: int) -> Tensor:
    scale, bias = call.tensor(f"norm_weight_{which}"), call.tensor(f"norm_bias_{which}")
    return call.emit("layer_norm", x, scale, bias, axis=x.rank - 1, epsilon=float(call.args["eps"]))
