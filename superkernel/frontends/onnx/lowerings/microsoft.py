"""The operators of domain com.microsoft that exporters and optimisers of transformer models write."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.lowerings.attention import join_heads, split_heads
from superkernel.frontends.onnx.lowerings.conv import emit_conv
from superkernel.frontends.onnx.lowerings.matmul import block_product
from superkernel.frontends.onnx.registry import MICROSOFT, lowers


@lowers("FastGelu", "BiasGelu", domain=MICROSOFT)
def biased_gelu(call: OnnxCall) -> Tensor:
    x = call.emit("add", call.input(0), call.input(1)) if call.has(1) else call.input(0)
    return call.emit("gelu", x, approximate="tanh" if call.op == "FastGelu" else "none")


@lowers("FusedMatMul", domain=MICROSOFT)
def fused_matmul(call: OnnxCall) -> Tensor:
    if call.attr("transBatchA", 0) or call.attr("transBatchB", 0):
        raise call.unsupported("transBatchA and transBatchB are not supported")
    flags = {"trans_a": bool(call.attr("transA", 0)), "trans_b": bool(call.attr("transB", 0))}
    y = call.emit("matmul", call.input(0), call.input(1), **flags)
    alpha = call.attr("alpha", 1.0)
    return y if alpha == 1.0 else call.emit("mul", y, call.like(alpha, y))


@lowers("FusedGemm", domain=MICROSOFT)
def fused_gemm(call: OnnxCall) -> Tensor:
    options = {"alpha": call.attr("alpha", 1.0), "beta": call.attr("beta", 1.0)}
    flags = {"trans_a": bool(call.attr("transA", 0)), "trans_b": bool(call.attr("transB", 0))}
    y = call.emit("gemm", call.input(0), call.input(1), call.optional(2), **options, **flags)
    return activated(call, y)


@lowers("FusedConv", domain=MICROSOFT)
def fused_conv(call: OnnxCall) -> Tensor:
    y = emit_conv(call, call.input(0), call.input(1), call.optional(2))
    if call.has(3):
        y = call.emit("add", y, call.input(3))
    return activated(call, y)


def activated(call: OnnxCall, y: Tensor) -> Tensor:
    """The `activation` attribute of the fused operators."""
    name = call.attr("activation", "")
    plain = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}
    if not name:
        return y
    if name in plain:
        return call.emit(plain[name], y)
    parameters = call.attr("activation_params") or [call.attr("activation_alpha"), call.attr("activation_beta")]
    given = [float(p) for p in parameters if p is not None]
    if name == "LeakyRelu":
        return call.emit("leaky_relu", y, alpha=given[0] if given else 0.01)
    if name == "Clip" and len(given) == 2:
        return call.emit("clip", y, call.like(given[0], y), call.like(given[1], y))
    if name == "HardSigmoid":
        return call.emit("hard_sigmoid", y, alpha=given[0] if given else 0.2, beta=given[1] if len(given) > 1 else 0.5)
    raise call.unsupported("the fused activation is not supported", found=name)


@lowers("SimplifiedLayerNormalization", domain=MICROSOFT)
@lowers("SimplifiedLayerNormalization")
def simplified_layer_normalization(call: OnnxCall) -> Tensor:
    """It also stands in the standard domain in the files of onnxruntime's optimiser."""
    if call.wants(1):
        raise call.unsupported("the inverse root mean square is not offered as an output")
    axis, epsilon = call.attr("axis", -1), call.attr("epsilon", 1e-5)
    return call.emit("rms_norm", call.input(0), call.optional(1), axis=axis, epsilon=epsilon)


@lowers("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(call: OnnxCall) -> list[Tensor | None]:
    """norm(x + skip [+ bias]); the fourth output is the sum."""
    simplified = call.op != "SkipLayerNormalization"
    total = call.emit("add", call.input(0), call.input(1))
    bias_slot = 3 if simplified else 4
    if call.has(bias_slot):
        total = call.emit("add", total, call.input(bias_slot))
    epsilon = call.attr("epsilon", 1e-12)
    if simplified:
        y = call.emit("rms_norm", total, call.input(2), axis=-1, epsilon=epsilon)
    else:
        y = call.emit("layer_norm", total, call.input(2), call.optional(3), axis=-1, epsilon=epsilon)
    if call.wants(1) or call.wants(2):
        raise call.unsupported("mean and inverse deviation are not offered as outputs")
    return [y, None, None, total]


@lowers("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(call: OnnxCall) -> Tensor:
    """position_ids is the second input here: [1] (the first position) or [B, S]."""
    x, position, cos, sin = (call.input(i) for i in range(4))
    if call.attr("scale", 1.0) != 1.0:
        raise call.unsupported("only scale 1 is supported", found=call.attr("scale"))
    half = cos.shape[-1]
    rotary = call.attr("rotary_embedding_dim", 0)
    heads = call.attr("num_heads", 0)
    if x.rank == 3 and not heads:
        if rotary:
            raise call.unsupported("num_heads is needed with rotary_embedding_dim")
        heads = x.shape[2] // (2 * half)
    y = split_heads(call, x, heads)
    if position.type.size == 1:
        position = call.reshape(position, ())
    y = call.emit("rope", y, cos, sin, position, interleaved=bool(call.attr("interleaved", 0)), rotary_dim=rotary)
    return join_heads(call, y) if x.rank == 3 else y


@lowers("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(call: OnnxCall) -> list[Tensor | None]:
    """Separate query, key, value of [B, S, hidden]; optional projection bias, additive bias, past."""
    heads = call.required("num_heads")
    if call.has(4):
        raise call.unsupported("key_padding_mask is not supported", hint="give attention_bias instead")
    q, k, v = call.input(0), call.input(1), call.input(2)
    if call.has(3):
        width = q.shape[-1]
        parts = call.emit_all("split", call.input(3), axis=0, sizes=(width, k.shape[-1], v.shape[-1]))
        q, k, v = (call.emit("add", t, b) for t, b in zip((q, k, v), parts, strict=True))
    q, k, v = (split_heads(call, t, heads) for t in (q, k, v))
    if call.has(6):
        k = call.emit("concat", call.input(6), k, axis=2)
        v = call.emit("concat", call.input(7), v, axis=2)
    scale, causal = call.attr("scale", 0.0), bool(call.attr("unidirectional", 0))
    y = call.emit("attention", q, k, v, call.optional(5), None, scale=scale, causal=causal)
    return [join_heads(call, y), k, v]


@lowers("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(call: OnnxCall) -> list[Tensor | None]:
    """Word, position and segment embeddings summed and normalised."""
    ids, segments, words, places, kinds = (call.optional(i) for i in range(5))
    assert ids is not None
    assert words is not None
    assert places is not None
    if call.has(7) and call.wants(1):
        raise call.unsupported("mask_index is not offered as an output")
    total = call.emit("gather", words, ids, axis=0)
    if call.has(8):
        position = call.input(8)
    else:
        position = call.constant(np.arange(ids.shape[1], dtype=np.int64)[None, :])
    total = call.emit("add", total, call.emit("gather", places, position, axis=0))
    if segments is not None and kinds is not None:
        total = call.emit("add", total, call.emit("gather", kinds, segments, axis=0))
    y = call.emit("layer_norm", total, call.input(5), call.input(6), epsilon=call.attr("epsilon", 1e-12))
    mask_index = call.constant(np.zeros(ids.shape[0], np.int32)) if call.wants(1) else None
    return [y, mask_index, total]


@lowers("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(call: OnnxCall) -> Tensor:
    """f32 @ quantised weights: the activations are quantised per tensor to u8 as DynamicQuantizeLinear does."""
    a, b, scale_b, zero_b = call.input(0), call.input(1), call.input(2), call.optional(3)
    zero = call.like(0.0, a)
    low = call.emit("minimum", call.emit("reduce_min", a, axes=(), keepdims=False), zero)
    high = call.emit("maximum", call.emit("reduce_max", a, axes=(), keepdims=False), zero)
    scale = call.emit("div", call.emit("sub", high, low), call.like(255.0, a))
    offset = call.emit(
        "round", call.emit("clip", call.emit("neg", call.emit("div", low, scale)), zero, call.like(255.0, a))
    )
    zero_a = call.cast(offset, DType.U8)
    quantised = call.emit("quantize", a, scale, zero_a, dtype=DType.U8)
    product = call.emit("matmul_integer", quantised, b, zero_a, zero_b)
    real = call.emit("mul", call.cast(product, DType.F32), call.emit("mul", scale, scale_b))
    return call.emit("add", real, call.input(4)) if call.has(4) else real


@lowers("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(call: OnnxCall) -> Tensor:
    """Rows of a table of codes [rows, bytes] in blocks along the last axis, dequantised behind the gather: the table
    stays as it is stored."""
    bits, block = call.attr("bits", 4), call.attr("block_size", 128)
    table, indices, scales = call.input(0), call.input(1), call.input(2)
    if table.dtype is not DType.U8 or bits not in (4, 8):
        raise call.unsupported("only bytes of codes of 4 or 8 bits are supported", found=f"{table.dtype}, {bits} bits")
    if call.attr("gather_axis", 0) != 0 or call.attr("quantize_axis", 1) not in (1, -1) or table.rank != 2:
        raise call.unsupported("only rows of a table with blocks along its last axis are supported")
    width, blocks = table.shape[1] * 8 // bits, scales.shape[1]
    if width != blocks * block:
        raise call.unsupported("blocks must fill the rows", expected=f"a multiple of {block}", found=str(width))

    def rows(of: Tensor, count: int) -> Tensor:
        """Codes of the rows that are wanted, as numbers [..., blocks, count / blocks]."""
        found = call.emit("gather", of, indices, axis=0)
        if bits == 4:
            pairs = (*found.shape, 1)
            mask, shift = (call.constant(np.array(n, np.uint8)) for n in (15, 4))
            halves = (call.emit("bitwise_and", found, mask), call.emit("shift_right", found, shift))
            found = call.emit("concat", *(call.reshape(half, pairs) for half in halves), axis=-1)
            found = call.reshape(found, (*indices.shape, found.shape[-2] * 2))
            if found.shape[-1] != count:
                found = call.emit("slice", found, axes=(-1,), starts=(0,), ends=(count,))
        return call.cast(call.reshape(found, (*indices.shape, blocks, count // blocks)), scales.dtype)

    codes = rows(table, width)
    zero = rows(call.input(3), blocks) if call.has(3) else call.like(float(1 << (bits - 1)), codes)
    scale = call.reshape(call.emit("gather", scales, indices, axis=0), (*indices.shape, blocks, 1))
    real = call.emit("mul", call.emit("sub", codes, zero), scale)
    return call.reshape(real, (*indices.shape, width))


@lowers("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(call: OnnxCall) -> Tensor:
    """Weights [N, blocks, bytes] in blocks along K; zero points are packed as the codes are, or of the scales' type.
    `accuracy_level` 4 allows x to be rounded to 8 bits; the others, to floats of 16 bits, are left to the options."""
    depth, columns, block = (call.required(name) for name in ("K", "N", "block_size"))
    bits, blocks = call.attr("bits", 4), -(-depth // block)
    if bits not in (4, 8):
        raise call.unsupported("codes of so many bits are not supported", expected="4 or 8", found=str(bits))
    if call.has(4):
        raise call.unsupported("g_idx is not supported", hint="reorder the weights: groups must be neighbours")
    codes = call.static(1).reshape(columns, blocks * block * bits // 8)[:, : -(-depth * bits // 8)]
    zeros = None
    if call.has(3):
        given = call.static(3)
        if given.dtype == np.uint8:
            rows = given.reshape(columns, -(-blocks * bits // 8))
            given = rows if bits == 8 else np.stack([rows & 15, rows >> 4], axis=-1).reshape(columns, -1)[:, :blocks]
        zeros = given.reshape(columns, blocks).astype(np.float32)
    scale, middle = call.static(2).reshape(columns, blocks), 0 if call.has(3) else 1 << (bits - 1)
    x_bits = 8 if call.attr("accuracy_level", 0) == 4 else 0
    y = block_product(call, call.input(0), codes, scale, zeros, bits=bits, block=block, middle=middle, x_bits=x_bits)
    return call.emit("add", y, call.input(5)) if call.has(5) else y
