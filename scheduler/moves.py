"""Reshapes, views and concatenations: folded into whoever computes or reads the value; real copies only where nothing
else helps.
"""

from __future__ import annotations

from dataclasses import replace

from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.graph import Node
from superkernel.scheduler.affine import Coords, Ref, permutation, same_strides, view_refs
from superkernel.scheduler.anchors import add_anchor
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.storage import IMAGE_OPS, stored_shape
from superkernel.scheduler.values import Accept, Derived, Reg, Values, only_dense


def add_view(values: Values, node: Node) -> None:
    """Place one RESHAPE or VIEW node: no work of its own."""
    source = node.inputs[0]
    assert source is not None
    found = values.where[source]
    shapes = [values.context.graph.types[o].shape for o in node.outputs]
    if isinstance(found, Reg):
        coords = _bijection(node, found.coords, shapes[0])
        if coords is not None:
            cluster = values.clusters.find(found.cluster)
            cluster.nodes.append(values.context.positions[node.name])
            values.put(node.outputs[0], cluster, found.cell, coords, found.slot)
            return
    if isinstance(found, Ref):
        refs = view_refs(node.op, node.attrs, found, shapes)
        if refs is None:  # a reshape that no strides can tell: copy, then it is an alias of the copy
            values.note(node.name, "copied", "the reshape of a strided view has no strides")
            refs = view_refs(node.op, node.attrs, values.demand(source, only_dense), shapes)
            assert refs is not None
        for out, ref in zip(node.outputs, refs, strict=True):
            values.where[out] = ref
        return
    for index, out in enumerate(node.outputs):
        values.where[out] = Derived(node, index, source)


def _bijection(node: Node, coords: Coords, shape: tuple[int, ...]) -> Coords | None:
    """The view as a change of coordinates of a value in registers, None where it is none (or has no dense layout)."""
    if node.op == "transpose":
        changed = coords.permuted(permutation(node.attrs, len(coords.shape)))
    elif node.op == "reshape" or (coords.shape == shape and node.op == "expand"):
        changed = coords.reshaped(shape)
    else:
        return None
    return changed if changed.natural() is not None else None


def materialise(values: Values, node: Node) -> None:
    """Without fusion every node's outputs lie dense in memory, in their layout, before the next node looks at them.
    What the caller gets lies row-major at once, where the node can store it so."""
    for out in node.outputs:
        handed_out = out in values.context.graph.outputs and node.op not in IMAGE_OPS
        wanted = None if handed_out else values.context.preferred(out)
        values.where[out] = values.demand(out, only_dense if wanted is None else _only(wanted))


def _only(wanted: tuple[int, ...]) -> Accept:
    return lambda ref: same_strides(ref.shape, ref.strides, wanted)


def add_concat(values: Values, node: Node) -> None:
    """Every part's cluster stores straight into its place; a part that lies in a buffer of its own already makes that
    buffer a piece of the whole where it can, one that lies in its place already stays there; what is left is copied."""
    out = node.outputs[0]
    kind = values.context.graph.types[out]
    axis = node.attrs.get("axis")
    at = (axis if isinstance(axis, int) else 0) % kind.rank
    window, strides, offset = _window(values, out)
    parts: list[tuple[str, Ref]] = []
    for value in node.inputs:
        if value is not None:
            shape = values.context.graph.types[value].shape
            parts.append((value, Ref(window, shape, strides, offset)))
            offset += shape[at] * strides[at]
    copied = [value for value, place in parts if not _needs_no_copy(values, node, value, place)]
    if not values.context.options.fuse or len(copied) == len(parts):
        add_anchor(values, node)
        return
    buffer = window or values.fresh(out)
    if not window:
        values.buffers[buffer] = ValueBuffer(TensorType(kind.dtype, stored_shape(kind.shape, strides)))
    for value, place in parts:
        if 0 not in place.shape:
            _store_part(values, node, value, replace(place, buffer=buffer))
    values.where[out] = Ref(buffer, kind.shape, strides, parts[0][1].offset)
    values.note(node.name, "written in place", f"{len(parts) - len(copied)} of {len(parts)} parts need no copy")


def _window(values: Values, out: str) -> tuple[str, tuple[int, ...], int]:
    """Buffer (empty: one of its own, not made yet), strides and offset of a concatenation. Where the policy lets
    several share the bytes of the largest, each has a window onto those, inside the next larger one's."""
    chain, first = [out], 0
    while (run := values.context.storage.aliases.get(chain[-1])) is not None and values.context.options.fuse:
        chain.append(run.whole)
        first += run.first
    kind = values.context.graph.types[chain[-1]]
    strides = values.context.preferred(chain[-1]) or row_major_strides(kind.shape)
    if len(chain) == 1:
        return values.aliases.windows.get(out, ""), strides, 0
    stored = TensorType(kind.dtype, stored_shape(kind.shape, strides))
    for i, value in reversed(list(enumerate(chain))):
        if value not in values.aliases.windows:
            name = values.aliases.windows[value] = values.fresh(value)
            inside = (values.aliases.windows[chain[i + 1]], 0) if i + 1 < len(chain) else None
            values.buffers[name] = ValueBuffer(stored, inside=inside)
    return values.aliases.windows[out], strides, first


def _needs_no_copy(values: Values, node: Node, value: str, place: Ref) -> bool:
    found = values.where[value]
    if isinstance(found, Reg) and values.can_store(found, found.coords.pull(place.strides)):
        return True
    return _adoptable(values, node, value, place) is not None or _there_already(values, value, place) is not None


def _refs(values: Values, value: str) -> list[Ref]:
    """Where the value lies in memory."""
    found = values.where[value]
    refs = [found] if isinstance(found, Ref) else []
    if isinstance(found, Reg):
        for store in values.program_of(found).stores:
            strides = found.coords.push(store.strides)
            if store.cell == found.cell and strides is not None:
                refs.append(Ref(store.buffer, found.coords.shape, strides, store.offset))
    return refs


def _adoptable(values: Values, node: Node, value: str, place: Ref) -> str | None:
    """The buffer that holds the part and can become a piece of the whole as it is: the part is a run of the whole, and
    the buffer a temporary one that nothing else claims."""
    shape = values.context.graph.types[value].shape
    if node.inputs.count(value) > 1 or 0 in shape or value in values.context.storage.aliases:
        return None
    for ref in _refs(values, value):
        buffer = values.buffers[ref.buffer]
        whole = ref.offset == 0 and buffer.type.size == values.context.graph.types[value].size
        if whole and buffer.is_temporary and same_strides(shape, ref.strides, place.strides):
            return ref.buffer
    return None


def _there_already(values: Values, value: str, place: Ref) -> str | None:
    """The buffer, a window onto the whole, through which the part lies in its place."""
    for ref in _refs(values, value):
        name, offset = ref.buffer, ref.offset * values.buffers[ref.buffer].type.dtype.itemsize
        while (inside := values.buffers[name].inside) is not None and name != place.buffer:
            name, offset = inside[0], offset + inside[1]
        right = name == place.buffer and offset == place.offset * values.buffers[name].type.dtype.itemsize
        if right and place.buffer and same_strides(ref.shape, ref.strides, place.strides):
            return ref.buffer
    return None


def _store_part(values: Values, node: Node, value: str, place: Ref) -> None:
    there = _there_already(values, value, place)
    adopted = None if there is not None else _adoptable(values, node, value, place)
    if adopted is not None:
        old = values.buffers[adopted]
        values.buffers[adopted] = replace(old, inside=(place.buffer, place.offset * old.type.dtype.itemsize))
    if there is not None or adopted is not None:
        for cluster in values.clusters.clusters_writing(there or adopted or ""):
            values.clusters.write(cluster, place.buffer)
        return
    values.store_at(value, place).nodes.append(values.context.positions[node.name])
