"""May two pieces become one sub-operator? Predicates only; whether they should is asked in `profit.py`.

Each predicate returns None where the join is legal, else the reason why not (a short phrase for `explain`).
"""

from __future__ import annotations

from superkernel.core.tensor import broadcast_strides, row_major_strides
from superkernel.ir.graph import Node
from superkernel.scheduler.affine import Coords, Ref, same_strides
from superkernel.scheduler.cluster import Cluster, Load
from superkernel.scheduler.values import Reg, Values


def same_element(a: Coords, b: Coords) -> bool:
    """True where two values of equal shape are computed at the same iteration for every element."""
    if a == b:
        return True
    dense = row_major_strides(a.shape)
    left, right = a.pull(dense), b.pull(dense)
    return left is not None and right is not None and same_strides(a.base, left, right)


def why_not_join(values: Values, node: Node, cluster: Cluster, coords: Coords, private: set[int]) -> str | None:
    """Pointwise `node`, its output at `coords` of the cluster, as a further instruction of it. `private` are clusters
    that would be absorbed and so need not run before."""
    if cluster.anchor is not None and not cluster.anchor.takes_epilogue:
        return f"{cluster.anchor.kernel} takes no epilogue"
    if (why := values.context.why_not_fusible(cluster, node)) is not None:
        return why
    if (why := _why_elsewhere(values, node, cluster)) is not None:
        return why
    if coords.natural() is None:
        return "the result has no affine layout over the iteration space"
    shape = coords.shape
    for value in node.inputs:
        if value is None or is_scalar_constant(values, value):
            continue
        found = values.where[value]
        if isinstance(found, Reg):
            owner = values.clusters.find(found.cluster)
            if owner is cluster:
                if found.slot >= 0:
                    return "an operand is computed in front of the anchor"
                if found.coords.shape != shape and not _only_ones_differ(found.coords.shape, shape):
                    return "an operand is the sub-operator's own result, broadcast"
                if not same_element(found.coords.reshaped(shape), coords):
                    return "an operand is the sub-operator's own result at other positions"
                continue
            if owner.id in private:
                continue
        for source in values.sources(value):
            if source is cluster or values.clusters.depends(source, cluster):
                return "an operand is computed later, from the sub-operator's own result"
        if coords.pull(_operand_strides(values, value, shape)) is None:
            return "an operand is not affine over the iteration space"
    return None


def on_control_unit(values: Values, cluster: Cluster) -> bool:
    """Whether no engine computes the cluster: a control unit does, which computes anything, but slowly."""
    if cluster.anchor is not None:
        return values.context.family_of(cluster.anchor.kernel).on_control_unit
    return not values.control.isdisjoint(cluster.nodes)


def _why_elsewhere(values: Values, node: Node, cluster: Cluster) -> str | None:
    """A control unit and the engines share no program; small integers an engine could do go with the others."""
    alone, shared = values.context.positions[node.name] in values.control, on_control_unit(values, cluster)
    if alone and not shared:
        return "only a control unit computes it"
    kinds = [values.context.graph.types[v] for v in (*node.inputs, *node.outputs) if v is not None]
    if shared and not alone and any(k.dtype.is_float for k in kinds):
        return "the vector engine computes it faster than the control unit that computes its operand"
    return None


def _only_ones_differ(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return [d for d in a if d != 1] == [d for d in b if d != 1]


def _operand_strides(values: Values, value: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast strides of the operand: as it lies in memory, or dense where it is not there yet."""
    found = values.where[value]
    if isinstance(found, Ref):
        return broadcast_strides(found.shape, found.strides, shape)
    own = values.context.graph.types[value].shape
    return broadcast_strides(own, row_major_strides(own), shape)


def is_scalar_constant(values: Values, value: str) -> bool:
    """True of constants of one element: they become immediates."""
    return values.context.graph.types[value].size == 1 and values.is_constant(value)


def rebase(values: Values, part: Cluster, prefix: Coords) -> dict[str, Coords] | None:
    """Coordinates of every value in the registers of `part` over another iteration space (`prefix` leads from it to
    the part's), None where a load, store or value would not be affine there."""
    for cell in part.cells:
        if isinstance(cell, Load) and prefix.pull(cell.strides) is None:
            return None
    if any(prefix.pull(store.strides) is None for store in part.stores):
        return None
    moved = {}
    for value in values.members.get(part.id, ()):
        found = values.where[value]
        if isinstance(found, Reg) and values.clusters.find(found.cluster) is part:
            moved[value] = prefix.then(found.coords)
            if moved[value].natural() is None:
                return None
    return moved


def why_not_absorb(values: Values, part: Cluster, into: Cluster) -> str | None:
    """The pointwise cluster `part` as a piece of `into`."""
    if part.anchor is not None:
        return "it has an anchor of its own"
    if values.clusters.has_path_between(part, into) or values.clusters.depends(part, into):
        return "another sub-operator stands between the two"
    return None


def touches_own_store(part: Cluster, into: Cluster) -> bool:
    """True where one of the two loads a buffer that the other stores: inside one sub-operator there is no order for
    that."""
    stored = {store.buffer for store in (*part.stores, *into.stores)}
    loads = {cell.buffer for cell in (*part.cells, *into.cells) if isinstance(cell, Load)}
    if into.anchor is not None:
        for feed in into.anchor.feeds:
            if isinstance(feed, Ref):
                loads.add(feed.buffer)
            elif feed is not None:
                loads |= {cell.buffer for cell in feed.cells if isinstance(cell, Load)}
                stored |= {store.buffer for store in feed.stores}
    return not stored.isdisjoint(loads)
