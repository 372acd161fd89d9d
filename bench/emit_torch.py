"""`to_torch`: a `superkernel.Graph` as a `torch.fx.GraphModule`, straight-line code that Dynamo and export can read.

Constants are parameters (weights) or buffers (integers), states are buffers updated in place. Only what the
benchmark's workloads use; anything else raises NotImplementedError by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from emit_common import attrs_of, check_attention, check_rope
from torch import fx

from superkernel.ir.graph import Graph, Node
from superkernel.ops.attention import attention_scale

Maker = Callable[[Graph, Node, list[Any]], Any]
MAKERS: dict[str, Maker] = {}


def _makes(*ops: str) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(ops, function))
        return function

    return register


_SIMPLE: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "silu": F.silu,
    "identity": lambda x: x,
}


@_makes(*_SIMPLE)
def _simple(graph: Graph, node: Node, args: list[Any]) -> Any:
    return _SIMPLE[node.op](*args)


@_makes("gelu")
def _gelu(graph: Graph, node: Node, args: list[Any]) -> Any:
    return F.gelu(args[0], approximate=str(attrs_of(node)["approximate"]))


@_makes("softmax")
def _softmax(graph: Graph, node: Node, args: list[Any]) -> Any:
    return torch.softmax(args[0], dim=attrs_of(node)["axis"])


@_makes("concat")
def _concat(graph: Graph, node: Node, args: list[Any]) -> Any:
    return torch.cat(args, dim=attrs_of(node)["axis"])


@_makes("gather")
def _gather(graph: Graph, node: Node, args: list[Any]) -> Any:
    if attrs_of(node)["axis"] != 0:
        raise NotImplementedError("gather along another axis than the first")
    return F.embedding(args[1], args[0])


@_makes("reshape")
def _reshape(graph: Graph, node: Node, args: list[Any]) -> Any:
    return args[0].reshape(graph.types[node.outputs[0]].shape)


@_makes("transpose")
def _transpose(graph: Graph, node: Node, args: list[Any]) -> Any:
    return args[0].permute(attrs_of(node)["perm"])


@_makes("reduce_sum")
def _reduce_sum(graph: Graph, node: Node, args: list[Any]) -> Any:
    return args[0].sum(dim=attrs_of(node)["axes"], keepdim=attrs_of(node)["keepdims"])


def _tail(graph: Graph, node: Node) -> tuple[int, ...]:
    """The normalised extents: from `axis` to the last."""
    shape = graph.types[str(node.inputs[0])].shape
    return shape[attrs_of(node)["axis"] % len(shape) :]


@_makes("layer_norm")
def _layer_norm(graph: Graph, node: Node, args: list[Any]) -> Any:
    return F.layer_norm(args[0], _tail(graph, node), *args[1:], eps=attrs_of(node)["epsilon"])  # type: ignore[misc]


@_makes("rms_norm")
def _rms_norm(graph: Graph, node: Node, args: list[Any]) -> Any:
    return F.rms_norm(args[0], _tail(graph, node), args[1], eps=attrs_of(node)["epsilon"])


@_makes("batch_norm")
def _batch_norm(graph: Graph, node: Node, args: list[Any]) -> Any:
    x, scale, bias, mean, variance = args
    return F.batch_norm(x, mean, variance, scale, bias, eps=attrs_of(node)["epsilon"])


@_makes("lrn")
def _lrn(graph: Graph, node: Node, args: list[Any]) -> Any:
    alpha, beta, bias = (attrs_of(node)[n] for n in ("alpha", "beta", "bias"))
    return F.local_response_norm(args[0], attrs_of(node)["size"], alpha, beta, bias)


@_makes("matmul")
def _matmul(graph: Graph, node: Node, args: list[Any]) -> Any:
    a, b = args
    if attrs_of(node)["trans_a"]:
        a = a.transpose(-1, -2)
    # A weight that stands transposed is what F.linear takes.
    if attrs_of(node)["trans_b"] and graph.types[str(node.inputs[1])].rank == 2:
        return F.linear(a, b)
    return torch.matmul(a, b.transpose(-1, -2) if attrs_of(node)["trans_b"] else b)


@_makes("gemm")
def _gemm(graph: Graph, node: Node, args: list[Any]) -> Any:
    a = args[0].t() if attrs_of(node)["trans_a"] else args[0]
    plain = attrs_of(node)["alpha"] == 1.0 and attrs_of(node)["beta"] == 1.0
    if plain and attrs_of(node)["trans_b"]:
        return F.linear(a, args[1], args[2] if len(args) > 2 else None)
    product = attrs_of(node)["alpha"] * (a @ (args[1].t() if attrs_of(node)["trans_b"] else args[1]))
    return product + attrs_of(node)["beta"] * args[2] if len(args) > 2 else product


def _pads(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pads = attrs_of(node)["pads"] or (0, 0, 0, 0)
    return pads[: len(pads) // 2], pads[len(pads) // 2 :]


def _padded(node: Node, x: Any, value: float = 0.0) -> tuple[Any, tuple[int, ...]]:
    """Input and symmetric padding: unequal pads become an operator of their own."""
    begin, end = _pads(node)
    if begin == end:
        return x, begin
    flat = [p for pair in reversed(list(zip(begin, end, strict=True))) for p in pair]
    return F.pad(x, flat, value=value), (0,) * len(begin)


@_makes("conv")
def _conv(graph: Graph, node: Node, args: list[Any]) -> Any:
    x, pads = _padded(node, args[0])
    strides, dilations = (attrs_of(node)[n] or (1, 1) for n in ("strides", "dilations"))
    bias = args[2] if len(args) > 2 else None
    return F.conv2d(x, args[1], bias, strides, pads, dilations, attrs_of(node)["groups"])


@_makes("max_pool")
def _max_pool(graph: Graph, node: Node, args: list[Any]) -> Any:
    x, pads = _padded(node, args[0], float("-inf"))
    strides, dilations = (attrs_of(node)[n] or (1, 1) for n in ("strides", "dilations"))
    return F.max_pool2d(x, attrs_of(node)["kernel"], strides, pads, dilations, bool(attrs_of(node)["ceil_mode"]))


@_makes("avg_pool")
def _avg_pool(graph: Graph, node: Node, args: list[Any]) -> Any:
    """Unequal pads that do not count: the sums of the padded windows over how many elements are real."""
    begin, end = _pads(node)
    kernel, strides = attrs_of(node)["kernel"], attrs_of(node)["strides"] or (1, 1)
    include, ceil = bool(attrs_of(node)["count_include_pad"]), bool(attrs_of(node)["ceil_mode"])
    if begin == end or include:
        x, pads = _padded(node, args[0])
        return F.avg_pool2d(x, kernel, strides, pads, ceil, include)
    x, _ = _padded(node, args[0])
    ones = np.ones((1, 1, *graph.types[str(node.inputs[0])].shape[2:]), np.float32)
    padded = np.pad(ones, ((0, 0), (0, 0), *zip(begin, end, strict=True)))
    share = F.avg_pool2d(torch.from_numpy(padded), kernel, strides, 0, ceil)
    return F.avg_pool2d(x, kernel, strides, 0, ceil) / _lifted(x, share)


def _lifted(proxy: Any, value: torch.Tensor) -> Any:
    """A tensor known while tracing, as a buffer of the module under construction."""
    root = proxy.tracer.root_module
    name = f"lifted_{len(root._buffers)}"
    root.register_buffer(name, value)
    return fx.Proxy(proxy.tracer.graph.get_attr(name), proxy.tracer)


@_makes("global_avg_pool")
def _global_avg_pool(graph: Graph, node: Node, args: list[Any]) -> Any:
    return F.adaptive_avg_pool2d(args[0], (1, 1))


@_makes("rope")
def _rope(graph: Graph, node: Node, args: list[Any]) -> Any:
    x, cos, sin, position = args
    check_rope(graph, node)
    c, s = F.embedding(position, cos), F.embedding(position, sin)
    half = graph.types[str(node.inputs[0])].shape[3] // 2
    low, high = x[..., :half], x[..., half:]
    return torch.cat((low * c - high * s, high * c + low * s), dim=-1)


@_makes("kv_update")
def _kv_update(graph: Graph, node: Node, args: list[Any]) -> Any:
    cache, new, position = args
    return cache.index_copy_(2, position, new)


@_makes("attention")
def _attention(graph: Graph, node: Node, args: list[Any]) -> Any:
    q, k, v, mask, length = (*args, None, None)[:5]
    check_attention(node)
    kinds = [graph.types[str(i)] for i in node.inputs[:2]]
    if length is not None:
        keys = torch.arange(kinds[1].shape[2])
        seen = _lifted(length, keys) < length
        mask = seen.reshape(1, 1, 1, -1)
    scale = attention_scale(node.attrs, kinds[0].shape[3])
    grouped = kinds[0].shape[1] != kinds[1].shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


def to_torch(graph: Graph) -> fx.GraphModule:
    """The graph as a module in eval mode: inputs in graph order, a tuple of outputs. Raises NotImplementedError."""
    root = torch.nn.Module()
    made = fx.Graph(root)
    tracer = fx.proxy.GraphAppendingTracer(made)
    tracer.root_module = root
    values: dict[str, Any] = {}
    for i, name in enumerate(graph.inputs):
        values[name] = fx.Proxy(made.placeholder(f"input_{i}"), tracer)
    used = {i for node in graph.nodes for i in node.inputs} | {*graph.outputs, *graph.states}
    for i, (name, array) in enumerate((*graph.constants.items(), *graph.states.items())):
        if name not in used:
            continue
        tensor = torch.from_numpy(np.array(array))
        if name in graph.constants and tensor.is_floating_point():
            root.register_parameter(f"value_{i}", torch.nn.Parameter(tensor, requires_grad=False))
        else:
            root.register_buffer(f"value_{i}", tensor)
        values[name] = fx.Proxy(made.get_attr(f"value_{i}"), tracer)
    for node in graph.nodes:
        maker = MAKERS.get(node.op)
        if maker is None:
            raise NotImplementedError(f"no torch form of {node.op!r}")
        values[node.outputs[0]] = maker(graph, node, [None if i is None else values[i] for i in node.inputs])
    made.output(tuple(values[name].node for name in graph.outputs))
    return fx.GraphModule(root, made).eval()
