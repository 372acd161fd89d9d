"""`to_onnx`: a `superkernel.Graph` as an ONNX model, for the runners that read ONNX.

Model: one writer per operator, standard operators of opset 20, written as exporters write them, so that the
optimisers of other runtimes recognise their patterns. States become an input `NAME` and an output `NAME.next`. With
`contrib`, attention over caches becomes ONNX Runtime's GroupQueryAttention, which turns, appends and attends in one
operator on the caches in place (and replaces the rope and kv_update nodes in front of it), other attention its
MultiHeadAttention.

Only what the benchmark's workloads use is written; anything else raises NotImplementedError by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from emit_common import attrs_of, check_attention, check_rope
from numpy.typing import NDArray
from onnx import TensorProto, checker, helper, numpy_helper

from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.attention import attention_scale

OPSET = 20
IR_VERSION = 9
NEXT = ".next"  # what a state's output is called

Attrs = dict[str, Any]


class _Model:
    """The nodes and initializers written so far."""

    def __init__(self, graph: Graph, contrib: bool) -> None:
        self.graph, self.contrib = graph, contrib
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.skipped: set[str] = set()
        self.renamed: dict[str, str] = {}
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"_{stem}_{self.count}"

    def add(
        self, op: str, inputs: Sequence[str], outputs: int | Sequence[str] = 1, domain: str = "", **attrs: Any
    ) -> Any:
        """One node; its output name, or a list of them where there are several."""
        names = [self.name(op) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        self.nodes.append(helper.make_node(op, list(inputs), names, name=self.name("node"), domain=domain, **attrs))
        return names[0] if len(names) == 1 else names

    def constant(self, array: Any, name: str | None = None) -> str:
        name = name or self.name("constant")
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: float, like: str) -> str:
        return self.constant(np.array(value, self.graph.types[like].dtype.numpy))

    def transposed(self, value: str) -> str:
        """The last two axes swapped: at once where it is a constant."""
        if value in self.graph.constants:
            name = f"{value}.T"
            if name not in self.initializers:
                self.constant(np.swapaxes(self.graph.constants[value], -1, -2), name)
            return name
        perm = list(range(self.graph.types[value].rank))
        perm[-2:] = perm[:-3:-1]
        return str(self.add("Transpose", [value], perm=perm))


Writer = Callable[[_Model, Node], None]
WRITERS: dict[str, Writer] = {}


def _writes(*ops: str) -> Callable[[Writer], Writer]:
    def register(function: Writer) -> Writer:
        WRITERS.update(dict.fromkeys(ops, function))
        return function

    return register


_SAME = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "exp": "Exp",
    "sqrt": "Sqrt",
    "identity": "Identity",
    "global_avg_pool": "GlobalAveragePool",
}


def _ins(node: Node) -> list[str]:
    return ["" if i is None else i for i in node.inputs]


@_writes(*_SAME)
def _same(m: _Model, node: Node) -> None:
    m.add(_SAME[node.op], _ins(node), node.outputs)


@_writes("silu")
def _silu(m: _Model, node: Node) -> None:
    (x,) = _ins(node)
    m.add("Mul", [x, m.add("Sigmoid", [x])], node.outputs)


@_writes("gelu")
def _gelu(m: _Model, node: Node) -> None:
    """The exact form by the error function, as exporters of earlier opsets write it: every runtime fuses it."""
    (x,) = _ins(node)
    if attrs_of(node)["approximate"] != "none":
        m.add("Gelu", [x], node.outputs, approximate=attrs_of(node)["approximate"])
        return
    one = m.add("Add", [m.add("Erf", [m.add("Div", [x, m.scalar(2.0**0.5, x)])]), m.scalar(1.0, x)])
    m.add("Mul", [m.add("Mul", [x, one]), m.scalar(0.5, x)], node.outputs)


@_writes("softmax", "concat")
def _along_axis(m: _Model, node: Node) -> None:
    m.add(node.op.capitalize(), _ins(node), node.outputs, axis=attrs_of(node)["axis"])


@_writes("gather")
def _gather(m: _Model, node: Node) -> None:
    m.add("Gather", _ins(node), node.outputs, axis=attrs_of(node)["axis"])


@_writes("reshape")
def _reshape(m: _Model, node: Node) -> None:
    m.add("Reshape", [_ins(node)[0], m.ints(*m.graph.types[node.outputs[0]].shape)], node.outputs)


@_writes("transpose")
def _transpose(m: _Model, node: Node) -> None:
    m.add("Transpose", _ins(node), node.outputs, perm=list(attrs_of(node)["perm"]))


@_writes("reduce_sum")
def _reduce_sum(m: _Model, node: Node) -> None:
    axes = m.ints(*attrs_of(node)["axes"])
    m.add("ReduceSum", [_ins(node)[0], axes], node.outputs, keepdims=int(attrs_of(node)["keepdims"]))


@_writes("layer_norm")
def _layer_norm(m: _Model, node: Node) -> None:
    attrs = {name: attrs_of(node)[name] for name in ("axis", "epsilon")}
    m.add("LayerNormalization", _ins(node), node.outputs, **attrs)


@_writes("rms_norm")
def _rms_norm(m: _Model, node: Node) -> None:
    x, scale = _ins(node)
    axis, rank = attrs_of(node)["axis"], m.graph.types[x].rank
    axes = m.ints(*range(axis % rank, rank))
    mean = m.add("ReduceMean", [m.add("Pow", [x, m.scalar(2.0, x)]), axes], keepdims=1)
    root = m.add("Sqrt", [m.add("Add", [mean, m.scalar(attrs_of(node)["epsilon"], x)])])
    m.add("Mul", [m.add("Div", [x, root]), scale], node.outputs)


@_writes("batch_norm")
def _batch_norm(m: _Model, node: Node) -> None:
    m.add("BatchNormalization", _ins(node), node.outputs, epsilon=attrs_of(node)["epsilon"])


@_writes("lrn")
def _lrn(m: _Model, node: Node) -> None:
    m.add("LRN", _ins(node), node.outputs, **{n: attrs_of(node)[n] for n in ("size", "alpha", "beta", "bias")})


@_writes("matmul")
def _matmul(m: _Model, node: Node) -> None:
    a, b = _ins(node)
    a = m.transposed(a) if attrs_of(node)["trans_a"] else a
    m.add("MatMul", [a, m.transposed(b) if attrs_of(node)["trans_b"] else b], node.outputs)


@_writes("gemm")
def _gemm(m: _Model, node: Node) -> None:
    given = attrs_of(node)
    attrs: Attrs = {"alpha": given["alpha"], "beta": given["beta"]}
    attrs |= {"transA": int(given["trans_a"]), "transB": int(given["trans_b"])}
    m.add("Gemm", _ins(node), node.outputs, **attrs)


@_writes("conv")
def _conv(m: _Model, node: Node) -> None:
    rank = m.graph.types[_ins(node)[0]].rank - 2
    m.add("Conv", _ins(node), node.outputs, group=attrs_of(node)["groups"], **_window(node, rank))


@_writes("max_pool", "avg_pool")
def _pool(m: _Model, node: Node) -> None:
    kernel = list(attrs_of(node)["kernel"])
    attrs = _window(node, len(kernel)) | {"kernel_shape": kernel, "ceil_mode": int(attrs_of(node)["ceil_mode"])}
    if node.op == "avg_pool":
        attrs["count_include_pad"] = int(attrs_of(node)["count_include_pad"])
    m.add("AveragePool" if node.op == "avg_pool" else "MaxPool", _ins(node), node.outputs, **attrs)


def _window(node: Node, rank: int) -> Attrs:
    ones, zeros = [1] * rank, [0] * 2 * rank
    return {
        "strides": list(attrs_of(node)["strides"]) or ones,
        "dilations": list(attrs_of(node)["dilations"]) or ones,
        "pads": list(attrs_of(node)["pads"]) or zeros,
    }


# Decoders -------------------------------------------------------------------------------------------------------------


@_writes("rope")
def _rope(m: _Model, node: Node) -> None:
    """One position, all of the depth, halves: what a decoder step needs."""
    x, cos, sin, position = _ins(node)
    check_rope(m.graph, node)
    c, s = (m.add("Gather", [table, position], axis=0) for table in (cos, sin))
    low, high = m.add("Split", [x], 2, axis=3, num_outputs=2)
    first = m.add("Sub", [m.add("Mul", [low, c]), m.add("Mul", [high, s])])
    m.add("Concat", [first, m.add("Add", [m.add("Mul", [high, c]), m.add("Mul", [low, s])])], node.outputs, axis=3)


@_writes("kv_update")
def _kv_update(m: _Model, node: Node) -> None:
    cache, new, position = _ins(node)
    shape = m.graph.types[new].shape
    if shape[2] != 1:
        raise NotImplementedError("kv_update of several rows")
    place = m.add("Reshape", [position, m.ints(1, 1, 1, 1)])
    m.add("ScatterElements", [cache, m.add("Expand", [place, m.ints(*shape)]), new], node.outputs, axis=2)


@_writes("attention")
def _attention(m: _Model, node: Node) -> None:
    """The two products with a softmax between; query heads that share a key head are rows of one product."""
    q, k, v, mask, length = (*_ins(node), "", "", "")[:5]
    check_attention(node)
    (batch, heads, rows, depth), kv = m.graph.types[q].shape, m.graph.types[k].shape
    scale = m.scalar(attention_scale(node.attrs, depth), q)
    grouped = heads != kv[1]
    if grouped:
        q = m.add("Reshape", [q, m.ints(batch, kv[1], heads // kv[1] * rows, depth)])
    turned = m.add("Transpose", [k], perm=[0, 1, 3, 2])
    scores = m.add("Mul", [m.add("MatMul", [q, turned]), scale])
    if grouped and mask:
        raise NotImplementedError("a mask on grouped heads")
    if mask:
        scores = m.add("Add", [scores, mask])
    if length:
        visible = m.add("Less", [m.constant(np.arange(kv[2])), length])
        low = m.constant(np.array(-np.inf, m.graph.types[node.outputs[0]].dtype.numpy))
        scores = m.add("Where", [visible, scores, low])
    mixed = m.add("MatMul", [m.add("Softmax", [scores], axis=-1), v])
    if grouped:
        m.add("Reshape", [mixed, m.ints(*m.graph.types[node.outputs[0]].shape)], node.outputs)
    else:
        m.nodes[-1].output[0] = node.outputs[0]


def _flat_source(graph: Graph, value: str | None) -> str:
    """What stood before reshape and transpose into heads."""
    at = graph.producers[str(value)]
    while at.op in ("transpose", "reshape", "rope"):
        value = at.inputs[0]
        at = graph.producers[str(value)]
    return str(value)


def _fuse_caches(m: _Model) -> None:
    """Replace attention over caches, with the rope and kv_update nodes in front, by GroupQueryAttention."""
    graph = m.graph
    for node in [n for n in graph.nodes if n.op == "attention"]:
        q, k, v = (graph.producers.get(str(i)) for i in node.inputs[:3])
        if q is None or k is None or v is None or (q.op, k.op, v.op) != ("rope", "kv_update", "kv_update"):
            continue
        (transpose,) = graph.consumers[node.outputs[0]]
        (flat,) = graph.consumers[transpose.outputs[0]]
        kind, cache = graph.types[str(node.inputs[0])], graph.types[str(k.inputs[0])]
        turned = graph.producers[str(k.inputs[1])]
        sources = [_flat_source(graph, i) for i in (node.inputs[0], k.inputs[1], v.inputs[1])]
        rows = []
        for source in sources:
            rows.append(m.add("Reshape", [source, m.ints(1, 1, graph.types[source].shape[-1])]))
        last = m.add("Cast", [str(k.inputs[2])], to=TensorProto.INT32)
        total = m.add("Add", [m.add("Squeeze", [last]), m.constant(np.array(1, np.int32))])
        out = m.name("GroupQueryAttention")
        tables = [str(q.inputs[1]), str(q.inputs[2])]
        m.add(
            "GroupQueryAttention",
            [*rows, str(k.inputs[0]), str(v.inputs[0]), last, total, *tables],
            [out, k.outputs[0], v.outputs[0]],
            "com.microsoft",
            num_heads=kind.shape[1],
            kv_num_heads=cache.shape[1],
            do_rotary=1,
            scale=attention_scale(node.attrs, kind.shape[3]),
        )
        m.add("Reshape", [out, m.ints(*graph.types[flat.outputs[0]].shape)], flat.outputs)
        written = [node, q, k, v, turned, transpose, flat]
        m.skipped.update(n.name for n in written)


def _fuse_heads(m: _Model) -> None:
    """Replace attention on heads of [1, tokens, width], with the reshapes and transposes around it, by
    MultiHeadAttention."""
    graph = m.graph
    for node in [n for n in graph.nodes if n.op == "attention" and len(n.inputs) < 5]:
        before = [graph.producers.get(str(i)) for i in node.inputs[:3]]
        if any(n is None or n.op != "transpose" or attrs_of(n)["perm"] != (0, 2, 1, 3) for n in before):
            continue
        (transpose,) = graph.consumers[node.outputs[0]]
        (flat,) = graph.consumers[transpose.outputs[0]]
        (_, heads, rows, depth), keys = graph.types[node.outputs[0]].shape, graph.types[str(node.inputs[1])].shape[2]
        sources = [_flat_source(graph, i) for i in node.inputs[:3]]
        kinds = [graph.types[s].shape for s in sources]
        if graph.types[flat.outputs[0]].shape != (1, rows, heads * depth) or {len(k) for k in kinds} != {3}:
            continue
        inputs = sources
        if len(node.inputs) > 3:
            bias = m.add("Expand", [str(node.inputs[3]), m.ints(1, 1, rows, keys)])
            inputs = [*sources, "", "", bias]
        scale = attention_scale(node.attrs, depth)
        m.add("MultiHeadAttention", inputs, flat.outputs, "com.microsoft", num_heads=heads, scale=scale)
        m.skipped.update(n.name for n in (node, *before, transpose, flat) if n is not None)


# The model ------------------------------------------------------------------------------------------------------------


def to_onnx(graph: Graph, *, contrib: bool = False) -> Any:
    """The graph as an `onnx.ModelProto`, checked. Raises NotImplementedError on an operator that has no writer."""
    m = _Model(graph, contrib)
    if contrib:
        _fuse_caches(m)
        _fuse_heads(m)
    for node in graph.nodes:
        if node.name in m.skipped:
            continue
        writer = WRITERS.get(node.op)
        if writer is None:
            raise NotImplementedError(f"no ONNX form of {node.op!r}")
        writer(m, node)
    for state in graph.states:
        m.add("Identity", [graph.updates.get(state, state)], [state + NEXT])
    _inline_identities(m)
    nodes = _sorted(m, {*graph.inputs, *graph.states, *graph.constants, *m.initializers})
    used = {name for node in nodes for name in node.input}
    constants = [numpy_helper.from_array(a, n) for n, a in graph.constants.items() if n in used]
    inputs = [_info(name, graph.types[name]) for name in (*graph.inputs, *graph.states)]
    outputs = [_info(name, graph.types[name]) for name in graph.outputs]
    outputs += [_info(name + NEXT, graph.types[name]) for name in graph.states]
    kept = [t for n, t in m.initializers.items() if n in used]
    body = helper.make_graph(nodes, "graph", inputs, outputs, [*constants, *kept])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION)
    if model.ByteSize() < 2**31 and not contrib:
        checker.check_model(model)
    return model


def _inline_identities(m: _Model) -> None:
    """A state's next contents carry the output's name themselves: no copy behind the update."""
    makers = {name: node for node in m.nodes for name in node.output}
    for node in list(m.nodes):
        if node.op_type != "Identity" or not node.output[0].endswith(NEXT) or node.input[0] not in makers:
            continue
        old, new = node.input[0], node.output[0]
        m.nodes.remove(node)
        for other in m.nodes:
            for names in (other.input, other.output):
                for i, name in enumerate(names):
                    if name == old:
                        names[i] = new


def _sorted(m: _Model, known: set[str]) -> list[Any]:
    """Nodes in topological order: fused ones were written before what they read."""
    waiting, order = list(m.nodes), []
    known = {"", *known}
    while waiting:
        ready = [n for n in waiting if all(i in known for i in n.input)]
        if not ready:
            raise ValueError(f"no producer for an input of {waiting[0].op_type}")
        for node in ready:
            known.update(node.output)
        order += ready
        waiting = [n for n in waiting if n not in ready] if len(ready) < len(waiting) else []
    return order


def _info(name: str, kind: TensorType) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind.dtype.numpy), list(kind.shape))


def state_feeds(graph: Graph) -> dict[str, NDArray[Any]]:
    """The states' first contents, arrays of their own."""
    return {name: np.array(array) for name, array in graph.states.items()}
