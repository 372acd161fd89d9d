"""What one grouping is asked to do, and questions that it answers whatever has been grouped so far.

Invariant: nothing here changes while grouping goes on; what does stands in `values`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from superkernel.core.options import Options
from superkernel.ir.body import Body
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family
from superkernel.scheduler.affine import Shape
from superkernel.scheduler.cluster import Cluster
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.storage import IMAGE_OPS, MOVED, Storage
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.base import Target

TargetT = TypeVar("TargetT", bound=Target)

BY_GRAPH = -1
"""In place of a reader's position: an output, or the new contents of a state."""


@dataclass(frozen=True)
class GroupContext(Generic[TargetT]):
    """The graph, the choice of a kernel for a body, the family of a kernel, and the layouts of what is materialised."""

    graph: Graph
    choose: Callable[[Body], str]
    options: Options
    family_of: Callable[[str], KernelFamily[TargetT]]
    storage: Storage
    target: TargetT

    @cached_property
    def positions(self) -> dict[str, int]:
        """Node name -> position in the graph."""
        return {node.name: i for i, node in enumerate(self.graph.nodes)}

    @cached_property
    def _readers(self) -> dict[str, frozenset[int]]:
        return {}

    def readers(self, value: str) -> frozenset[int]:
        """Positions of the nodes that read the value, looked at through reshapes and views; `BY_GRAPH` where the graph
        itself does."""
        known = self._readers.get(value)
        if known is None:
            found = set()
            if value in self.graph.outputs or value in self.graph.updates.values():
                found.add(BY_GRAPH)
            for node in self.graph.consumers.get(value, ()):
                if self.graph.definition(node).family in (Family.RESHAPE, Family.VIEW):
                    for out in node.outputs:
                        found |= self.readers(out)
                else:
                    found.add(self.positions[node.name])
            known = self._readers[value] = frozenset(found)
        return known

    def preferred(self, value: str) -> Shape | None:
        """Strides over the value's shape in which it is to lie in memory; None: row-major."""
        return self.storage.strides(value, self.graph.types[value])

    def takes_epilogue(self, kernel: str) -> bool:
        """Whether a kernel evaluates a pointwise program on its results."""
        return self.family_of(kernel).accepts_epilogue(kernel, self.target)

    def stores_images(self, node: Node, kernel: str) -> bool:
        """True where a kernel computes images for the node and so stores channels last only."""
        if kernel == HOST_REFERENCE or self.preferred(node.outputs[0]) is None:
            return False
        return node.op in IMAGE_OPS or self.moves_images(node)

    def moves_images(self, node: Node) -> bool:
        """True of what moves images by one kernel where nothing is fused: it reads and stores them as they lie."""
        return node.op in MOVED and not self.options.fuse and self.preferred(node.outputs[0]) is not None

    def why_not_fusible(self, cluster: Cluster, node: Node, *, in_front: bool = False) -> str | None:
        """Why a cluster's nodes and another node cannot run as one, if they cannot: they belong to different scopes
        (launches), or one names a type of kernel that the whole would not run as. `in_front`: the cluster becomes the
        prologue of `node`, which decides the type."""
        if not self.target.separates_scopes or not cluster.nodes:
            return None
        nodes = [self.graph.nodes[i] for i in cluster.nodes]
        if nodes[0].scope != node.scope:
            return "it belongs to another scope"
        named = {other.kernel_type for other in nodes} - {None}
        if in_front:
            fits = named <= {node.kernel_type}
        elif cluster.anchor is not None:
            fits = node.kernel_type in (None, cluster.anchor.node.kernel_type)
        else:
            fits = len((named | {node.kernel_type}) - {None}) <= 1
        return None if fits else "one of them names a type of kernel"
