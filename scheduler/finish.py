"""The ends of a graph: outputs go to the caller's buffers, updated states to theirs.

A value that is computed here is stored straight into the output; what is an input, a constant, a state, or an output
already is copied. States change last of all: a state's new contents are written after everybody has read the old
ones.
"""

from __future__ import annotations

from superkernel.scheduler.affine import Ref, dense_ref
from superkernel.scheduler.cluster import Cluster
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.schedule import MemoryAddress, Space
from superkernel.scheduler.values import Reg, Values, any_view, only_dense


def place_outputs(values: Values) -> None:
    """Give every graph output its buffer."""
    for slot, value in enumerate(values.context.graph.outputs):
        address = MemoryAddress(Space.OUTPUT, slot, 0)
        kind = values.context.graph.types[value]
        ref = values.locate(value, only_dense)
        buffer = values.buffers[ref.buffer]
        if ref.is_dense and buffer.is_temporary and buffer.type.size == kind.size and ref.offset == 0:
            values.buffers[ref.buffer] = ValueBuffer(buffer.type, address)
            continue
        name = values.fresh(value)
        values.buffers[name] = ValueBuffer(kind, address)
        values.store_at(value, dense_ref(name, kind.shape))


def place_updates(values: Values) -> None:
    """Bring every updated state to its new contents."""
    pending: list[tuple[int, str, str]] = []
    for slot, state in enumerate(values.context.graph.states):
        value = values.context.graph.updates.get(state, state)
        if value != state and not _is_there(values, value, slot):
            pending.append((slot, state, value))
    staged = {slot: _staged(values, value) for slot, _, value in pending}
    for slot, state, value in pending:
        _write_state(values, slot, state, value, staged[slot])


def _is_there(values: Values, value: str, slot: int) -> bool:
    """True where the value was computed in the state's own place."""
    found = values.where[value]
    ref = values.locate(value, only_dense) if isinstance(found, Reg) and not values.can_store_freely(found) else found
    if not isinstance(ref, Ref):
        return False
    address = values.buffers[ref.buffer].address
    is_whole = ref.is_dense and ref.offset == 0 and address == MemoryAddress(Space.STATE, slot, 0)
    return is_whole and all(b.previous != ref.buffer for b in values.buffers.values())


def _staged(values: Values, value: str) -> Ref | None:
    """A copy of a value that lies in some state's place, made before any state changes; None where none is needed."""
    found = values.where[value]
    if isinstance(found, Reg) and values.can_store_freely(found):
        return None
    ref = values.locate(value, any_view)
    address = values.buffers[ref.buffer].address
    if address is None or address.space is not Space.STATE:
        return None
    name = values.fresh(value)
    values.buffers[name] = ValueBuffer(values.context.graph.types[value])
    staged = dense_ref(name, ref.shape)
    values.copy_at(value, values.demand(value, any_view), staged)
    return staged


def _write_state(values: Values, slot: int, state: str, value: str, staged: Ref | None) -> None:
    """Store the new contents, by the value's own cluster where everybody else can read the old ones before it."""
    address = MemoryAddress(Space.STATE, slot, 0)
    versions = [name for name, buffer in values.buffers.items() if buffer.address == address]
    clusters = values.clusters
    others = {c.id: c for n in versions for c in clusters.clusters_writing(n) + clusters.clusters_reading(n)}
    name = values.fresh(f"{state}.next")
    target = ValueBuffer(values.context.graph.types[state], address, previous=versions[-1])
    found = values.where[value]
    place, direct = dense_ref(name, target.type.shape), False
    if staged is None and isinstance(found, Reg) and values.can_store(found, found.coords.natural()):
        owner = clusters.find(found.cluster)
        clash = any(clusters.depends(c, owner) for c in others.values())
        direct = not clash and (owner.id not in others or _reads_elementwise(values, owner, versions, found))
    if direct:
        values.buffers[name] = target
        cluster = values.store_at(value, place)
        values.note(value, f"stored straight into state {state!r}", "every reader of the old contents runs before")
    else:
        ref = staged or values.demand(value, any_view)
        values.buffers[name] = target
        cluster = values.copy_at(value, ref, place)
        values.note(value, f"copied into state {state!r}", "the old contents are read elsewhere")
    for other in others.values():
        if other is not cluster:
            clusters.order_after(cluster, other)


def _reads_elementwise(values: Values, cluster: Cluster, versions: list[str], found: Reg) -> bool:
    """True where the cluster reads the state only at the very element that it then overwrites."""
    if (
        cluster.anchor is not None
        or found.slot >= 0
        or any(values.clusters.find(i) is cluster for v in versions for i in values.clusters.writers.get(v, ()))
    ):
        return False
    strides = found.coords.natural()
    loads = [load for v in versions for load in cluster.loads_of(v)]
    return all(load.strides == strides and load.offset == 0 for load in loads)
