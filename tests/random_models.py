"""Random graphs for property tests: legal by construction, numerically tame, over most operators.

`random_graph(rng)` draws from a `random.Random` (hypothesis passes one that it can shrink). Functions are chosen so
that rounding errors stay near the size of f32's: no division by what may be near zero, no exp of what may be large;
operators that jump (comparisons, rounding, argmax) get only values that both sides know exactly, i.e. inputs moved
about.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import superkernel as sk

DIMS = (1, 2, 3, 4, 5, 8, 16, 17, 33)


class _Maker:
    def __init__(self, rng: random.Random, nodes: int) -> None:
        self.rng = rng
        self.numbers = np.random.default_rng(rng.getrandbits(32))
        self.b = sk.GraphBuilder("random")
        self.floats: list[Any] = []
        self.exact: list[Any] = []  # values that are inputs, moved about
        for i in range(rng.randint(1, 3)):
            x = self.b.input(f"x{i}", self.shape(), "f32")
            self.floats.append(x)
            self.exact.append(x)
        for _ in range(nodes):
            self.rng.choice(_STEPS)(self)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.randint(1, 4) if rank is None else rank
        return tuple(self.rng.choice(DIMS[: 9 if i >= rank - 2 else 4]) for i in range(rank))

    def pick(self, rank_min: int = 0, rank_max: int = 4, size_max: int = 40_000) -> Any:
        fit = [v for v in self.floats if rank_min <= len(v.shape) <= rank_max and np.prod(v.shape) <= size_max]
        if not fit:
            rank = max(rank_min, 1)
            fit = [self.b.constant(self.numbers.standard_normal(self.shape(rank)).astype(np.float32))]
        return self.rng.choice(fit[-6:])

    def weight(self, shape: tuple[int, ...], scale: float = 1.0) -> Any:
        return self.b.constant((self.numbers.standard_normal(shape) * scale).astype(np.float32))

    def add(self, value: Any) -> None:
        if 0 < np.prod(value.shape) <= 200_000:
            self.floats.append(value)

    def partner(self, x: Any) -> Any:
        """Something that broadcasts with x: a value of its shape, a constant of a broadcast shape, or a number."""
        same = [v for v in self.floats if v.shape == x.shape]
        if len(same) > 1 and self.rng.random() < 0.6:
            return self.rng.choice(same)
        if self.rng.random() < 0.2:
            return self.rng.choice((0.5, 2.0, -1.25))
        shape = tuple(d if self.rng.random() < 0.6 else 1 for d in x.shape)
        return self.weight(shape[self.rng.randint(0, len(shape)) :])

    def axis(self, x: Any) -> int:
        return self.rng.randrange(len(x.shape)) - (len(x.shape) if self.rng.random() < 0.5 else 0)


def _unary(m: _Maker) -> None:
    name = m.rng.choice(
        ("relu", "tanh", "sigmoid", "gelu", "silu", "abs", "neg", "erf", "sin", "cos", "softplus", "hard_swish", "elu")
    )
    m.add(getattr(m.b, name)(m.pick()))


def _binary(m: _Maker) -> None:
    x = m.pick()
    y = m.partner(x)
    if m.rng.random() < 0.2:
        x, y = y, x
    m.add(getattr(m.b, m.rng.choice(("add", "sub", "mul", "maximum", "minimum")))(x, y))


def _divide(m: _Maker) -> None:
    x = m.pick()
    m.add(x / (m.b.abs(x) + 1.5))


def _where(m: _Maker) -> None:
    sources = [v for v in m.exact if v in m.floats] or m.exact
    x = m.rng.choice(sources)
    condition = m.b.greater(x, m.rng.choice((0.0, 0.3)))
    m.add(m.b.where(condition, x * 2.0, m.partner(x)))


def _matmul(m: _Maker) -> None:
    x = m.pick(1, 4)
    k, n = x.shape[-1], m.rng.choice(DIMS)
    trans = m.rng.random() < 0.4
    w = m.weight((n, k) if trans else (k, n), k**-0.5)
    m.add(m.b.matmul(x, w, trans_b=trans))


def _matmul_dynamic(m: _Maker) -> None:
    x = m.pick(2, 3, 4000)
    y = m.b.tanh(x)
    m.add(m.b.matmul(x, y, trans_b=True) * (1.0 / x.shape[-1]))


def _softmax(m: _Maker) -> None:
    x = m.pick(1)
    m.add(m.b.softmax(x, axis=m.axis(x)))


def _norm(m: _Maker) -> None:
    x = m.pick(1)
    d = x.shape[-1]
    scale = m.weight((d,))
    if m.rng.random() < 0.5:
        m.add(
            m.b.layer_norm(x + m.partner(x) if m.rng.random() < 0.3 else x, scale, m.weight((d,)), axis=-1, epsilon=0.1)
        )
    else:
        m.add(m.b.rms_norm(x, scale, axis=-1, epsilon=0.1))


def _reduce(m: _Maker) -> None:
    x = m.pick(1)
    count = m.rng.randint(1, len(x.shape))
    axes = tuple(sorted(m.rng.sample(range(len(x.shape)), count)))
    name = m.rng.choice(("reduce_mean", "reduce_max", "reduce_min", "reduce_sum"))
    y = getattr(m.b, name)(x, axes=axes, keepdims=m.rng.random() < 0.6)
    m.add(y * 0.1 if name == "reduce_sum" else y)


def _transpose(m: _Maker) -> None:
    _move(m, lambda x: m.b.transpose(x, perm=tuple(m.rng.sample(range(len(x.shape)), len(x.shape)))))


def _reshape(m: _Maker) -> None:
    def change(x: Any) -> Any:
        size = int(np.prod(x.shape))
        parts = []
        for d in (2, 3, 4, 5, 8, 17):
            if size % d == 0 and m.rng.random() < 0.5 and len(parts) < 3:
                parts.append(d)
                size //= d
        return m.b.reshape(x, shape=(*parts, size))

    _move(m, change)


def _slice(m: _Maker) -> None:
    def change(x: Any) -> Any:
        axis = m.rng.randrange(len(x.shape))
        d = x.shape[axis]
        if m.rng.random() < 0.2:
            return m.b.slice(x, starts=(d - 1,), ends=(-d - 1,), axes=(axis,), steps=(-1,))
        start = m.rng.randint(0, d - 1)
        step = m.rng.choice((1, 1, 2))
        return m.b.slice(x, starts=(start,), ends=(m.rng.randint(start + 1, d),), axes=(axis,), steps=(step,))

    _move(m, change)


def _move(m: _Maker, change: Callable[[Any], Any]) -> None:
    """Movement keeps a value exact."""
    exact = m.rng.random() < 0.3
    x = m.rng.choice(m.exact) if exact else m.pick(1)
    if not x.shape:
        return
    y = change(x)
    m.add(y)
    if exact and np.prod(y.shape):
        m.exact.append(y)


def _split(m: _Maker) -> None:
    x = m.pick(1)
    axis = m.rng.randrange(len(x.shape))
    d = x.shape[axis]
    if d > 1:
        first = m.rng.randint(1, d - 1)
        left, right = m.b.split(x, axis=axis, sizes=(first, d - first))
        m.add(m.b.tanh(left))
        m.add(right)


def _concat(m: _Maker) -> None:
    x = m.pick(1)
    axis = m.rng.randrange(len(x.shape))
    other = list(x.shape)
    other[axis] = m.rng.randint(1, 4)
    parts = [x, m.weight(tuple(other)), m.b.relu(x)]
    m.rng.shuffle(parts)
    m.add(m.b.concat(*parts[: m.rng.randint(2, 3)], axis=axis))


def _pad(m: _Maker) -> None:
    x = m.pick(1)
    pads = [m.rng.randint(0, 2) for _ in range(2 * len(x.shape))]
    m.add(m.b.pad(x, pads=tuple(pads), mode="constant", value=0.5))


def _gather(m: _Maker) -> None:
    x = m.pick(1)
    axis = m.rng.randrange(len(x.shape))
    d = x.shape[axis]
    indices = m.numbers.integers(-d, d, m.rng.randint(1, 5))
    m.add(m.b.gather(x, m.b.constant(indices), axis=axis))


def _cumsum(m: _Maker) -> None:
    x = m.pick(1)
    m.add(m.b.cumsum(x, axis=m.axis(x), reverse=m.rng.random() < 0.3) * 0.1)


def _argmax(m: _Maker) -> None:
    x = m.rng.choice(m.exact)
    if x.shape:
        m.add(m.b.cast(m.b.argmax(x, axis=m.axis(x), keepdims=True), dtype="f32") * 0.1)


def _conv(m: _Maker) -> None:
    x = m.pick(4, 4, 20_000)
    if len(x.shape) != 4:
        return
    _, c, h, w = x.shape
    k = m.rng.choice((1, 3)) if min(h, w) > 0 else 1
    groups = c if m.rng.random() < 0.3 else 1
    out = c if groups > 1 else m.rng.choice((1, 2, 5, 8, 16))
    weight = m.weight((out, c // groups, k, k), (c // groups * k * k) ** -0.5)
    stride = m.rng.choice((1, 1, 2))
    y = m.b.conv(x, weight, m.weight((out,)), strides=(stride,) * 2, pads=(k // 2,) * 4, groups=groups)
    m.add(m.b.relu(y) if m.rng.random() < 0.5 else y)


def _pool(m: _Maker) -> None:
    x = m.pick(4, 4, 20_000)
    if len(x.shape) != 4 or min(x.shape[2:]) < 2:
        return
    name = m.rng.choice(("max_pool", "avg_pool"))
    m.add(getattr(m.b, name)(x, kernel=(2, 2), strides=(m.rng.choice((1, 2)),) * 2))


def _attention(m: _Maker) -> None:
    x = m.pick(3, 3, 6000)
    if len(x.shape) != 3:
        return
    s0, s, d = x.shape
    q = m.b.reshape(x, shape=(1, s0, s, d))
    m.add(m.b.attention(q, m.b.tanh(q), q * 0.5, causal=m.rng.random() < 0.5))


_STEPS: tuple[Callable[[_Maker], None], ...] = (
    *(_unary, _binary) * 4,
    *(_matmul, _reduce, _transpose, _reshape, _slice, _softmax, _norm, _concat) * 2,
    _divide, _where, _matmul_dynamic, _split, _pad, _gather, _cumsum, _argmax, _conv, _pool, _attention,
)  # fmt: skip


def random_graph(rng: random.Random, nodes_max: int = 14) -> sk.Graph:
    """A graph with 1 to `nodes_max` random steps; its outputs are the sinks and a few more."""
    maker = _Maker(rng, rng.randint(1, nodes_max))
    fresh = [v for v in maker.floats if not v.name.startswith("x")] or maker.floats
    chosen = {v.name: v for v in [fresh[-1], *rng.sample(fresh, min(len(fresh), rng.randint(0, 2)))]}
    for value in chosen.values():
        maker.b.output(value)
    return maker.b.graph()
