"""Small random graphs: pointwise chains, broadcasts, views, concatenations, anchors, states, awkward outputs.
Deterministic in the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, View
from superkernel.ir.graph import Graph, Node
from superkernel.scheduler.hostcall import HostCallTiling
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.cpu import CpuTarget

F32 = DType.F32


class GraphMaker:
    """The least one needs to write a graph: names are made up, every call appends a node."""

    def __init__(self) -> None:
        self.inputs: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.states: dict[str, np.ndarray] = {}
        self.updates: dict[str, str] = {}
        self.nodes: list[Node] = []

    def input(self, name: str, *shape: int, dtype: DType = F32) -> str:
        self.inputs[name] = TensorType(dtype, shape)
        return name

    def constant(self, array: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def state(self, name: str, array: object) -> str:
        self.states[name] = np.asarray(array)
        return name

    def op(self, op: str, *inputs: str | None, outputs: int = 1, **attrs: Any) -> str:
        return self.ops(op, *inputs, outputs=outputs, **attrs)[0]

    def ops(self, op: str, *inputs: str | None, outputs: int = 1, **attrs: Any) -> tuple[str, ...]:
        number = len(self.nodes)
        names = tuple(f"v{number}" if outputs == 1 else f"v{number}_{i}" for i in range(outputs))
        self.nodes.append(Node(f"{op}{number}", op, inputs, names, attrs))
        return names

    def graph(self, *outputs: str) -> Graph:
        return Graph.build(
            inputs=self.inputs,
            nodes=self.nodes,
            outputs=list(outputs),
            constants=self.constants,
            states=self.states,
            updates=self.updates,
        )


class LenientFamily(KernelFamily[CpuTarget]):
    """Takes every view and, by kernel, every prologue: grouping at its most eager. One unit, whole operands."""

    def __init__(self, eager: bool) -> None:
        self.eager = eager

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostCallTiling]:
        return (HostCallTiling(),)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        return self.eager or view.is_dense

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return self.eager and slot == 0

    def prologue_may_store(self, kernel: str, op: str, slot: int) -> bool:
        return kernel == "host.norm"


class _Random:
    """Grows a graph from values of a few related shapes."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.g = GraphMaker()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.count = nodes

    def pick(self, rank: int | None = None) -> str:
        """A value, recent ones more often."""
        names = [n for n, s in self.shapes.items() if rank is None or len(s) == rank]
        at = len(names) - 1 - min(int(self.rng.exponential(3.0)), len(names) - 1)
        return names[at]

    def add(self, result: tuple[int, ...], op: str, /, *inputs: str | None, **attrs: Any) -> str:
        name = self.g.op(op, *inputs, **attrs)
        self.shapes[name] = result
        return name

    def array(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def start(self) -> None:
        for i, shape in enumerate([(4, 6), (2, 2, 6), (4, 6)]):
            self.shapes[self.g.input(f"x{i}", *shape)] = shape
        self.shapes[self.g.constant(self.array(4, 6))] = (4, 6)
        for i in range(2):
            name = self.g.state(f"s{i}", self.array(4, 6))
            self.shapes[name] = (4, 6)
        self.shapes[self.g.state("cache", self.array(1, 2, 4, 3))] = (1, 2, 4, 3)

    def grow(self) -> None:
        kinds = (
            "unary", "binary", "binary", "broadcast", "scalar", "reshape", "transpose", "slice", "split", "expand",
            "concat", "anchor", "anchor", "matmul", "reduce", "cache", "clip",
        )  # fmt: skip
        getattr(self, f"_{kinds[self.rng.integers(len(kinds))]}")()

    def _unary(self) -> None:
        x = self.pick()
        self.add(self.shapes[x], str(self.rng.choice(["relu", "tanh", "neg", "sigmoid", "identity"])), x)

    def _binary(self) -> None:
        a = self.pick()
        same = [n for n, s in self.shapes.items() if s == self.shapes[a]]
        b = same[self.rng.integers(len(same))]
        self.add(self.shapes[a], str(self.rng.choice(["add", "mul", "sub", "maximum"])), a, b)

    def _broadcast(self) -> None:
        a = self.pick()
        shape = self.shapes[a]
        small = tuple(d if self.rng.random() < 0.5 else 1 for d in shape)[int(self.rng.integers(0, 2)) :]
        fits = [n for n, s in self.shapes.items() if s == small]
        b = fits[-1] if fits else self.g.constant(self.array(*small))
        self.add(shape, "add", a, b)

    def _scalar(self) -> None:
        a = self.pick()
        self.add(self.shapes[a], "mul", a, self.g.constant(np.float32(0.5)))

    def _clip(self) -> None:
        a = self.pick()
        bounds = [self.g.constant(np.float32(v)) if self.rng.random() < 0.6 else None for v in (-0.7, 0.7)]
        self.add(self.shapes[a], "clip", a, *bounds)

    def _reshape(self) -> None:
        x = self.pick()
        size = int(np.prod(self.shapes[x]))
        options = [(size,), (1, size), (2, size // 2), (size // 2, 2), (size // 3, 3), (2, 1, size // 2)]
        shape = tuple(int(d) for d in options[self.rng.integers(len(options))])
        if int(np.prod(shape)) == size:
            self.add(shape, "reshape", x, shape=shape)

    def _transpose(self) -> None:
        x = self.pick()
        perm = tuple(int(p) for p in self.rng.permutation(len(self.shapes[x])))
        self.add(tuple(self.shapes[x][p] for p in perm), "transpose", x, perm=perm)

    def _slice(self) -> None:
        x = self.pick()
        shape = self.shapes[x]
        axis = int(self.rng.integers(len(shape)))
        if shape[axis] < 2:
            return
        if self.rng.random() < 0.3:
            self.add(shape, "slice", x, starts=(-1,), ends=(-(1 << 60),), axes=(axis,), steps=(-1,))
            return
        new = (*shape[:axis], shape[axis] - 1, *shape[axis + 1 :])
        self.add(new, "slice", x, starts=(1,), ends=(shape[axis],), axes=(axis,), steps=(1,))

    def _split(self) -> None:
        x = self.pick()
        shape = self.shapes[x]
        axis = int(self.rng.integers(len(shape)))
        if shape[axis] < 2:
            return
        sizes = (1, shape[axis] - 1)
        names = self.g.ops("split", x, outputs=2, axis=axis, sizes=sizes)
        for name, size in zip(names, sizes, strict=True):
            self.shapes[name] = (*shape[:axis], size, *shape[axis + 1 :])

    def _expand(self) -> None:
        x = self.pick()
        if np.prod(self.shapes[x]) <= 24:
            shape = (2, *self.shapes[x])
            self.add(shape, "expand", x, shape=shape)

    def _concat(self) -> None:
        x = self.pick()
        shape = self.shapes[x]
        same = [n for n, s in self.shapes.items() if s == shape]
        parts = [x, *(same[self.rng.integers(len(same))] for _ in range(int(self.rng.integers(1, 3))))]
        axis = int(self.rng.integers(len(shape)))
        new = (*shape[:axis], shape[axis] * len(parts), *shape[axis + 1 :])
        if np.prod(new) <= 200:
            self.add(new, "concat", *parts, axis=axis)

    def _anchor(self) -> None:
        x = self.pick()
        shape = self.shapes[x]
        if self.rng.random() < 0.5:
            self.add(shape, "softmax", x, axis=-1)
        else:
            scale, bias = (self.g.constant(self.array(shape[-1])) for _ in range(2))
            self.add(shape, "layer_norm", x, scale, bias, axis=-1, epsilon=1e-5)

    def _matmul(self) -> None:
        x = self.pick(2)
        rows, depth = self.shapes[x]
        fits = [n for n, s in self.shapes.items() if len(s) == 2 and s[0] == depth]
        if fits and self.rng.random() < 0.5:
            w = fits[self.rng.integers(len(fits))]
            self.add((rows, self.shapes[w][1]), "matmul", x, w)
        else:
            self.add((rows, 6), "matmul", x, self.g.constant(self.array(depth, 6)))

    def _reduce(self) -> None:
        x = self.pick()
        shape = self.shapes[x]
        self.add((*shape[:-1], 1), "reduce_sum", x, axes=(-1,), keepdims=True)

    def _cache(self) -> None:
        caches = [n for n, s in self.shapes.items() if s == (1, 2, 4, 3)]
        new = [n for n, s in self.shapes.items() if int(np.prod(s)) == 6]
        row = new[-1] if new else self.g.constant(self.array(6))
        shaped = self.add((1, 2, 1, 3), "reshape", row, shape=(1, 2, 1, 3))
        position = self.g.constant(np.int64(self.rng.integers(0, 4)))
        self.add((1, 2, 4, 3), "kv_update", caches[-1], shaped, position)

    def build(self) -> Graph:
        self.start()
        for _ in range(self.count):
            self.grow()
        for state in self.g.states:
            fits = [n for n, s in self.shapes.items() if s == self.shapes[state]]
            if self.rng.random() < 0.8:
                self.g.updates[state] = fits[-1] if self.rng.random() < 0.6 else fits[self.rng.integers(len(fits))]
        computed = [n for n in self.shapes if n.startswith("v")]
        used = {i for node in self.g.nodes for i in node.inputs}
        outputs = [n for n in computed if n not in used and self.rng.random() < 0.7]
        outputs += [str(n) for n in self.rng.choice(list(self.shapes), 3)]
        return self.g.graph(*dict.fromkeys(outputs))


def random_graph(seed: int, nodes: int = 24) -> Graph:
    """A random graph of about `nodes` nodes."""
    return _Random(seed, nodes).build()


def random_inputs(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Inputs for it."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(t.shape).astype(t.dtype.numpy) for n, t in graph.inputs.items()}
