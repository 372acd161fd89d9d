"""Sub-operators under construction: clusters of nodes and the order between them.

Model: a `Cluster` is an iteration space with SSA cells (loads, results of the anchor, pointwise instructions),
perhaps an anchor with its inputs, and stores into buffers. `ClusterSet` keeps the dependence order: `ancestors` is a
bit set over cluster ids, kept transitively closed while clusters join, so that "would this join close a cycle?" is
one `and`.

Invariants: a merged cluster's id stays valid (`find`); cells are only appended, so a cell number never changes its
meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from superkernel.core.dtypes import DType
from superkernel.core.frozen import frozen
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Instruction
from superkernel.ir.graph import Node
from superkernel.ops.opdef import AttrValue
from superkernel.scheduler.affine import Ref, Shape


@frozen()
class Load:
    """Cell: an element of a buffer."""

    buffer: str
    strides: Shape
    offset: int
    dtype: DType


@frozen()
class Result:
    """Cell: result `index` of the anchor at the present coordinates."""

    index: int
    dtype: DType


Cell = Load | Result | Instruction


@frozen()
class Store:
    """A cell's value goes to a buffer."""

    cell: int
    buffer: str
    strides: Shape
    offset: int = 0


@dataclass(slots=True)
class Prologue:
    """A pointwise program that feeds an anchor's slot: iteration space = the slot's shape; `value` is the cell that
    the slot reads."""

    shape: Shape
    cells: list[Cell]
    stores: list[Store]
    value: int


AnchorFeed = Ref | Prologue | None


@dataclass(slots=True)
class Anchor:
    """The operator a cluster is built around. `fuses`: it may be joined with others; `takes_epilogue`: further
    instructions can follow it; `stores_freely`: its result can be stored in any layout and more than once."""

    node: Node
    kernel: str
    feeds: list[AnchorFeed]
    types: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    fuses: bool
    takes_epilogue: bool
    stores_freely: bool
    in_place: str | None = None  # the buffer version that the INOUT operand had before


@dataclass(slots=True)
class Cluster:
    """See the module docstring."""

    id: int
    shape: Shape
    anchor: Anchor | None = None
    cells: list[Cell] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)  # graph positions of the nodes it computes
    bits: int = 0  # ids of this cluster and of those merged into it
    ancestors: int = 0  # ids of all clusters that must run before
    has_dependents: bool = False
    known: dict[Cell, int] = field(default_factory=dict)

    def add(self, cell: Cell) -> int:
        """The number of the cell; equal cells are shared."""
        found = self.known.get(cell)
        if found is None:
            found = self.known[cell] = len(self.cells)
            self.cells.append(cell)
        return found

    def instruct(self, op: str, args: tuple[int, ...], dtype: DType, attrs: Iterable[tuple[str, AttrValue]]) -> int:
        """Adds an instruction on cells of this cluster; the number of its cell."""
        return self.add(Instruction(op, args, dtype, tuple(attrs)))

    @property
    def instruction_count(self) -> int:
        """Cells that compute, loads and constants not counted."""
        return sum(isinstance(cell, Instruction) for cell in self.cells)

    def loads_of(self, buffer: str) -> list[Load]:
        """Cells that read a buffer."""
        return [cell for cell in self.cells if isinstance(cell, Load) and cell.buffer == buffer]


class ClusterSet:
    """All clusters and their order."""

    def __init__(self) -> None:
        self._all: list[Cluster] = []
        self._merged_into: dict[int, int] = {}
        self.writers: dict[str, list[int]] = {}  # buffer -> clusters that store into it
        self.readers: dict[str, list[int]] = {}

    def new(self, shape: Shape) -> Cluster:
        """An empty cluster over an iteration space, last in order."""
        cluster = Cluster(len(self._all), shape)
        cluster.bits = 1 << cluster.id
        self._all.append(cluster)
        return cluster

    def find(self, cluster_id: int) -> Cluster:
        """The cluster that the id belongs to by now."""
        while cluster_id in self._merged_into:
            cluster_id = self._merged_into[cluster_id]
        return self._all[cluster_id]

    def alive(self) -> list[Cluster]:
        """Those that no other has taken in, in order."""
        return [c for c in self._all if c.id not in self._merged_into]

    @staticmethod
    def depends(later: Cluster, earlier: Cluster) -> bool:
        """True where `later` must run after `earlier`."""
        return bool(later.ancestors & earlier.bits)

    def order_after(self, later: Cluster, earlier: Cluster) -> None:
        """`later` runs after `earlier`. The caller has checked that this closes no cycle."""
        fresh = (earlier.bits | earlier.ancestors) & ~later.ancestors
        earlier.has_dependents = True
        if not fresh:
            return
        later.ancestors |= fresh
        if later.has_dependents:
            self._spread(later, fresh)

    def _spread(self, source: Cluster, fresh: int) -> None:
        for other in self._all:
            if other.ancestors & source.bits:
                other.ancestors |= fresh

    def write(self, cluster: Cluster, buffer: str) -> None:
        """Enters a cluster as a writer of a buffer, once."""
        ids = self.writers.setdefault(buffer, [])
        if all(self.find(i) is not cluster for i in ids):
            ids.append(cluster.id)

    def read(self, cluster: Cluster, buffer: str) -> None:
        """Note the read and order it after the buffer's writers."""
        ids = self.readers.setdefault(buffer, [])
        if cluster.id not in ids:
            ids.append(cluster.id)
        for writer in self.clusters_writing(buffer):
            if writer is not cluster:
                self.order_after(cluster, writer)

    def clusters_writing(self, buffer: str) -> list[Cluster]:
        """Who writes a buffer; one that was taken in counts as who took it."""
        return [self.find(i) for i in self.writers.get(buffer, ())]

    def clusters_reading(self, buffer: str) -> list[Cluster]:
        """Who reads a buffer; one that was taken in counts as who took it."""
        return [self.find(i) for i in self.readers.get(buffer, ())]

    def has_path_between(self, earlier: Cluster, later: Cluster) -> bool:
        """True where some third cluster must run after `earlier` and before `later`: the two cannot become one."""
        between = later.ancestors & ~earlier.bits & ~earlier.ancestors
        return any(between & c.bits and c.ancestors & earlier.bits for c in self._all)

    def absorb(self, into: Cluster, other: Cluster) -> None:
        """`other` becomes part of `into` (cells and stores are the caller's business). Legal where no path leads
        between them through a third cluster, in either direction."""
        self._merged_into[other.id] = into.id
        into.bits |= other.bits
        into.ancestors = (into.ancestors | other.ancestors) & ~into.bits
        into.nodes.extend(other.nodes)
        into.has_dependents |= other.has_dependents
        if into.has_dependents:  # whoever waited for either part now waits for the whole
            whole = into.ancestors | into.bits
            for cluster in self._all:
                if cluster.ancestors & into.bits:
                    cluster.ancestors |= whole
