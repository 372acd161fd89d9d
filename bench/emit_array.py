"""`to_numpy` and `to_jax`: a `superkernel.Graph` as a function on arrays of those libraries, in f32.

Model: both share one table of operators written against what NumPy and jax.numpy have in common; `_Jax` replaces what
JAX has operators of its own for (convolution, pooling, erf, in-place rows). NumPy's form is what somebody writes by
hand: windows as a strided view, then a product.

Functions take inputs and states (both mappings) and give outputs and the states' next contents. Only what the
benchmark's workloads use; anything else raises NotImplementedError by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import numpy as np
from emit_common import attrs_of, check_attention, check_rope

from superkernel.ir.graph import Graph, Node
from superkernel.ops.attention import attention_scale

Function = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class _NumPy:
    """One method per operator: the node and its arguments in, the result out."""

    xp: Any = np

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def erf(self, x: Any) -> Any:
        try:
            from scipy.special import erf as vector_erf
        except ImportError:
            return np.vectorize(erf, otypes=[x.dtype])(x)
        return vector_erf(x)

    def windows(self, x: Any, node: Node, kernel: tuple[int, int], fill: float) -> Any:
        """All windows of padded x: [N, C, OH, OW, KH, KW], a view."""
        pads = attrs_of(node)["pads"] or (0, 0, 0, 0)
        strides = attrs_of(node)["strides"] or (1, 1)
        rows, columns = attrs_of(node)["dilations"] or (1, 1)
        if attrs_of(node).get("ceil_mode"):
            raise NotImplementedError("ceil_mode")
        if any(pads):
            x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=fill)
        reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, (rows, columns), strict=True))
        view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
        return view[:, :, :: strides[0], :: strides[1], ::rows, ::columns]

    def conv(self, node: Node, x: Any, w: Any, bias: Any = None) -> Any:
        groups = attrs_of(node)["groups"]
        windows = self.windows(x, node, w.shape[2:], 0.0)
        n, _, height, width = windows.shape[:4]
        if groups == x.shape[1] == w.shape[0]:
            y = np.einsum("nchwij,cij->nchw", windows, w[:, 0])
        else:
            inner = w.shape[1] * w.shape[2] * w.shape[3]
            rows = windows.reshape(n, groups, w.shape[1], height, width, *w.shape[2:])
            rows = rows.transpose(0, 1, 3, 4, 2, 5, 6).reshape(n, groups, height * width, inner)
            y = w.reshape(1, groups, -1, inner) @ rows.swapaxes(-1, -2)
            y = y.reshape(n, w.shape[0], height, width)
        return y if bias is None else y + bias.reshape(1, -1, 1, 1)

    def max_pool(self, node: Node, x: Any) -> Any:
        return self.windows(x, node, attrs_of(node)["kernel"], -np.inf).max(axis=(4, 5))

    def avg_pool(self, node: Node, x: Any) -> Any:
        kernel = attrs_of(node)["kernel"]
        total = self.windows(x, node, kernel, 0.0).sum(axis=(4, 5), dtype=x.dtype)
        if attrs_of(node)["count_include_pad"]:
            return total / np.float32(kernel[0] * kernel[1])
        return total / self.real_counts(node, x.shape)

    def real_counts(self, node: Node, shape: tuple[int, ...]) -> Any:
        """How many elements of each window are no padding."""
        ones = np.ones((1, 1, *shape[2:]), np.float32)
        return _NumPy.windows(self, ones, node, attrs_of(node)["kernel"], 0.0).sum(axis=(4, 5), dtype=np.float32)

    def lrn(self, node: Node, x: Any) -> Any:
        alpha, beta, bias = (float(attrs_of(node)[n]) for n in ("alpha", "beta", "bias"))
        size = attrs_of(node)["size"]
        squares = self.xp.pad(x * x, ((0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)))
        channels = x.shape[1]
        total = sum(squares[:, i : i + channels] for i in range(size))
        return x / (bias + alpha / size * total) ** beta

    def kv_update(self, node: Node, cache: Any, new: Any, position: Any) -> Any:
        cache[:, :, int(position[0]) : int(position[0]) + new.shape[2]] = new
        return cache

    # Common to both ---------------------------------------------------------------------------------------------------

    def add(self, node: Node, a: Any, b: Any) -> Any:
        return a + b

    def sub(self, node: Node, a: Any, b: Any) -> Any:
        return a - b

    def mul(self, node: Node, a: Any, b: Any) -> Any:
        return a * b

    def div(self, node: Node, a: Any, b: Any) -> Any:
        return a / b

    def relu(self, node: Node, x: Any) -> Any:
        return self.xp.maximum(x, 0)

    def tanh(self, node: Node, x: Any) -> Any:
        return self.xp.tanh(x)

    def exp(self, node: Node, x: Any) -> Any:
        return self.xp.exp(x)

    def sqrt(self, node: Node, x: Any) -> Any:
        return self.xp.sqrt(x)

    def sigmoid(self, node: Node, x: Any) -> Any:
        return 1 / (1 + self.xp.exp(-x))

    def silu(self, node: Node, x: Any) -> Any:
        return x / (1 + self.xp.exp(-x))

    def gelu(self, node: Node, x: Any) -> Any:
        if attrs_of(node)["approximate"] != "none":
            raise NotImplementedError("approximate gelu")
        return x * (0.5 * (1 + self.erf(x * np.float32(0.5**0.5))))

    def identity(self, node: Node, x: Any) -> Any:
        return x

    def softmax(self, node: Node, x: Any) -> Any:
        axis = attrs_of(node)["axis"]
        power = self.xp.exp(x - x.max(axis=axis, keepdims=True))
        return power / power.sum(axis=axis, keepdims=True)

    def concat(self, node: Node, *parts: Any) -> Any:
        return self.xp.concatenate(parts, axis=attrs_of(node)["axis"])

    def gather(self, node: Node, table: Any, index: Any) -> Any:
        return self.xp.take(table, index, axis=attrs_of(node)["axis"])

    def reshape(self, node: Node, x: Any) -> Any:
        return x.reshape(self.graph.types[node.outputs[0]].shape)

    def transpose(self, node: Node, x: Any) -> Any:
        return x.transpose(attrs_of(node)["perm"])

    def reduce_sum(self, node: Node, x: Any) -> Any:
        return x.sum(axis=attrs_of(node)["axes"], keepdims=attrs_of(node)["keepdims"])

    def layer_norm(self, node: Node, x: Any, scale: Any, bias: Any) -> Any:
        axes = tuple(range(attrs_of(node)["axis"] % x.ndim, x.ndim))
        centred = x - x.mean(axis=axes, keepdims=True)
        variance = (centred * centred).mean(axis=axes, keepdims=True)
        return centred / self.xp.sqrt(variance + self.number(node, "epsilon")) * scale + bias

    def rms_norm(self, node: Node, x: Any, scale: Any) -> Any:
        axes = tuple(range(attrs_of(node)["axis"] % x.ndim, x.ndim))
        return x / self.xp.sqrt((x * x).mean(axis=axes, keepdims=True) + self.number(node, "epsilon")) * scale

    def batch_norm(self, node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        shape = (1, -1, *(1,) * (x.ndim - 2))
        factor = scale / self.xp.sqrt(variance + self.number(node, "epsilon"))
        return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)

    def number(self, node: Node, name: str) -> Any:
        """An attribute as f32: a float64 would widen what it meets."""
        return np.float32(attrs_of(node)[name])

    def matmul(self, node: Node, a: Any, b: Any) -> Any:
        a = a.swapaxes(-1, -2) if attrs_of(node)["trans_a"] else a
        return a @ (b.swapaxes(-1, -2) if attrs_of(node)["trans_b"] else b)

    def gemm(self, node: Node, a: Any, b: Any, c: Any = None) -> Any:
        product = self.matmul(node, a, b)
        if attrs_of(node)["alpha"] != 1.0:
            product = product * self.number(node, "alpha")
        if c is None:
            return product
        return product + (c if attrs_of(node)["beta"] == 1.0 else c * self.number(node, "beta"))

    def global_avg_pool(self, node: Node, x: Any) -> Any:
        return x.mean(axis=(2, 3), keepdims=True)

    def rope(self, node: Node, x: Any, cos: Any, sin: Any, position: Any) -> Any:
        check_rope(self.graph, node)
        half = x.shape[3] // 2
        c, s = self.xp.take(cos, position, axis=0), self.xp.take(sin, position, axis=0)
        low, high = x[..., :half], x[..., half:]
        return self.xp.concatenate((low * c - high * s, high * c + low * s), axis=-1)

    def attention(self, node: Node, q: Any, k: Any, v: Any, mask: Any = None, length: Any = None) -> Any:
        check_attention(node)
        batch, heads, rows, depth = q.shape
        k, v, hidden = self.visible(k, v, length)
        q = q.reshape(batch, k.shape[1], heads // k.shape[1] * rows, depth)
        scores = (q @ k.swapaxes(-1, -2)) * np.float32(attention_scale(node.attrs, depth))
        if hidden is not None:
            scores = scores + hidden
        if mask is not None:
            scores = scores.reshape(batch, heads, rows, -1) + mask
            scores = scores.reshape(*q.shape[:3], -1)
        power = self.xp.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (power / power.sum(axis=-1, keepdims=True)) @ v
        return mixed.reshape(batch, heads, rows, -1)

    def visible(self, k: Any, v: Any, length: Any) -> tuple[Any, Any, Any]:
        """The keys and values that exist, and what hides the others (None: nothing)."""
        if length is None:
            return k, v, None
        count = int(length[0])
        return k[:, :, :count], v[:, :, :count], None

    def run(self, constants: Mapping[str, Any], inputs: Mapping[str, Any], states: Mapping[str, Any]) -> Any:
        """All nodes in order; outputs, and next states by name."""
        values = {**constants, **inputs, **states}
        for node in self.graph.nodes:
            method = getattr(self, node.op, None)
            if method is None:
                raise NotImplementedError(f"no array form of {node.op!r}")
            values[node.outputs[0]] = method(node, *(None if i is None else values[i] for i in node.inputs))
        after = {name: values[self.graph.updates.get(name, name)] for name in self.graph.states}
        return tuple(values[name] for name in self.graph.outputs), after


class _Jax(_NumPy):
    """What JAX computes in another way."""

    def __init__(self, graph: Graph) -> None:
        import jax.numpy

        super().__init__(graph)
        self.xp = jax.numpy

    def erf(self, x: Any) -> Any:
        from jax.lax import erf as vector_erf

        return vector_erf(x)

    def conv(self, node: Node, x: Any, w: Any, bias: Any = None) -> Any:
        from jax.lax import conv_general_dilated

        top, left, bottom, right = attrs_of(node)["pads"] or (0, 0, 0, 0)
        strides, dilations = (attrs_of(node)[n] or (1, 1) for n in ("strides", "dilations"))
        y = conv_general_dilated(
            x,
            w,
            strides,
            ((top, bottom), (left, right)),
            rhs_dilation=dilations,
            feature_group_count=attrs_of(node)["groups"],
        )
        return y if bias is None else y + bias.reshape(1, -1, 1, 1)

    def reduce_windows(self, node: Node, x: Any, start: float, function: Any) -> Any:
        from jax.lax import reduce_window

        top, left, bottom, right = attrs_of(node)["pads"] or (0, 0, 0, 0)
        kernel = attrs_of(node)["kernel"]
        strides = attrs_of(node)["strides"] or (1, 1)
        if attrs_of(node)["ceil_mode"] or any(d != 1 for d in attrs_of(node)["dilations"] or ()):
            raise NotImplementedError("ceil_mode or dilation of a pool")
        pads = ((0, 0), (0, 0), (top, bottom), (left, right))
        return reduce_window(x, start, function, (1, 1, *kernel), (1, 1, *strides), pads)

    def max_pool(self, node: Node, x: Any) -> Any:
        from jax.lax import max as larger

        return self.reduce_windows(node, x, -np.inf, larger)

    def avg_pool(self, node: Node, x: Any) -> Any:
        from jax.lax import add

        total = self.reduce_windows(node, x, 0.0, add)
        kernel = attrs_of(node)["kernel"]
        counts = kernel[0] * kernel[1] if attrs_of(node)["count_include_pad"] else self.real_counts(node, x.shape)
        return total / counts

    def kv_update(self, node: Node, cache: Any, new: Any, position: Any) -> Any:
        from jax.lax import dynamic_update_slice

        zero = position[0] * 0
        return dynamic_update_slice(cache, new, (zero, zero, position[0], zero))

    def visible(self, k: Any, v: Any, length: Any) -> tuple[Any, Any, Any]:
        if length is None:
            return k, v, None
        return k, v, self.xp.where(self.xp.arange(k.shape[2]) < length, np.float32(0), np.float32(-np.inf))


def to_numpy(graph: Graph) -> Function:
    """A function on NumPy arrays. States are changed in place."""
    return lambda inputs, states: _NumPy(graph).run(graph.constants, inputs, states)


def to_jax(graph: Graph) -> Function:
    """A function for `jax.jit` that closes over the constants; donate its states to update them in place."""
    return lambda inputs, states: _Jax(graph).run(graph.constants, inputs, states)
