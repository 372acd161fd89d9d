"""Where each graph value is while grouping goes on, and how to get it where a reader can take it.

Model: a value is in one of three states. `Ref`: in memory. `Reg`: computed by a cluster, in registers at some change
of coordinates; it is put into memory only on demand, in the layout that the reader can take (so a transpose behind a
matmul costs nothing: either the reader walks strides or the matmul stores transposed). `Derived`: a view (slice,
expand, split) of a value that is not in memory yet.

`demand` is the one way to memory: an existing store that the reader accepts, else a store in the order that the storage
policy prefers, else in the iteration order, else a dense store, else a copying cluster. Invariants: a cluster whose
anchor takes no epilogue has at most its results' own dense stores; one whose anchor computes images under
`CHANNELS_LAST` stores nothing but channels last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.options import Options
from superkernel.core.tensor import TensorType, channels_last_strides, row_major_strides
from superkernel.ir.body import Body, View
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family
from superkernel.scheduler.affine import Coords, Ref, Shape, dense_ref, view_refs
from superkernel.scheduler.cluster import Anchor, Cluster, ClusterSet, Load, Prologue, Store
from superkernel.scheduler.grouping import GroupNote, ValueBuffer
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.schedule import MemoryAddress, Space
from superkernel.scheduler.storage import (
    IMAGE_OPS,
    MOVED,
    Storage,
    channels_inside,
    stored_shape,
)
from superkernel.scheduler.tiling import AnyFamily
from superkernel.target.base import Target

Accept = Callable[[Ref], bool]
CONSTANTS = MemoryAddress(Space.CONSTANT, 0, 0)


@dataclass(frozen=True, slots=True)
class Reg:
    """Cell `cell` of a cluster (of its prologue in `slot`, where that is >= 0)."""

    cluster: int
    cell: int
    coords: Coords
    slot: int = -1


@dataclass(frozen=True, slots=True)
class Derived:
    """Output `index` of a view node over a value that is not in memory yet."""

    node: Node
    index: int


def any_view(_: Ref) -> bool:
    """Accepts everything."""
    return True


def only_dense(ref: Ref) -> bool:
    """Accepts contiguous runs."""
    return ref.is_dense


@dataclass(slots=True)
class Workspace:
    """The state of one grouping."""

    graph: Graph
    choose: Callable[[Body], str]
    options: Options
    family_of: Callable[[str], AnyFamily]
    storage: Storage
    target: Target
    takes_epilogue: Callable[[str], bool]  # whether a kernel does, on the target
    clusters: ClusterSet = field(default_factory=ClusterSet)
    values: dict[str, Ref | Reg | Derived] = field(default_factory=dict)
    buffers: dict[str, ValueBuffer] = field(default_factory=dict)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    members: dict[int, list[str]] = field(default_factory=dict)  # cluster -> values in its registers
    names: dict[tuple[int, int, int], str] = field(default_factory=dict)  # (cluster, slot, cell) -> its first value
    notes: list[GroupNote] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)  # node name -> position in the graph
    versions: dict[str, str] = field(default_factory=dict)  # buffer that took over another's bytes -> its graph value
    windows: dict[str, str] = field(default_factory=dict)  # concatenation that shares bytes with others -> its window
    control: set[int] = field(default_factory=set)  # positions of pointwise nodes that only a control unit computes
    _readers: dict[str, frozenset[int]] = field(default_factory=dict)

    def start(self) -> None:
        """Enter inputs, constants and states as buffers."""
        graph = self.graph
        self.positions = {node.name: i for i, node in enumerate(graph.nodes)}
        for i, (name, kind) in enumerate(graph.inputs.items()):
            self._enter(name, ValueBuffer(kind, MemoryAddress(Space.INPUT, i, 0)))
        for name, array in graph.constants.items():
            self._enter(name, ValueBuffer(graph.types[name], CONSTANTS))
            self.constants[name] = array
        for i, name in enumerate(graph.states):
            self._enter(name, ValueBuffer(graph.types[name], MemoryAddress(Space.STATE, i, 0)))

    def apart(self, cluster: Cluster, node: Node, *, in_front: bool = False) -> str | None:
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

    def _enter(self, name: str, buffer: ValueBuffer) -> None:
        self.buffers[name] = buffer
        self.values[name] = dense_ref(name, buffer.type.shape)

    def note(self, node: str, decision: str, reason: str) -> None:
        """Keeps a decision about a node with its reason, for `explain`."""
        self.notes.append(GroupNote(node, decision, reason))

    def new_version(self, value: str, buffer: str) -> None:
        """`buffer`, which takes over another one's bytes, holds the graph value."""
        self.versions[buffer] = value

    def root_value(self, buffer: str) -> str:
        """The graph value that a buffer in a state's place holds."""
        return self.versions.get(buffer, buffer)

    # Values -----------------------------------------------------------------------------------------------------------

    def put(self, value: str, cluster: Cluster, cell: int, coords: Coords, slot: int = -1) -> None:
        """`value` is in registers of the cluster."""
        self.values[value] = Reg(cluster.id, cell, coords, slot)
        self.members.setdefault(cluster.id, []).append(value)
        self.names.setdefault((cluster.id, slot, cell), value)

    def constant_of(self, value: str) -> NDArray[Any] | None:
        """The array behind a value that is a constant or a view of one."""
        found = self.values.get(value)
        if not isinstance(found, Ref) or not self.buffers[found.buffer].is_constant:
            return None
        flat = self.constants[found.buffer].reshape(-1)
        steps = tuple(s * flat.itemsize for s in found.strides)
        return np.lib.stride_tricks.as_strided(flat[found.offset :], found.shape, steps, writeable=False)

    def sources(self, value: str) -> list[Cluster]:
        """The clusters that must have run before the value can be read from memory."""
        found = self.values[value]
        while isinstance(found, Derived):
            value = _first_input(found.node)
            found = self.values[value]
        if isinstance(found, Reg):
            return [self.clusters.find(found.cluster)]
        return self.clusters.clusters_writing(found.buffer)

    def readers(self, value: str) -> frozenset[int]:
        """Positions of the nodes that read the value, looked at through reshapes and views; -1: the graph itself
        (output, update)."""
        known = self._readers.get(value)
        if known is None:
            found = set()
            if value in self.graph.outputs or value in self.graph.updates.values():
                found.add(-1)
            for node in self.graph.consumers.get(value, ()):
                if self.graph.definition(node).family in (Family.RESHAPE, Family.VIEW):
                    for out in node.outputs:
                        found |= self.readers(out)
                else:
                    found.add(self.positions[node.name])
            known = self._readers[value] = frozenset(found)
        return known

    def is_private(self, cluster: Cluster, allowed: set[int]) -> bool:
        """True where nobody but the cluster's own nodes and `allowed` reads what the cluster computes."""
        inside = allowed | set(cluster.nodes)
        return all(self.readers(value) <= inside for value in self.members.get(cluster.id, ()))

    # Memory -----------------------------------------------------------------------------------------------------------

    def stores_of(self, reg: Reg) -> list[Store]:
        """Where a register's value goes: stores of its cluster, or of the prologue that it stands in."""
        cluster = self.clusters.find(reg.cluster)
        if reg.slot < 0:
            return cluster.stores
        assert cluster.anchor is not None
        feed = cluster.anchor.feeds[reg.slot]
        assert isinstance(feed, Prologue)
        return feed.stores

    def can_store_freely(self, reg: Reg) -> bool:
        """True where the value's cluster can store it in any layout and more than once."""
        anchor = self.clusters.find(reg.cluster).anchor
        return anchor is None or anchor.stores_freely

    def preferred(self, value: str) -> Shape | None:
        """Strides over the value's shape in which it is to lie in memory; None: row-major."""
        return self.storage.strides(value, self.graph.types[value])

    def is_image_anchor(self, cluster: Cluster) -> bool:
        """True where the cluster's anchor computes images and so stores channels last only."""
        anchor = cluster.anchor
        if anchor is None or anchor.kernel == HOST_REFERENCE:
            return False
        if anchor.node.op not in IMAGE_OPS and not self.moves_images(anchor):
            return False
        return self.preferred(anchor.node.outputs[0]) is not None

    def moves_images(self, anchor: Anchor) -> bool:
        """True of what moves images by one kernel where nothing is fused: it reads and stores them as they lie."""
        return anchor.node.op in MOVED and not self.options.fuse and self.preferred(anchor.node.outputs[0]) is not None

    def can_store(self, reg: Reg, strides: Shape | None) -> bool:
        """True where the value's cluster can store it with these iteration-space strides, besides what it stores
        already."""
        if strides is None or not self.can_store_freely(reg):
            return False
        cluster = self.clusters.find(reg.cluster)
        anchor = cluster.anchor
        if anchor is None or reg.slot >= 0:
            return True
        if self.is_image_anchor(cluster) and not channels_inside(cluster.shape, strides):
            return False
        dtype = _dtype_of(cluster, reg.cell)
        view = View(0, cluster.shape, strides)
        return self.family_of(anchor.kernel).accepts_store(anchor.kernel, anchor.node.op, view, dtype)

    def _orders(self, value: str, found: Reg) -> list[Shape]:
        """Iteration-space strides of dense stores of the value that its cluster can make, favourite first."""
        base = row_major_strides(found.coords.base)
        cluster = self.clusters.find(found.cluster)
        if found.slot < 0 and self.is_image_anchor(cluster):  # with or without fusion
            return [channels_last_strides(cluster.shape)]
        if not self.can_store_freely(found):
            return [base]
        orders = []
        for name in (value, self.names.get((cluster.id, found.slot, found.cell), value)):
            strides, origin = self.preferred(name), self.values[name]
            if strides is not None and isinstance(origin, Reg) and origin.coords.base == found.coords.base:
                pulled = origin.coords.pull(strides)
                orders += [pulled] if pulled is not None and self.can_store(found, pulled) else []
        return [*orders, base]

    def locate(self, value: str, accept: Accept) -> Ref:
        """A place in memory of the value, one that is accepted where that needs no copy."""
        found = self.values[value]
        if isinstance(found, Ref):
            return found
        if isinstance(found, Derived):
            return self._locate_derived(value, found, accept)
        shape = found.coords.shape
        first: Ref | None = None
        for store in self.stores_of(found):
            if store.cell != found.cell:
                continue
            strides = found.coords.push(store.strides)
            if strides is not None:
                ref = Ref(store.buffer, shape, strides, store.offset)
                if accept(ref):
                    return ref
                first = first or ref
        if first is not None and not self.can_store_freely(found):
            return first
        for order in self._orders(value, found):
            strides = found.coords.push(order)
            if strides is not None and accept(Ref("", shape, strides)):
                return Ref(self._store_whole(found, order), shape, strides)
        natural = found.coords.natural()
        if self.can_store_freely(found):
            assert natural is not None, f"no dense layout for {value}"
        if natural is not None and self.can_store(found, natural):
            return dense_ref(self.store(found, natural, shape, value), shape)
        return first or self._stored_as_it_can(value, found, accept)

    def _store_whole(self, found: Reg, strides: Shape) -> str:
        return self.store(found, strides, stored_shape(found.coords.base, strides))

    def _stored_as_it_can(self, value: str, found: Reg, accept: Accept) -> Ref:
        """The value where its cluster cannot store it as the reader wants: in the cluster's own order, seen through
        strides, or copied where this alias of the result cannot be told in strides."""
        base = found.coords.base
        store = next((s for s in self.stores_of(found) if s.cell == found.cell), None)
        if store is None:
            order = self._orders(value, found)[0]
            whole = Ref(self._store_whole(found, order), base, order)
        else:
            whole = Ref(store.buffer, base, store.strides, store.offset)
        strides = found.coords.push(whole.strides)
        if strides is not None:
            return Ref(whole.buffer, found.coords.shape, strides, whole.offset)
        return self._copied_through(value, whole, found.coords, accept)

    def _locate_derived(self, value: str, found: Derived, accept: Accept) -> Ref:
        shapes = [self.graph.types[o].shape for o in found.node.outputs]

        def view(ref: Ref) -> Ref | None:
            refs = view_refs(found.node.op, found.node.attrs, ref, shapes)
            return None if refs is None else refs[found.index]

        def fits(ref: Ref) -> bool:
            seen = view(ref)
            return seen is not None and accept(seen)

        source = _first_input(found.node)
        ref = view(self.locate(source, fits))
        if ref is None and self.preferred(value) is not None:  # a reshape of a strided view to an image
            cluster = self.copy_cluster(value, strided := self.locate(source, any_view))
            self.put(value, cluster, 0, Coords(strided.shape).reshaped(shapes[found.index]))
            return self._locate_copy(value, accept)
        if ref is None:  # a reshape of a strided view: only a copy helps
            ref = view(self.demand(source, only_dense))
            assert ref is not None
        return ref

    def _copied_through(self, value: str, ref: Ref, coords: Coords, accept: Accept) -> Ref:
        cluster = self.copy_cluster(value, ref)
        self.put(value, cluster, 0, Coords(ref.shape).then(coords))
        return self._locate_copy(value, accept)

    def _locate_copy(self, value: str, accept: Accept) -> Ref:
        """The value that a copying cluster holds: as its reader wants an image, else dense."""
        return self.locate(value, only_dense if self.preferred(value) is None else accept)

    def demand(self, value: str, accept: Accept) -> Ref:
        """A place in memory that `accept` takes; copies as the last resort (a dense place is always accepted)."""
        ref = self.locate(value, accept)
        if accept(ref):
            return ref
        array = self.constant_of(value)
        if array is not None:
            return self.fold_constant(value, array)
        self.note(value, "copied", "its reader takes no such view")
        cluster = self.copy_cluster(value, ref)
        self.put(value, cluster, 0, Coords(ref.shape))
        return self._locate_copy(value, accept)

    def fold_constant(self, value: str, array: NDArray[Any]) -> Ref:
        """A view of a constant becomes a constant of its own."""
        name = self.fresh(value)
        self.constants[name] = np.ascontiguousarray(array).reshape(array.shape)
        self._enter(name, ValueBuffer(self.graph.types[value], CONSTANTS))
        found = self.values[value] = self.values[name]
        assert isinstance(found, Ref)
        return found

    def store(self, reg: Reg, strides: Shape, shape: Shape, name: str | None = None) -> str:
        """Add a store of the register into a new buffer; its name."""
        cluster = self.clusters.find(reg.cluster)
        buffer = self.fresh(name or self.names[(cluster.id, reg.slot, reg.cell)])
        cells = cluster.cells
        if reg.slot >= 0:
            assert cluster.anchor is not None
            feed = cluster.anchor.feeds[reg.slot]
            assert isinstance(feed, Prologue)
            cells = feed.cells
        self.buffers[buffer] = ValueBuffer(TensorType(cells[reg.cell].dtype, shape))
        self.stores_of(reg).append(Store(reg.cell, buffer, strides))
        self.clusters.write(cluster, buffer)
        return buffer

    def fresh(self, name: str) -> str:
        """`name`, or a variation that is no buffer yet."""
        found, count = name, 1
        while found in self.buffers:
            found, count = f"{name}.{count}", count + 1
        return found

    def copy_cluster(self, value: str, ref: Ref) -> Cluster:
        """A new cluster whose cell 0 is the ref's element."""
        cluster = self.clusters.new(ref.shape)
        self.load(cluster, ref, ref.strides)
        producer = self.graph.producers.get(value)
        if producer is not None:
            cluster.nodes.append(self.positions[producer.name])
        return cluster

    def load(self, cluster: Cluster, ref: Ref, strides: Shape) -> int:
        """The cell that loads the ref through iteration-space strides."""
        self.clusters.read(cluster, ref.buffer)
        return cluster.add(Load(ref.buffer, strides, ref.offset, self.buffers[ref.buffer].type.dtype))


def _dtype_of(cluster: Cluster, cell: int) -> DType:
    return cluster.cells[cell].dtype


def _first_input(node: Node) -> str:
    name = node.inputs[0]
    assert name is not None
    return name
