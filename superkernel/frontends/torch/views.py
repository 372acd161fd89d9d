"""Results of a graph of TorchDynamo that lie in memory which something else has too: an input, or another result. What
writes to one behind the graph writes to the others in eager mode, so they must share memory here as well.

Model: a tensor's root is the node that made its memory, found by going back through the nodes whose values lie in it.
A result whose root is an input, or the root of another result as well, is made by the graph's own views, from the root;
the kernel computes the roots that are no inputs, and all other results. A view whose element type is another counts as
memory of its own.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from superkernel.core.errors import UnsupportedError


class SharedResults:
    """Which results of `graph` are computed and which are views. `only_views`: nothing is computed, nor written to."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        results: list[Any] = list(output.args[0])
        self._problem = ""
        self.only_views = False
        if any(is_functorch_wrapped_tensor(t) for n in graph.graph.nodes for t in _tensors(n)):
            self._problem = "a function that torch.func transforms (vmap, grad, ...): its tensors have no memory"
            return
        roots = [_root(r) for r in results]
        counts = Counter(root for root in roots if root is not None)
        shared = {i: root for i, root in enumerate(roots) if root and (root.op == "placeholder" or counts[root] > 1)}
        own = [i for i in range(len(results)) if i not in shared]
        self._graph, self._shared, self._own = graph, list(shared), own
        self._computed: list[Any] = [results[i] for i in own]
        code = torch.fx.Graph()
        env = {n: code.node_copy(n) for n in graph.graph.nodes if n.op == "placeholder"}
        inputs = len(env)
        for root in dict.fromkeys(shared.values()):
            if root not in env:
                self._computed.append(root)
                env[root] = code.placeholder(f"root_{root.name}")
        try:
            if shared and (reshaping := [n for n in graph.graph.nodes if _reshapes(n)]):
                raise _unviewed(reshaping[0])
            code.output(tuple(_copied(code, results[i], env) for i in shared))
        except UnsupportedError as error:
            self._problem = str(error)
        else:
            self._views = torch.fx.GraphModule(graph, code).forward
            calls = sum(n.op not in ("placeholder", "output") for n in graph.graph.nodes)
            self.only_views = not self._computed and len(env) - inputs == calls > 0

    def computing(self) -> torch.fx.GraphModule:
        """The graph with other results: those that are no views, and behind them what views are taken of. Raises
        UnsupportedError where results share memory in another way than by views."""
        if self._problem:
            raise UnsupportedError(self._problem)
        if not self._shared:
            return self._graph
        made = torch.fx.GraphModule(self._graph, copy.deepcopy(self._graph.graph))
        same = dict(zip(self._graph.graph.nodes, made.graph.nodes, strict=True))
        (output,) = (n for n in made.graph.nodes if n.op == "output")
        output.args = ([same.get(n, n) for n in self._computed],)
        made.recompile()
        return made

    def of(self, computed: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """All results, from those of `computing`, and the graph's arguments."""
        if not self._shared:
            return list(computed)
        results: list[Any] = [None] * (len(self._own) + len(self._shared))
        count = len(self._own)
        for i, value in zip(self._own, computed[:count], strict=True):
            results[i] = value
        for i, value in zip(self._shared, self._views(*arguments, *computed[count:]), strict=True):
            results[i] = value
        return results


def _copied(code: torch.fx.Graph, node: torch.fx.Node, env: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    """`node` in `code`, with the views it consists of. Raises UnsupportedError on anything else."""
    if node not in env:
        source = _source(node)
        if source is not None and _is_same(_value(node), _value(source)):
            return _copied(code, source, env)  # what has written to it has done so by now
        if _is_tensor(node) and source is None:
            raise _unviewed(node)
        for read in node.all_input_nodes:
            _copied(code, read, env)
        env[node] = code.node_copy(node, lambda n: _copied(code, n, env))
    return env[node]


def _unviewed(node: torch.fx.Node) -> UnsupportedError:
    hint = "return one of them, or a copy (.clone())"
    return UnsupportedError("results of the graph share memory", found=f"node {node.name!r}", hint=hint)


def _root(result: Any) -> torch.fx.Node | None:
    """The node that made a result's memory; None where that is no tensor by itself."""
    node = result
    while node is not None and _tensors(node):
        source = _source(node)
        if source is None:
            return node if _is_tensor(node) else None
        node = source
    return None


def _source(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node read by this one whose memory its value lies in."""
    if node.op == "placeholder":
        return None
    mine = _tensors(node)
    sharing = [n for n in node.all_input_nodes if any(_is_shared(a, b) for a in mine for b in _tensors(n))]
    same = [n for n in sharing if _is_same(_value(node), _value(n))]
    return next(iter((*same, *sharing)), None)


def _value(node: Any) -> Any:
    """What TorchDynamo says of a node's value."""
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _is_tensor(node: Any) -> bool:
    return isinstance(_value(node), torch.Tensor)


def _tensors(node: Any) -> list[torch.Tensor]:
    value = _value(node)
    return [v for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, torch.Tensor)]


def _is_shared(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype is not b.dtype or a.layout != torch.strided or b.layout != torch.strided:
        return False
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two values are tensors of all of the same memory in the same order. Nothing is asked of sizes that are
    not known: torch would take each answer for a condition on them."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if a is b:
        return True
    if a.dim() != b.dim() or not _is_shared(a, b):
        return False
    numbers = zip((a.storage_offset(), *a.shape, *a.stride()), (b.storage_offset(), *b.shape, *b.stride()), strict=True)
    return all(statically_known_true(x == y) for x, y in numbers)


_RESHAPING = frozenset(
    f"{name}_"
    for name in (
        "as_strided",
        "resize",
        "resize_as",
        "set",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "transpose",
        "unsqueeze",
    )
)
"""What gives a tensor another shape in place: TorchDynamo's value of each node that gives this tensor has the last."""


def _reshapes(node: torch.fx.Node) -> bool:
    return getattr(node.target, "__name__", node.target) in _RESHAPING
