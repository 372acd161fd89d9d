"""Operators that are no pointwise work: each becomes the anchor of a new cluster, its inputs read where the kernel
can take them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.ir.graph import Node
from superkernel.ops.opdef import AttrValue
from superkernel.ops.opdef import Family as OpFamily
from superkernel.scheduler import legality, profit
from superkernel.scheduler.affine import Coords, Ref, Shape, dense_ref, same_strides
from superkernel.scheduler.cluster import Anchor, Cluster, Load, Result, Store
from superkernel.scheduler.group_context import BY_GRAPH, GroupContext
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.join import as_prologue
from superkernel.scheduler.schedule import Space
from superkernel.scheduler.storage import CHANNEL, IMAGE_OPS, channels_inside
from superkernel.scheduler.values import Reg, Values, only_dense


def add_anchor(values: Values, node: Node) -> None:
    """Place one node as an anchor."""
    context, graph = values.context, values.context.graph
    types, outputs = graph.input_types(node), graph.output_types(node)
    if any(o.shape != outputs[0].shape for o in outputs):
        raise UnsupportedError("outputs of different shapes", location=f"node {node.name!r} ({node.op})")
    kernel = context.choose(plain_body(context, node, values.is_constant))
    update = graph.definition(node).family is OpFamily.UPDATE
    cluster = values.clusters.new(outputs[0].shape)
    cluster.nodes.append(context.positions[node.name])
    in_place = _in_place_source(values, node) if update and kernel != HOST_REFERENCE else None
    fuses = context.options.fuse and kernel != HOST_REFERENCE
    freely = fuses and not update
    takes = freely and context.takes_epilogue(kernel)
    if freely and not takes:
        values.note(node.name, "takes no epilogue", f"{kernel} has none on this target")
    anchor = cluster.anchor = Anchor(node, kernel, [None] * len(types), types, outputs, fuses, takes, freely)
    _feed(values, node, cluster, anchor, in_place)
    if fuses:
        _try_prologues(values, node, cluster, anchor)
    for index, (out, kind) in enumerate(zip(node.outputs, outputs, strict=True)):
        values.put(out, cluster, cluster.add(Result(index, kind.dtype)), Coords(kind.shape))
    if in_place is not None:
        _store_in_place(values, node, cluster, anchor, in_place)


def plain_body(context: GroupContext[Any], node: Node, is_constant: Callable[[str], bool]) -> Body:
    """The node alone, on dense operands: what kernel selection sees before anything is joined to it. On the host, where
    kernels differ by the layout of images, images have their strides."""
    types, outputs = context.graph.input_types(node), context.graph.output_types(node)
    images = node.op in IMAGE_OPS and context.target.layouts_compete
    first: dict[str, int] = {}
    feeds = []
    for slot, (value, kind) in enumerate(zip(node.inputs, types, strict=True)):
        if value is not None and kind is not None:
            strides = (context.preferred(value) if images and slot == 0 else None) or kind.strides
            feeds.append((slot, first.setdefault(value, slot), is_constant(value), strides))
    stored = tuple(
        [
            (context.preferred(value) if images else None) or kind.strides
            for value, kind in zip(node.outputs, outputs, strict=True)
        ]
    )
    return _plain_body(node.op, tuple(node.attrs.items()), types, outputs, tuple(feeds), stored)


@lru_cache(maxsize=256)
def _plain_body(
    op: str,
    attrs: tuple[tuple[str, AttrValue], ...],
    types: tuple[TensorType | None, ...],
    outputs: tuple[TensorType, ...],
    feeds: tuple[tuple[int, int, bool, Shape], ...],
    stored: tuple[Shape, ...],
) -> Body:
    """That of all nodes that are alike, as equal layers have them. `feeds`: slot, the first slot with the same value,
    whether it is a constant, strides."""
    firsts = [(constant, slot) for slot, first, constant, _ in feeds if slot == first]
    at = {slot: place for place, (_, slot) in enumerate(sorted(firsts))}
    kinds = {slot: kind for slot, kind in enumerate(types) if kind is not None}
    operands = [Operand(Role.CONSTANT if constant else Role.INPUT, kinds[slot]) for constant, slot in sorted(firsts)]
    views: list[View | None] = [None] * len(types)
    for slot, first, _, strides in feeds:
        views[slot] = View(at[first], kinds[slot].shape, strides)
    results = tuple(ProgramInput(-1 - k, kind.dtype) for k, kind in enumerate(outputs))
    stores = tuple(ProgramOutput(k, len(operands) + k, strides) for k, strides in enumerate(stored))
    operands += [Operand(Role.OUTPUT, kind) for kind in outputs]
    program = PointwiseProgram(outputs[0].shape, results, (), stores)
    return Body(op, attrs, tuple(operands), tuple(views), types, outputs, program)


def _feed(values: Values, node: Node, cluster: Cluster, anchor: Anchor, in_place: Ref | None) -> None:
    """Find every input in memory, in a form that the kernel takes. Inputs that may become a prologue wait for
    `_try_prologues`."""
    for slot, value in enumerate(node.inputs):
        kind = anchor.types[slot]
        if value is None or kind is None:
            continue
        if slot == 0 and in_place is not None:
            anchor.feeds[0] = in_place
            continue
        if not anchor.fuses or _prologue_part(values, node, anchor, slot) is None:
            _feed_from_memory(values, cluster, anchor, slot, value, kind)


def _feed_from_memory(
    values: Values, cluster: Cluster, anchor: Anchor, slot: int, value: str, kind: TensorType
) -> None:
    wanted, family_of = _image_strides(values, anchor, slot), values.context.family_of

    def accept(ref: Ref) -> bool:
        if ref.buffer in values.buffers and values.buffers[ref.buffer].is_constant:  # may be packed: the whole of it
            return ref.is_dense and values.buffers[ref.buffer].type == kind
        if wanted is not None:
            inside = channels_inside(ref.shape, ref.strides)
            if not inside and not family_of(anchor.kernel).reads_any_order(anchor.kernel, slot):
                return False
            if not anchor.fuses:
                return same_strides(ref.shape, ref.strides, wanted)
        elif ref.is_dense or not anchor.fuses:
            return ref.is_dense
        view = View(slot, ref.shape, ref.strides, ref.offset)
        return family_of(anchor.kernel).accepts_view(anchor.kernel, anchor.node.op, slot, view, kind.dtype)

    ref = values.demand(value, accept)
    anchor.feeds[slot] = ref
    values.clusters.read(cluster, ref.buffer)
    if not ref.is_dense:
        values.note(anchor.node.name, f"reads {value!r} as a strided view", f"{anchor.kernel} takes it without a copy")


def _image_strides(values: Values, anchor: Anchor, slot: int) -> tuple[int, ...] | None:
    """Strides of an image in the layout that the kernel reads in this slot; None where it has no such demand."""
    value = anchor.node.inputs[slot]
    if value is None or anchor.kernel == HOST_REFERENCE:
        return None
    if not values.context.moves_images(anchor.node) and (slot > 0 or anchor.node.op not in IMAGE_OPS):
        return None
    return values.context.preferred(value)


def _prologue_part(values: Values, node: Node, anchor: Anchor, slot: int) -> Cluster | None:
    """The pointwise cluster that computes the slot's value, where the kernel takes a prologue there and nothing
    speaks against it yet."""
    value = node.inputs[slot]
    assert value is not None
    found = values.where[value]
    if not isinstance(found, Reg) or found.slot >= 0 or node.inputs.count(value) > 1:
        return None
    part = values.clusters.find(found.cluster)
    family = values.context.family_of(anchor.kernel)
    if part.anchor is not None or not family.accepts_prologue(anchor.kernel, node.op, slot):
        return None
    why = _why_no_prologue(values, node, anchor, slot, part)
    if why is not None:
        values.note(node.name, f"{value!r} not taken as a prologue", why)
    return part if why is None else None


def _why_no_prologue(values: Values, node: Node, anchor: Anchor, slot: int, part: Cluster) -> str | None:
    context, kind = values.context, anchor.types[slot]
    family = context.family_of(anchor.kernel)
    private = values.is_private(part, {context.positions[node.name]})
    if not private and not family.prologue_may_store(anchor.kernel, node.op, slot):
        return "others read it too"
    if (why := context.why_not_fusible(part, node, in_front=True)) is not None:
        return why
    if legality.on_control_unit(values, part) != family.on_control_unit:
        return "one is a control unit's work, the other the engines'"
    assert kind is not None
    return profit.prologue_loses(part, context.graph.definition(node).family, kind.size)


def _try_prologues(values: Values, node: Node, cluster: Cluster, anchor: Anchor) -> None:
    for slot, value in enumerate(node.inputs):
        kind = anchor.types[slot]
        if value is None or kind is None or anchor.feeds[slot] is not None:
            continue
        part = _prologue_part(values, node, anchor, slot)
        found = values.where[value]
        if (
            part is None
            or not isinstance(found, Reg)
            or not _absorb_prologue(values, cluster, anchor, slot, part, found)
        ):
            _feed_from_memory(values, cluster, anchor, slot, value, kind)
        else:
            values.note(node.name, f"takes {value!r} as a prologue", f"{anchor.kernel} evaluates it while reading")


def _absorb_prologue(values: Values, cluster: Cluster, anchor: Anchor, slot: int, part: Cluster, found: Reg) -> bool:
    """Make the part the slot's prologue; False where that is not legal."""
    prefix = found.coords.inverse()
    moved = legality.rebase(values, part, prefix)
    why = legality.why_not_absorb(values, part, cluster)
    if why is None and moved is None:
        why = "not affine over the slot's shape"
    if why is None and _image_strides(values, anchor, slot) is not None and not _reads_channels_inside(part, prefix):
        why = "it reads another layout than channels last"
    if why is None and legality.touches_own_store(part, cluster):
        why = "its stored value is read by the same sub-operator"
    if why is not None or moved is None:
        values.note(anchor.node.name, f"input {slot} not taken as a prologue", why or "")
        return False
    places = {value: reg.cell for value in moved if isinstance(reg := values.where[value], Reg)}
    prologue, numbers = as_prologue(part, prefix, found.cell)
    anchor.feeds[slot] = prologue
    values.clusters.absorb(cluster, part)
    for value, coords in moved.items():
        values.put(value, cluster, numbers[places[value]], coords, slot)
    return True


def _reads_channels_inside(part: Cluster, prefix: Coords) -> bool:
    """True where the part, over the slot's shape, walks the channels of everything it loads side by side, or reads one
    element for all of them."""
    loads = (prefix.pull(cell.strides) for cell in part.cells if isinstance(cell, Load))
    return all(s is None or s[CHANNEL] == 0 or channels_inside(prefix.base, s) for s in loads)


# States ---------------------------------------------------------------------------------------------------------------


def _in_place_source(values: Values, node: Node) -> Ref | None:
    """Where the old contents lie, if they are a whole state that may be overwritten: nobody reads them after this
    node, and the state gets new contents in this run anyway."""
    value = node.inputs[0]
    assert value is not None
    found = values.where[value]
    if isinstance(found, Reg):
        found = values.locate(value, only_dense)
    if not isinstance(found, Ref) or not found.is_dense:
        return None
    address = values.buffers[found.buffer].address
    if address is None or address.space is not Space.STATE:
        return None
    state = list(values.context.graph.states)[address.slot]
    here = values.context.positions[node.name]
    root = values.aliases.versions.get(found.buffer, found.buffer)
    if values.context.graph.updates.get(state, state) == state:
        why = "the state keeps its contents"
    elif any(r == BY_GRAPH or r > here for r in values.context.readers(root)) or node.inputs.count(value) > 1:
        why = "the old contents are read later"
    else:
        values.note(node.name, f"updates {state!r} in place", "nobody reads the old contents later")
        return found
    values.note(node.name, f"copies {state!r}", why)
    return None


def _store_in_place(values: Values, node: Node, cluster: Cluster, anchor: Anchor, old: Ref) -> None:
    """The new contents take the old ones' bytes, after everybody has read those."""
    before = values.buffers[old.buffer]
    name = values.fresh(node.outputs[0])
    values.buffers[name] = ValueBuffer(anchor.outputs[0], before.address, previous=old.buffer)
    values.aliases.versions[name] = node.outputs[0]
    anchor.in_place = old.buffer
    anchor.feeds[0] = dense_ref(name, anchor.outputs[0].shape)
    cluster.stores.append(Store(0, name, row_major_strides(anchor.outputs[0].shape)))
    values.clusters.write(cluster, name)
    for other in values.clusters.clusters_writing(old.buffer) + values.clusters.clusters_reading(old.buffer):
        if other is not cluster:
            values.clusters.order_after(cluster, other)
