"""A decoder as a graph: some tokens at a position, the logits of some of them; keys and values are states.

Model: `tokens` stand at positions `position`, `position` + 1, ... of the context. Their keys and values go into the
caches there; each token sees what lies before it and itself. Rows of the caches that lie further on hold nothing that
counts, so a caller may give more tokens than there are and go on at the position behind the last one that counts.

Everything is computed in one element type, attention in that of the caches; norms, softmax and sums of products are f32
inside, logits come out as f32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder, Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.pretrained.decoder import Attention, Decoder, Experts, FeedForward, Linear, Norm
from superkernel.frontends.pretrained.factors import constant
from superkernel.ir.graph import Graph

Array = NDArray[Any]
TOKENS, POSITION, ROWS, LOGITS = "tokens", "position", "rows", "logits"


def decoder_graph(
    decoder: Decoder,
    *,
    tokens: int,
    rows: int,
    context: int,
    dtype: DType | None = None,
    cache_dtype: DType | None = None,
) -> Graph:
    """Inputs: tokens i64 [tokens], position i64 [1], rows i64 [rows]: which of the tokens logits are wanted of.
    Output: logits f32 [rows, vocabulary]. States: key_N, value_N [1, kv_heads, context, head_size]. The caller sees to
    it that position + tokens <= context. `dtype`: what to compute in, `cache_dtype`: what the caches hold and attention
    is computed in, else the decoder's own."""
    return _Writer(decoder, tokens, context, dtype or decoder.dtype, cache_dtype or decoder.cache_dtype).write(rows)


@lru_cache(maxsize=4)
def _zeros(shape: tuple[int, ...], dtype: DType) -> Array:
    """What caches begin as: one array for those of all blocks and of all graphs of a model."""
    zeros = np.zeros(shape, dtype.numpy)
    zeros.flags.writeable = False
    return zeros


class _Writer:
    def __init__(self, decoder: Decoder, tokens: int, context: int, dtype: DType, cache_dtype: DType) -> None:
        self.decoder, self.tokens, self.context = decoder, tokens, context
        self.dtype, self.cache_dtype = dtype, cache_dtype
        self.b = b = GraphBuilder(decoder.name)
        self.ids = b.input(TOKENS, (tokens,), "i64")
        self.position = b.input(POSITION, (1,), "i64")
        self.angles: tuple[Tensor, ...] = ()
        self.visible: dict[int, Tensor] = {}
        if decoder.rotary is not None:
            self.angles = tuple(constant(b, table, dtype) for table in decoder.rotary.tables(context))

    def write(self, rows: int) -> Graph:
        b, decoder = self.b, self.decoder
        wanted = b.input(ROWS, (rows,), "i64")
        x = decoder.embedding.rows(b, self.ids, self.dtype)
        if decoder.positions is not None:
            table = constant(b, decoder.positions[: self.context], self.dtype)
            x = x + b.gather(table, self.position + np.arange(self.tokens), axis=0)
        for number, block in enumerate(decoder.blocks):
            with b.section(f"block_{number}"):
                x = x + self.attention(block.attention, self.norm(block.attention_norm, x), number)
                h = self.norm(block.feed_norm, x)
                feed = block.feed
                x = x + (self.experts(feed, h) if isinstance(feed, Experts) else self.feed(feed, h))
        x = self.norm(decoder.final_norm, b.gather(x, wanted, axis=0))
        logits = decoder.head.product(b, x)
        b.output(self.cast(logits, DType.F32), name=LOGITS)
        return b.graph()

    def norm(self, norm: Norm, x: Tensor) -> Tensor:
        weight = constant(self.b, norm.weight, self.dtype)
        if norm.bias is None:
            return self.b.rms_norm(x, weight, epsilon=self.decoder.epsilon)
        return self.b.layer_norm(x, weight, constant(self.b, norm.bias, self.dtype), epsilon=self.decoder.epsilon)

    def linear(self, layer: Linear, x: Tensor) -> Tensor:
        y = layer.matrix.product(self.b, x)
        return y if layer.bias is None else y + constant(self.b, layer.bias, self.dtype)

    def attention(self, attention: Attention, x: Tensor, number: int) -> Tensor:
        b, decoder, size = self.b, self.decoder, self.decoder.head_size

        def heads(layer: Linear, count: int, norm: Norm | None = None) -> Tensor:
            y = self.linear(layer, x).reshape(1, self.tokens, count, size)
            return (y if norm is None else self.norm(norm, y)).transpose(0, 2, 1, 3)

        def kept(name: str, new: Tensor) -> Tensor:
            cache = b.state(f"{name}_{number}", _zeros((1, decoder.kv_heads, self.context, size), self.cache_dtype))
            filled = b.kv_update(cache, self.cast(new, self.cache_dtype), self.position)
            b.update(cache, filled)
            return filled

        query = self.cast(self.turned(heads(attention.query, decoder.heads, attention.query_norm)), self.cache_dtype)
        key = kept("key", self.turned(heads(attention.key, decoder.kv_heads, attention.key_norm)))
        value = kept("value", heads(attention.value, decoder.kv_heads))
        mask = self.mask(attention.window)
        length = self.position + self.tokens
        mixed = self.cast(b.attention(query, key, value, mask, length, causal=self.tokens > 1), self.dtype)
        return self.linear(attention.output, mixed.transpose(0, 2, 1, 3).reshape(self.tokens, decoder.heads * size))

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        return x if x.dtype is dtype else self.b.cast(x, dtype)

    def turned(self, x: Tensor) -> Tensor:
        """Queries or keys, turned by their positions."""
        rotary = self.decoder.rotary
        if rotary is None:
            return x
        cos, sin = self.angles
        whole = rotary.rotated == self.decoder.head_size
        rotated = 0 if whole else rotary.rotated
        return self.b.rope(x, cos, sin, self.position, interleaved=rotary.interleaved, rotary_dim=rotated)

    def mask(self, window: int | None) -> Tensor | None:
        """Which keys the window leaves to each token, bool [1, 1, tokens, context]; None where it leaves all."""
        if window is None or window >= self.context:
            return None
        if window not in self.visible:
            own = self.position + np.arange(self.tokens)
            first = (own - (window - 1)).reshape(1, 1, self.tokens, 1)
            self.visible[window] = self.b.less_equal(first, np.arange(self.context))
        return self.visible[window]

    def feed(self, feed: FeedForward, x: Tensor) -> Tensor:
        up = self.linear(feed.up, x)
        hidden = self.activated(up) if feed.gate is None else self.activated(self.linear(feed.gate, x)) * up
        return self.linear(feed.down, hidden)

    def activated(self, x: Tensor) -> Tensor:
        name = self.decoder.activation
        if name == "gelu_tanh":
            return self.b.gelu(x, approximate="tanh")
        return {"gelu": self.b.gelu, "relu": self.b.relu, "silu": self.b.silu}[name](x)

    def experts(self, experts: Experts, x: Tensor) -> Tensor:
        """Rows go to their experts sorted by expert, stably, by counting; the results come back weighted."""
        b, top, count = self.b, experts.top, experts.gate.shape[0]
        rows = self.tokens * top
        router = self.linear(experts.router, x)
        chances = b.softmax(self.cast(router, DType.F32), axis=-1)
        weights, chosen = b.topk(chances, k=top)
        if experts.renormalised:
            weights = weights / b.reduce_sum(weights, axes=(-1,), keepdims=True)
        hot = b.one_hot(chosen.reshape(rows), np.array([0, 1], np.int32), depth=count)
        counts = b.reduce_sum(hot, axes=(0,), keepdims=False)
        first = b.cumsum(counts, axis=0) - counts
        place = b.reduce_sum(hot * (b.cumsum(hot, axis=0) + (first - 1)), axes=(1,), keepdims=False)
        owners = b.constant(np.repeat(np.arange(self.tokens, dtype=np.int32), top))
        sources = b.scatter_elements(np.zeros(rows, np.int32), place, owners, axis=0)
        ordered = b.gather(x, sources, axis=0)

        def each(value: Tensor, stacked: np.ndarray) -> Tensor:
            return b.grouped_matmul(value, constant(b, stacked, self.dtype), counts)

        hidden = self.activated(each(ordered, experts.gate)) * each(ordered, experts.up)
        back = b.gather(each(hidden, experts.down), place, axis=0).reshape(self.tokens, top, x.shape[-1])
        weights = self.cast(weights, self.dtype).reshape(self.tokens, top, 1)
        y = b.reduce_sum(back * weights, axes=(1,), keepdims=False)
        if experts.shared is None:
            return y
        always = self.feed(experts.shared, x)
        if experts.shared_gate is not None:
            always = b.sigmoid(self.linear(experts.shared_gate, x)) * always
        return y + always
