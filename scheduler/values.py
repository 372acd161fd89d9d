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

from superkernel.core.frozen import frozen
from superkernel.core.tensor import TensorType, channels_last_strides, row_major_strides, strided_view
from superkernel.ir.body import View
from superkernel.ir.graph import Node
from superkernel.scheduler.affine import Coords, Ref, Shape, dense_ref, view_refs
from superkernel.scheduler.cluster import Cluster, ClusterSet, Load, Prologue, Store
from superkernel.scheduler.group_context import GroupContext
from superkernel.scheduler.grouping import GroupNote, ValueBuffer
from superkernel.scheduler.schedule import MemoryAddress, Space
from superkernel.scheduler.storage import channels_inside, stored_shape

Accept = Callable[[Ref], bool]
CONSTANTS = MemoryAddress(Space.CONSTANT, 0, 0)


@frozen()
class Reg:
    """Cell `cell` of a cluster (of its prologue in `slot`, where that is >= 0)."""

    cluster: int
    cell: int
    coords: Coords
    slot: int = -1


@frozen()
class Derived:
    """Output `index` of a view node over `source`, a value that is not in memory yet."""

    node: Node
    index: int
    source: str


@dataclass(slots=True)
class Aliases:
    """Buffers of the same bytes. `versions`: one that took over another's bytes -> the graph value that it holds;
    `windows`: a concatenation that shares bytes with others -> its window onto those."""

    versions: dict[str, str] = field(default_factory=dict)
    windows: dict[str, str] = field(default_factory=dict)


def any_view(_: Ref) -> bool:
    """Accepts everything."""
    return True


def only_dense(ref: Ref) -> bool:
    """Accepts contiguous runs."""
    return ref.is_dense


class Values:
    """The state of one grouping: `where` each value is, the buffers made so far with the `constants` among them, who
    computes what (`clusters`), and why (`notes`). `control`: positions of pointwise nodes that only a control unit
    computes. Inputs, constants and states are there from the beginning."""

    def __init__(self, context: GroupContext[Any]) -> None:
        self.context = context
        self.clusters = ClusterSet()
        self.where: dict[str, Ref | Reg | Derived] = {}
        self.buffers: dict[str, ValueBuffer] = {}
        self.constants: dict[str, NDArray[Any]] = {}
        self.aliases = Aliases()
        self.members: dict[int, list[str]] = {}  # cluster -> values in its registers
        self.notes: list[GroupNote] = []
        self.control: set[int] = set()
        self._parts: dict[tuple[str, int, TensorType, bool], str] = {}
        self._names: dict[tuple[int, int, int], str] = {}  # (cluster, slot, cell) -> its first value
        graph = context.graph
        for i, (name, kind) in enumerate(graph.inputs.items()):
            self._enter(name, ValueBuffer(kind, MemoryAddress(Space.INPUT, i, 0)))
        for name, array in graph.constants.items():
            self._enter(name, ValueBuffer(graph.types[name], CONSTANTS))
            self.constants[name] = array
        for i, name in enumerate(graph.states):
            self._enter(name, ValueBuffer(graph.types[name], MemoryAddress(Space.STATE, i, 0)))

    def _enter(self, name: str, buffer: ValueBuffer) -> Ref:
        self.buffers[name] = buffer
        ref = self.where[name] = dense_ref(name, buffer.type.shape)
        return ref

    def note(self, node: str, decision: str, reason: str) -> None:
        """Keeps a decision about a node with its reason, for `explain`."""
        self.notes.append(GroupNote(node, decision, reason))

    def put(self, value: str, cluster: Cluster, cell: int, coords: Coords, slot: int = -1) -> None:
        """`value` is in registers of the cluster."""
        self.where[value] = Reg(cluster.id, cell, coords, slot)
        self.members.setdefault(cluster.id, []).append(value)
        self._names.setdefault((cluster.id, slot, cell), value)

    def constant_of(self, value: str) -> NDArray[Any] | None:
        """The array behind a value that is a constant or a view of one."""
        found = self.where.get(value)
        if not isinstance(found, Ref) or not self.is_constant(value):
            return None
        return strided_view(self.constants[found.buffer], found.shape, found.strides, found.offset)

    def is_constant(self, value: str) -> bool:
        """Whether there is an array behind the value (`constant_of`)."""
        found = self.where.get(value)
        return isinstance(found, Ref) and self.buffers[found.buffer].is_constant

    def sources(self, value: str) -> list[Cluster]:
        """The clusters that must have run before the value can be read from memory."""
        found = self.where[value]
        while isinstance(found, Derived):
            found = self.where[found.source]
        if isinstance(found, Reg):
            return [self.clusters.find(found.cluster)]
        return self.clusters.clusters_writing(found.buffer)

    def is_private(self, cluster: Cluster, allowed: set[int]) -> bool:
        """True where only the cluster's own nodes and `allowed` read what the cluster computes."""
        inside = allowed | set(cluster.nodes)
        return all(self.context.readers(value) <= inside for value in self.members.get(cluster.id, ()))

    # Stores -----------------------------------------------------------------------------------------------------------

    def program_of(self, reg: Reg) -> Cluster | Prologue:
        """Whose cells and stores a register belongs to: its cluster's, or those of the prologue that it stands in."""
        cluster = self.clusters.find(reg.cluster)
        if reg.slot < 0:
            return cluster
        assert cluster.anchor is not None
        feed = cluster.anchor.feeds[reg.slot]
        assert isinstance(feed, Prologue)
        return feed

    def can_store_freely(self, reg: Reg) -> bool:
        """True where the value's cluster can store it in any layout and more than once."""
        anchor = self.clusters.find(reg.cluster).anchor
        return anchor is None or anchor.stores_freely

    def _stores_images(self, cluster: Cluster) -> bool:
        anchor = cluster.anchor
        return anchor is not None and self.context.stores_images(anchor.node, anchor.kernel)

    def can_store(self, reg: Reg, strides: Shape | None) -> bool:
        """True where the value's cluster can store it with these iteration-space strides, besides what it stores
        already."""
        if strides is None or not self.can_store_freely(reg):
            return False
        cluster = self.clusters.find(reg.cluster)
        anchor = cluster.anchor
        if anchor is None or reg.slot >= 0:
            return True
        if self._stores_images(cluster) and not channels_inside(cluster.shape, strides):
            return False
        view, dtype = View(0, cluster.shape, strides), cluster.cells[reg.cell].dtype
        return self.context.family_of(anchor.kernel).accepts_store(anchor.kernel, anchor.node.op, view, dtype)

    def _orders(self, value: str, found: Reg) -> list[Shape]:
        """Iteration-space strides of dense stores of the value that its cluster can make, favourite first."""
        base = row_major_strides(found.coords.base)
        cluster = self.clusters.find(found.cluster)
        if found.slot < 0 and self._stores_images(cluster):  # with or without fusion
            return [channels_last_strides(cluster.shape)]
        if not self.can_store_freely(found):
            return [base]
        orders = []
        for name in (value, self._names.get((cluster.id, found.slot, found.cell), value)):
            strides, origin = self.context.preferred(name), self.where[name]
            if strides is not None and isinstance(origin, Reg) and origin.coords.base == found.coords.base:
                pulled = origin.coords.pull(strides)
                orders += [pulled] if pulled is not None and self.can_store(found, pulled) else []
        return [*orders, base]

    def _store(self, reg: Reg, strides: Shape, shape: Shape, name: str | None = None) -> str:
        """Add a store of the register into a new buffer; its name."""
        cluster, program = self.clusters.find(reg.cluster), self.program_of(reg)
        buffer = self.fresh(name or self._names[cluster.id, reg.slot, reg.cell])
        self.buffers[buffer] = ValueBuffer(TensorType(program.cells[reg.cell].dtype, shape))
        program.stores.append(Store(reg.cell, buffer, strides))
        self.clusters.write(cluster, buffer)
        return buffer

    def _store_whole(self, found: Reg, strides: Shape) -> str:
        return self._store(found, strides, stored_shape(found.coords.base, strides))

    def store_at(self, value: str, target: Ref) -> Cluster:
        """Store the value at its place in a buffer, by its own cluster where that can, else by a copy; who does."""
        found = self.where[value]
        strides = found.coords.pull(target.strides) if isinstance(found, Reg) else None
        if not isinstance(found, Reg) or strides is None or not self.can_store(found, strides):
            return self.copy_at(value, self.demand(value, any_view), target)
        cluster = self.clusters.find(found.cluster)
        self.program_of(found).stores.append(Store(found.cell, target.buffer, strides, target.offset))
        self.clusters.write(cluster, target.buffer)
        return cluster

    # Memory -----------------------------------------------------------------------------------------------------------

    def demand(self, value: str, accept: Accept) -> Ref:
        """A place in memory that `accept` takes; copies as the last resort (a dense place is always accepted)."""
        ref = self.locate(value, accept)
        if accept(ref):
            return ref
        array = self.constant_of(value)
        if array is not None:
            return self.fold_constant(value, array)
        self.note(value, "copied", "its reader takes no such view")
        return self._copied(value, ref, Coords(ref.shape), accept)

    def locate(self, value: str, accept: Accept) -> Ref:
        """A place in memory of the value, one that is accepted where that needs no copy."""
        found = self.where[value]
        if isinstance(found, Ref):
            return found
        if isinstance(found, Derived):
            return self._locate_derived(value, found, accept)
        shape = found.coords.shape
        first: Ref | None = None
        for store in self.program_of(found).stores:
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
            return dense_ref(self._store(found, natural, shape, value), shape)
        return first or self._stored_as_it_can(value, found, accept)

    def _stored_as_it_can(self, value: str, found: Reg, accept: Accept) -> Ref:
        """The value where its cluster cannot store it as the reader wants: in the cluster's own order, seen through
        strides, or copied where this alias of the result cannot be told in strides."""
        base = found.coords.base
        store = next((s for s in self.program_of(found).stores if s.cell == found.cell), None)
        if store is None:
            order = self._orders(value, found)[0]
            whole = Ref(self._store_whole(found, order), base, order)
        else:
            whole = Ref(store.buffer, base, store.strides, store.offset)
        strides = found.coords.push(whole.strides)
        if strides is not None:
            return Ref(whole.buffer, found.coords.shape, strides, whole.offset)
        return self._copied(value, whole, Coords(whole.shape).then(found.coords), accept)

    def _locate_derived(self, value: str, found: Derived, accept: Accept) -> Ref:
        shapes = [self.context.graph.types[o].shape for o in found.node.outputs]

        def view(ref: Ref) -> Ref | None:
            refs = view_refs(found.node.op, found.node.attrs, ref, shapes)
            return None if refs is None else refs[found.index]

        def fits(ref: Ref) -> bool:
            seen = view(ref)
            return seen is not None and accept(seen)

        ref = view(self.locate(found.source, fits))
        if ref is None and self.context.preferred(value) is not None:  # a reshape of a strided view to an image
            strided = self.locate(found.source, any_view)
            return self._copied(value, strided, Coords(strided.shape).reshaped(shapes[found.index]), accept)
        if ref is None:  # a reshape of a strided view: only a copy helps
            ref = view(self.demand(found.source, only_dense))
            assert ref is not None
        return ref

    def fold_constant(self, value: str, array: NDArray[Any]) -> Ref:
        """A view of a constant becomes a constant of its own."""
        name = self.fresh(value)
        self.constants[name] = np.ascontiguousarray(array).reshape(array.shape)
        ref = self.where[value] = self._enter(name, ValueBuffer(self.context.graph.types[value], CONSTANTS))
        return ref

    def part(self, name: str, first: int, kind: TensorType, *, written: bool) -> str:
        """The part of a buffer that begins with some element of it: to read, where equal ones are one, or to write."""
        key = (name, first, kind, written)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self.fresh(f"{name}@{first}")
            self.buffers[found] = ValueBuffer(kind, inside=(name, first * kind.dtype.itemsize))
        return found

    def fresh(self, name: str) -> str:
        """`name`, or a variation that is no buffer yet."""
        found, count = name, 1
        while found in self.buffers:
            found, count = f"{name}.{count}", count + 1
        return found

    # Copies -----------------------------------------------------------------------------------------------------------

    def _copied(self, value: str, ref: Ref, coords: Coords, accept: Accept) -> Ref:
        """The value out of a copying cluster, which has it at `coords`: as its reader wants an image, else dense."""
        self.put(value, self._copy_cluster(value, ref), 0, coords)
        return self.locate(value, only_dense if self.context.preferred(value) is None else accept)

    def copy_at(self, value: str, ref: Ref, target: Ref) -> Cluster:
        """A new cluster that copies the value, which lies at `ref`, to its place in a buffer."""
        cluster = self._copy_cluster(value, ref)
        cluster.stores.append(Store(0, target.buffer, target.strides, target.offset))
        self.clusters.write(cluster, target.buffer)
        return cluster

    def _copy_cluster(self, value: str, ref: Ref) -> Cluster:
        """A new cluster whose cell 0 is the ref's element."""
        cluster = self.clusters.new(ref.shape)
        self.load(cluster, ref, ref.strides)
        producer = self.context.graph.producers.get(value)
        if producer is not None:
            cluster.nodes.append(self.context.positions[producer.name])
        return cluster

    def load(self, cluster: Cluster, ref: Ref, strides: Shape) -> int:
        """The cell that loads the ref through iteration-space strides."""
        self.clusters.read(cluster, ref.buffer)
        return cluster.add(Load(ref.buffer, strides, ref.offset, self.buffers[ref.buffer].type.dtype))
