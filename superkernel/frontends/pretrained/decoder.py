"""What a decoder is: its sizes, its variants, its weights. Readers make one (`hugging_face.py`, `gguf.py`), `graph.py`
turns it into graphs.

Model: a stack of blocks of attention and feed-forward, each behind a norm and added to what came in, between an
embedding and a head: GPT-2, Llama, Mistral, Qwen 2 and 3, and their mixtures of experts differ in the fields below and
in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.frontends.pretrained.factors import Coded, Matrix
from superkernel.frontends.pretrained.rotary import Rotary

Array = NDArray[Any]

CONTEXT_MAX = 2048
"""Of a context that nobody asked for: models that could hold more would need gigabytes of caches."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Names of activations in configurations -> ours."""


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm over the last axis: a layer norm where it has a bias, else by the root mean square."""

    weight: Array
    bias: Array | None = None


@dataclass(frozen=True, eq=False)
class Linear:
    """x times the matrix, plus a bias."""

    matrix: Matrix
    bias: Array | None = None


@dataclass(frozen=True, eq=False)
class Attention:
    """The projections of a block's attention; norms of queries and keys are per head."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    window: int | None = None
    """How many keys a query sees at most, its own included; None: all before it."""


@dataclass(frozen=True, eq=False)
class FeedForward:
    """down(activation(gate(x)) * up(x)); without a gate down(activation(up(x)))."""

    up: Linear
    down: Linear
    gate: Linear | None = None


@dataclass(frozen=True, eq=False)
class Experts:
    """`top` of the experts per token, by the router's softmax; gate, up: [experts, width, inner], down: [experts,
    inner, width]. A shared expert sees every token, weighted by the sigmoid of its own gate where there is one."""

    router: Linear
    gate: Array
    up: Array
    down: Array
    top: int
    renormalised: bool
    """Whether the weights of the chosen add up to 1."""
    shared: FeedForward | None = None
    shared_gate: Linear | None = None


@dataclass(frozen=True, eq=False)
class Block:
    """A layer: x += attention(norm(x)); x += feed(norm(x))."""

    attention_norm: Norm
    attention: Attention
    feed_norm: Norm
    feed: FeedForward | Experts


@dataclass(frozen=True, eq=False)
class Decoder:
    """A causal language model with its weights."""

    name: str
    embedding: Matrix
    blocks: tuple[Block, ...]
    final_norm: Norm
    head: Matrix
    heads: int
    kv_heads: int
    head_size: int
    positions_max: int
    epsilon: float
    activation: str
    rotary: Rotary | None = None
    positions: Array | None = None
    """Learned embeddings of positions, [positions_max, width]."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.head.shape[0]

    @property
    def context(self) -> int:
        """How many tokens there is room for unless somebody asks: what the model was made for, within CONTEXT_MAX."""
        return min(self.positions_max, CONTEXT_MAX)

    @property
    def width(self) -> int:
        """Elements of a token between blocks."""
        return self.embedding.shape[1]

    @property
    def dtype(self) -> DType:
        """What is computed in: the type that the matrices of products are stored in; f32 for codes and mixtures."""
        kinds = {matrix.dtype for matrix in self.matrices()}
        return kinds.pop() if len(kinds) == 1 else DType.F32

    @property
    def cache_dtype(self) -> DType:
        """What keys and values are kept in: f16 beside codes, which are rounded more than that; else `dtype`."""
        return DType.F16 if all(isinstance(matrix, Coded) for matrix in self.matrices()) else self.dtype

    @property
    def nbytes(self) -> int:
        """Of the matrices as they are stored: what a step of one token reads, but for experts that are not chosen."""
        stacked = sum(a.nbytes for b in self.blocks if isinstance(b.feed, Experts) for a in _stacked(b.feed))
        return sum(matrix.nbytes for matrix in self.matrices()) + int(stacked)

    def matrices(self) -> Iterator[Matrix]:
        """Of all products but those of experts, the head's last."""
        for block in self.blocks:
            a, feed = block.attention, block.feed
            layers: list[Linear | None] = [a.query, a.key, a.value, a.output]
            if isinstance(feed, Experts):
                layers += [feed.router, *_of_feed(feed.shared)]
            else:
                layers += _of_feed(feed)
            yield from (layer.matrix for layer in layers if layer is not None)
        yield self.head


def _of_feed(feed: FeedForward | None) -> list[Linear | None]:
    return [] if feed is None else [feed.gate, feed.up, feed.down]


def _stacked(feed: Experts) -> tuple[Array, Array, Array]:
    return feed.gate, feed.up, feed.down
