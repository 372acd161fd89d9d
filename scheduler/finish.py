"""The ends of a graph: outputs go to the caller's buffers, updated states to theirs.

A value that is computed here is stored straight into the output; what is an input, a constant, a state, or an output
already is copied. States change last of all: a state's new contents are written after everybody has read the old
ones.
"""

from __future__ import annotations

from superkernel.core.tensor import row_major_strides
from superkernel.scheduler.affine import Ref
from superkernel.scheduler.cluster import Cluster, Store
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.schedule import MemoryAddress, Space
from superkernel.scheduler.workspace import Reg, Workspace, any_view, only_dense


def place_outputs(ws: Workspace) -> None:
    """Give every graph output its buffer."""
    for slot, value in enumerate(ws.graph.outputs):
        address = MemoryAddress(Space.OUTPUT, slot, 0)
        kind = ws.graph.types[value]
        ref = ws.locate(value, only_dense)
        buffer = ws.buffers[ref.buffer]
        if ref.is_dense and buffer.is_temporary and buffer.type.size == kind.size and ref.offset == 0:
            ws.buffers[ref.buffer] = ValueBuffer(buffer.type, address)
            continue
        _store_to(ws, value, ValueBuffer(kind, address))


def _store_to(ws: Workspace, value: str, target: ValueBuffer) -> Cluster:
    """One more store of the value, dense, by its own cluster where that is possible, else by a copy."""
    name = ws.fresh(value)
    found = ws.values[value]
    ws.buffers[name] = target
    strides = found.coords.natural() if isinstance(found, Reg) else None
    if isinstance(found, Reg) and strides is not None and ws.can_store(found, strides):
        cluster = ws.clusters.find(found.cluster)
        ws.stores_of(found).append(Store(found.cell, name, strides))
    else:
        cluster = _copy_to(ws, value, name)
    ws.clusters.write(cluster, name)
    return cluster


def _copy_to(ws: Workspace, value: str, name: str) -> Cluster:
    ref = ws.demand(value, any_view)
    cluster = ws.copy_cluster(value, ref)
    cluster.stores.append(Store(0, name, row_major_strides(ref.shape)))
    ws.clusters.write(cluster, name)
    return cluster


def place_updates(ws: Workspace) -> None:
    """Bring every updated state to its new contents."""
    pending: list[tuple[int, str, str]] = []
    for slot, state in enumerate(ws.graph.states):
        value = ws.graph.updates.get(state, state)
        if value != state and not _is_there(ws, value, slot):
            pending.append((slot, state, value))
    staged = {slot: _staged(ws, value) for slot, _, value in pending}
    for slot, state, value in pending:
        _write_state(ws, slot, state, value, staged[slot])


def _is_there(ws: Workspace, value: str, slot: int) -> bool:
    """True where the value was computed in the state's own place."""
    found = ws.values[value]
    ref = ws.locate(value, only_dense) if isinstance(found, Reg) and not ws.can_store_freely(found) else found
    if not isinstance(ref, Ref):
        return False
    address = ws.buffers[ref.buffer].address
    return (
        ref.is_dense and ref.offset == 0 and address == MemoryAddress(Space.STATE, slot, 0) and _is_last(ws, ref.buffer)
    )


def _is_last(ws: Workspace, buffer: str) -> bool:
    return all(b.previous != buffer for b in ws.buffers.values())


def _staged(ws: Workspace, value: str) -> Ref | None:
    """A copy of a value that lies in some state's place, made before any state changes; None where none is needed."""
    found = ws.values[value]
    if isinstance(found, Reg) and ws.can_store_freely(found):
        return None
    ref = ws.locate(value, any_view)
    address = ws.buffers[ref.buffer].address
    if address is None or address.space is not Space.STATE:
        return None
    name = ws.fresh(value)
    ws.buffers[name] = ValueBuffer(ws.graph.types[value])
    _copy_to(ws, value, name)
    return Ref(name, ref.shape, row_major_strides(ref.shape))


def _write_state(ws: Workspace, slot: int, state: str, value: str, staged: Ref | None) -> None:
    """Store the new contents, by the value's own cluster where everybody else can read the old ones before it."""
    address = MemoryAddress(Space.STATE, slot, 0)
    versions = [name for name, buffer in ws.buffers.items() if buffer.address == address]
    others = {
        c.id: c for name in versions for c in ws.clusters.clusters_writing(name) + ws.clusters.clusters_reading(name)
    }
    name = ws.fresh(f"{state}.next")
    target = ValueBuffer(ws.graph.types[state], address, previous=versions[-1])
    found = ws.values[value]
    direct: Cluster | None = None
    if staged is None and isinstance(found, Reg) and ws.can_store(found, found.coords.natural()):
        owner = ws.clusters.find(found.cluster)
        clash = any(ws.clusters.depends(c, owner) for c in others.values())
        if not clash and (owner.id not in others or _reads_elementwise(ws, owner, versions, found)):
            direct = owner
    if direct is not None and isinstance(found, Reg):
        strides = found.coords.natural()
        assert strides is not None
        ws.buffers[name] = target
        ws.stores_of(found).append(Store(found.cell, name, strides))
        cluster = direct
        ws.note(value, f"stored straight into state {state!r}", "every reader of the old contents runs before")
    else:
        if staged is None:
            ref = ws.demand(value, any_view)
        else:
            ref = staged
        ws.buffers[name] = target
        cluster = ws.copy_cluster(value, ref)
        cluster.stores.append(Store(0, name, row_major_strides(ref.shape)))
        ws.note(value, f"copied into state {state!r}", "the old contents are read elsewhere")
    ws.clusters.write(cluster, name)
    for other in others.values():
        if other is not cluster:
            ws.clusters.order_after(cluster, other)


def _reads_elementwise(ws: Workspace, cluster: Cluster, versions: list[str], found: Reg) -> bool:
    """True where the cluster reads the state only at the very element that it then overwrites."""
    if (
        cluster.anchor is not None
        or found.slot >= 0
        or any(ws.clusters.find(i) is cluster for v in versions for i in ws.clusters.writers.get(v, ()))
    ):
        return False
    strides = found.coords.natural()
    loads = [load for v in versions for load in cluster.loads_of(v)]
    return all(load.strides == strides and load.offset == 0 for load in loads)
