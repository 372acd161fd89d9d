"""Reshapes, views and concatenations: folded into whoever computes or reads the value; real copies only where nothing
else helps.
"""

from __future__ import annotations

from dataclasses import replace

from superkernel.graph import Node
from superkernel.scheduler.affine import Coords, Ref, dense_ref, permutation, view_refs
from superkernel.scheduler.anchors import add_anchor
from superkernel.scheduler.cluster import Store
from superkernel.scheduler.workspace import Buffer, Derived, Reg, Workspace, any_view, only_dense
from superkernel.tensor import row_major_strides


def add_view(ws: Workspace, node: Node) -> None:
    """Place one RESHAPE or VIEW node: no work of its own."""
    source = node.inputs[0]
    assert source is not None
    found = ws.values[source]
    shapes = [ws.graph.types[o].shape for o in node.outputs]
    if isinstance(found, Reg):
        coords = _bijection(node, found.coords, shapes[0])
        if coords is not None:
            cluster = ws.clusters.find(found.cluster)
            cluster.nodes.append(ws.positions[node.name])
            ws.put(node.outputs[0], cluster, found.cell, coords, found.slot)
            return
    if isinstance(found, Ref):
        refs = view_refs(node.op, node.attrs, found, shapes)
        if refs is None:  # a reshape that no strides can tell: copy, then it is an alias of the copy
            ws.note(node.name, "copied", "the reshape of a strided view has no strides")
            refs = view_refs(node.op, node.attrs, ws.demand(source, only_dense), shapes)
            assert refs is not None
        for out, ref in zip(node.outputs, refs, strict=True):
            ws.values[out] = ref
        return
    for index, out in enumerate(node.outputs):
        ws.values[out] = Derived(node, index)


def _bijection(node: Node, coords: Coords, shape: tuple[int, ...]) -> Coords | None:
    """The view as a change of coordinates of a value in registers, None where it is none (or has no dense layout)."""
    if node.op == "transpose":
        changed = coords.permuted(permutation(node.attrs, len(coords.shape)))
    elif node.op == "reshape" or (coords.shape == shape and node.op == "expand"):
        changed = coords.reshaped(shape)
    else:
        return None
    return changed if changed.natural() is not None else None


def materialise(ws: Workspace, node: Node) -> None:
    """Without fusion every node's outputs lie dense in memory before the next node looks at them."""
    for out in node.outputs:
        ws.values[out] = ws.demand(out, only_dense)


def add_concat(ws: Workspace, node: Node) -> None:
    """Every part's cluster stores straight into its place; a part that lies in a buffer of its own already makes that
    buffer a piece of the whole where it can; what is left is copied."""
    parts = [value for value in node.inputs if value is not None]
    copied = [v for v in parts if not _stores_anywhere(ws, v) and _adoptable(ws, node, v) is None]
    if not ws.options.fuse or len(copied) == len(parts):
        add_anchor(ws, node)
        return
    out = node.outputs[0]
    kind = ws.graph.types[out]
    axis = node.attrs.get("axis")
    at = (axis if isinstance(axis, int) else 0) % kind.rank
    buffer = ws.fresh(out)
    ws.buffers[buffer] = Buffer(kind)
    strides, offset = row_major_strides(kind.shape), 0
    for value in parts:
        shape = ws.graph.types[value].shape
        if 0 not in shape:
            _store_part(ws, node, value, Ref(buffer, shape, strides, offset))
        offset += shape[at] * strides[at]
    ws.values[out] = dense_ref(buffer, kind.shape)
    ws.note(node.name, "written in place", f"{len(parts) - len(copied)} of {len(parts)} parts need no copy")


def _stores_anywhere(ws: Workspace, value: str) -> bool:
    found = ws.values[value]
    return isinstance(found, Reg) and ws.can_store_freely(found)


def _adoptable(ws: Workspace, node: Node, value: str) -> str | None:
    """The buffer that holds the part and can become a piece of the whole as it is: the part is a run of the whole, and
    the buffer a temporary one that nothing else claims."""
    axis = node.attrs.get("axis")
    shape = ws.graph.types[value].shape
    at = (axis if isinstance(axis, int) else 0) % len(shape)
    if node.inputs.count(value) > 1 or any(d != 1 for d in shape[:at]) or 0 in shape:
        return None
    found = ws.values[value]
    refs = [found] if isinstance(found, Ref) else []
    if isinstance(found, Reg):
        for store in ws.stores_of(found):
            strides = found.coords.push(store.strides)
            if store.cell == found.cell and strides is not None:
                refs.append(Ref(store.buffer, shape, strides, store.offset))
    for ref in refs:
        buffer = ws.buffers[ref.buffer]
        whole = ref.is_dense and ref.offset == 0 and buffer.type.size == ws.graph.types[value].size
        if whole and buffer.is_temporary:
            return ref.buffer
    return None


def _store_part(ws: Workspace, node: Node, value: str, place: Ref) -> None:
    adopted = _adoptable(ws, node, value)
    if adopted is not None:
        old = ws.buffers[adopted]
        ws.buffers[adopted] = replace(old, inside=(place.buffer, place.offset * old.type.dtype.itemsize))
        for cluster in ws.clusters.clusters_writing(adopted):
            ws.clusters.write(cluster, place.buffer)
        return
    found = ws.values[value]
    strides = found.coords.pull(place.strides) if isinstance(found, Reg) and ws.can_store_freely(found) else None
    if isinstance(found, Reg) and strides is not None:
        cluster = ws.clusters.find(found.cluster)
        ws.stores_of(found).append(Store(found.cell, place.buffer, strides, place.offset))
    else:
        cluster = ws.copy_cluster(value, ws.demand(value, any_view))
        cluster.stores.append(Store(0, place.buffer, place.strides, place.offset))
    cluster.nodes.append(ws.positions[node.name])
    ws.clusters.write(cluster, place.buffer)
