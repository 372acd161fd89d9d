"""Models of what others have none of, for the texts of `plans.py` and `emitted.py`: operators with numbers for
operands, nodes in scopes, one of them in f64, which no accelerator computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from random_graphs import GraphMaker

from superkernel.core.dtypes import DType
from superkernel.ir.graph import Graph

EXPONENTS = (2.0, -3.0, 7.0, 0.5, -0.5, -1.0, 0.0, 1.5)


def formulas() -> Graph:
    """Operators whose code depends on which operands are known numbers, and which are absent."""
    m = GraphMaker()
    x, y = m.input("x", 6, 40, dtype=DType.F16), m.input("y", 6, 1, dtype=DType.F16)
    n = m.input("n", 6, 40, dtype=DType.I32)
    low, high, three, mask = (m.constant(v) for v in (np.float16(-0.75), np.float16(2), np.int32(3), np.int32(0xF0)))
    less, equal = m.op("less_equal", low, x), m.op("equal", x, y)
    found = [m.op("pow", x, m.constant(np.float16(exponent))) for exponent in EXPONENTS]
    found += [m.op(op, high, x) for op in ("less", "greater", "greater_equal", "sub", "div", "minimum")]
    found += [m.op(op, less, equal) for op in ("logical_and", "logical_or", "logical_xor", "equal", "not_equal")]
    found += [m.op("logical_not", less), m.op("where", less, x, low), m.op("where", equal, low, high)]
    found += [m.op("clip", x, low, None), m.op("clip", x, None, high), m.op("clip", x, low, high)]
    found += [m.op("prelu", x, low), m.op("leaky_relu", x, alpha=0.1), m.op("leaky_relu", x, alpha=0.5)]
    found += [m.op(op, n, mask) for op in ("bitwise_and", "bitwise_or", "bitwise_xor", "mod", "maximum")]
    found += [m.op(op, n, three) for op in ("shift_left", "shift_right", "mul")] + [m.op("bitwise_not", n)]
    found += [m.op("cast", v, dtype=to) for v, to in ((less, DType.F16), (x, DType.I32), (n, DType.F16), (n, DType.I8))]
    return m.graph(*found)


def scopes() -> Graph:
    """Two scopes, nodes of which stand among one another's and nodes in none; a scope is split by a sum in f64."""
    m = GraphMaker()
    x, w = m.input("x", 8, 32, dtype=DType.F16), m.constant(np.ones((32, 32), np.float16))
    first = m.op("softmax", m.op("matmul", x, w), axis=-1)
    other = m.op("softmax", m.op("exp", x), axis=-1)
    second = m.op("matmul", first, w)
    wide = m.op("reduce_sum", m.op("cast", second, dtype=DType.F64), axes=(-1,), keepdims=True)
    third = m.op("matmul", m.op("add", m.op("cast", wide, dtype=DType.F16), other), w)
    graph = m.graph(third, m.op("softmax", third, axis=-1), m.op("concat", other, first, axis=0))
    named = {0: "a", 1: "a", 3: "b", 4: "a", 6: "a", 9: "a", 10: "b"}
    nodes = [replace(node, scope=named.get(number)) for number, node in enumerate(graph.nodes)]
    return replace(graph, nodes=tuple(nodes))
