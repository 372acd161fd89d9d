"""Pointwise nodes: into the cluster of an operand where legal and worth it, else a cluster of their own."""

from __future__ import annotations

from functools import lru_cache

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, broadcast_strides
from superkernel.ir.body import Body, Instruction, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role
from superkernel.ir.graph import Node
from superkernel.ops.opdef import AttrValue
from superkernel.ops.table import traits_of
from superkernel.scheduler import legality, profit
from superkernel.scheduler.affine import Coords, Ref
from superkernel.scheduler.cluster import Cluster, Load, Prologue, Result, Store
from superkernel.scheduler.values import Accept, Reg, Values


def add_pointwise(values: Values, node: Node) -> None:
    """Place one POINTWISE node."""
    position = values.context.positions[node.name]
    out = node.outputs[0]
    shape = values.context.graph.types[out].shape
    cluster, coords = _target(values, node, position, shape)
    args = [_operand(values, cluster, coords, value) for value in node.inputs if value is not None]
    op, attrs = _instruction(node)
    cell = cluster.instruct(op, tuple(args), values.context.graph.types[out].dtype, attrs)
    cluster.nodes.append(position)
    values.put(out, cluster, cell, coords)


def single_body(values: Values, node: Node) -> Body:
    """The node alone as a program over dense rank-1 operands, of its size to the next power of two: what kernel
    selection is asked about its operator and types. An exponent or a count of a shift that is known when compiling is
    an immediate, as it will be in the program."""
    known = node.inputs[1] if traits_of(node.op).constant else None
    if known is not None and legality.is_scalar_constant(values, known):
        return _with_known(values, node, known)
    types = values.context.graph.types
    kinds = tuple([types[v].dtype for v in node.inputs if v is not None])
    return _single_body(*_instruction(node), kinds, types[node.outputs[0]].dtype, _single_shape(values, node))


@lru_cache(maxsize=256)
def _single_body(
    op: str, attrs: tuple[tuple[str, AttrValue], ...], kinds: tuple[DType, ...], out: DType, shape: tuple[int]
) -> Body:
    """That of all nodes that are alike."""
    operands = [Operand(Role.INPUT, TensorType(k, shape)) for k in kinds] + [
        Operand(Role.OUTPUT, TensorType(out, shape))
    ]
    program = PointwiseProgram(
        shape,
        tuple(ProgramInput(i, k, (1,)) for i, k in enumerate(kinds)),
        (Instruction(op, tuple(range(len(kinds))), out, attrs),),
        (ProgramOutput(len(kinds), len(kinds), (1,)),),
    )
    return Body(None, (), tuple(operands), (), (), (), program)


def _with_known(values: Values, node: Node, known: str) -> Body:
    base, kind = (values.context.graph.types[v].dtype for v in node.inputs if v is not None)
    out, shape = values.context.graph.types[node.outputs[0]].dtype, _single_shape(values, node)
    operands = (Operand(Role.INPUT, TensorType(base, shape)), Operand(Role.OUTPUT, TensorType(out, shape)))
    number = (("value", _scalar(values, known)),)
    steps = (Instruction("constant", (), kind, number), Instruction(node.op, (0, 1), out))
    program = PointwiseProgram(shape, (ProgramInput(0, base, (1,)),), steps, (ProgramOutput(2, 1, (1,)),))
    return Body(None, (), operands, (), (), (), program)


def _single_shape(values: Values, node: Node) -> tuple[int]:
    """Powers of two, so that few different questions are asked."""
    size = values.context.graph.types[node.outputs[0]].size
    return (1 << max(6, (size - 1).bit_length()),)


def _instruction(node: Node) -> tuple[str, tuple[tuple[str, AttrValue], ...]]:
    """The node as an instruction. SSA has no absent argument: a clip without lower bound is a minimum, one without
    bounds nothing."""
    present = [i for i, value in enumerate(node.inputs) if value is not None]
    if node.op == "clip" and present == [0]:
        return "identity", ()
    if node.op == "clip" and present == [0, 2]:
        return "minimum", ()
    return node.op, tuple(node.attrs.items())


def _target(values: Values, node: Node, position: int, shape: tuple[int, ...]) -> tuple[Cluster, Coords]:
    """The cluster to compute the node in, and the node's coordinates there."""
    if values.context.options.fuse:
        for cluster, coords in _candidates(values, node, shape):
            private = _private_parts(values, node, cluster, coords, position)
            why = legality.why_not_join(values, node, cluster, coords, {p.id for p in private})
            why = why or profit.too_big(cluster)
            if why is None:
                for part in private:
                    _absorb(values, part, cluster, node, coords)
                if cluster.nodes:
                    name = values.context.graph.nodes[cluster.nodes[0]].name
                    values.note(node.name, f"joined {name!r}", "its operand is at hand in registers")
                return cluster, coords
            values.note(node.name, f"not joined to {_name(values, cluster)!r}", why)
    return values.clusters.new(shape), Coords(shape)


def _name(values: Values, cluster: Cluster) -> str:
    if cluster.anchor is not None:
        return cluster.anchor.node.name
    return values.context.graph.nodes[cluster.nodes[0]].name if cluster.nodes else f"cluster {cluster.id}"


def _candidates(values: Values, node: Node, shape: tuple[int, ...]) -> list[tuple[Cluster, Coords]]:
    """Clusters that hold an operand of the node's full size in registers: anchors first, later ones first."""
    size = values.context.graph.types[node.outputs[0]].size
    found: dict[int, tuple[Cluster, Coords]] = {}
    for value in node.inputs:
        if value is None:
            continue
        reg = values.where[value]
        if isinstance(reg, Reg) and reg.slot < 0 and values.context.graph.types[value].size == size:
            cluster = values.clusters.find(reg.cluster)
            found.setdefault(cluster.id, (cluster, reg.coords.reshaped(shape)))
    return sorted(found.values(), key=lambda c: (c[0].anchor is None, -c[0].ancestors.bit_count(), -c[0].id))


def _private_parts(values: Values, node: Node, target: Cluster, coords: Coords, position: int) -> list[Cluster]:
    """Pointwise clusters that hold further operands, are read by nobody else, and can become part of the target, in
    which the node lies at `coords`."""
    found: list[Cluster] = []
    size = values.context.graph.types[node.outputs[0]].size
    for value in node.inputs:
        reg = None if value is None else values.where[value]
        if value is None or not isinstance(reg, Reg) or reg.slot >= 0 or values.context.graph.types[value].size != size:
            continue
        part = values.clusters.find(reg.cluster)
        if part is target or part in found or values.context.why_not_fusible(part, node):
            continue
        if not values.is_private(part, {position, *target.nodes}):
            continue
        if legality.why_not_absorb(values, part, target) or legality.touches_own_store(part, target):
            continue
        if legality.on_control_unit(values, part) != legality.on_control_unit(values, target):
            continue
        if profit.too_big(target, part, *found) is None:
            found.append(part)
    return [p for p in found if legality.rebase(values, p, _prefix(values, p, node, coords)) is not None]


def _prefix(values: Values, part: Cluster, node: Node, coords: Coords) -> Coords:
    """From the target's iteration space (the node lies there at `coords`) to the part's."""
    for value in node.inputs:
        reg = None if value is None else values.where[value]
        if value is None or not isinstance(reg, Reg) or values.clusters.find(reg.cluster) is not part:
            continue
        if values.context.graph.types[value].size == values.context.graph.types[node.outputs[0]].size:
            return coords.then(reg.coords.reshaped(coords.shape).inverse())
    raise AssertionError("the part holds no operand of the node")


def _absorb(values: Values, part: Cluster, into: Cluster, node: Node, coords: Coords) -> None:
    """Move the part's cells and stores into the target, over the target's iteration space."""
    prefix = _prefix(values, part, node, coords)
    moved = legality.rebase(values, part, prefix)
    assert moved is not None
    numbers = move_cells(part, prefix, into)
    for store in part.stores:
        strides = prefix.pull(store.strides)
        assert strides is not None
        into.stores.append(Store(numbers[store.cell], store.buffer, strides, store.offset))
    cells = {value: reg.cell for value in moved if isinstance(reg := values.where[value], Reg)}
    values.clusters.absorb(into, part)
    for value, place in moved.items():
        values.put(value, into, numbers[cells[value]], place)
    values.note(_name(values, part), f"joined {_name(values, into)!r}", "only read there")


def move_cells(part: Cluster, prefix: Coords, into: Cluster) -> list[int]:
    """Append the part's cells to another cluster; the new number of each."""
    numbers: list[int] = []
    for cell in part.cells:
        if isinstance(cell, Load):
            strides = prefix.pull(cell.strides)
            assert strides is not None
            numbers.append(into.add(Load(cell.buffer, strides, cell.offset, cell.dtype)))
        elif isinstance(cell, Instruction):
            numbers.append(into.instruct(cell.op, tuple(numbers[a] for a in cell.args), cell.dtype, cell.attrs))
        else:
            assert isinstance(cell, Result)
            raise AssertionError("a pointwise cluster has no anchor results")
    return numbers


def as_prologue(part: Cluster, prefix: Coords, value: int) -> tuple[Prologue, list[int]]:
    """The pointwise cluster as a program over an anchor's slot, and the new number of each of its cells."""
    scratch = Cluster(-1, prefix.base)
    numbers = move_cells(part, prefix, scratch)
    stores = []
    for store in part.stores:
        strides = prefix.pull(store.strides)
        assert strides is not None
        stores.append(Store(numbers[store.cell], store.buffer, strides, store.offset))
    return Prologue(prefix.base, scratch.cells, stores, numbers[value]), numbers


def _operand(values: Values, cluster: Cluster, coords: Coords, value: str) -> int:
    """The cell that holds the operand at the node's coordinates: an immediate, a register, or a load."""
    kind = values.context.graph.types[value]
    if legality.is_scalar_constant(values, value):
        return cluster.instruct("constant", (), kind.dtype, (("value", _scalar(values, value)),))
    found = values.where[value]
    if isinstance(found, Reg) and found.slot < 0 and values.clusters.find(found.cluster) is cluster:
        return found.cell
    codes = _codes_stored_beside(values, value)
    if codes is not None:
        node = values.context.graph.producers[value]
        args = [_operand(values, cluster, coords, name) for name in node.inputs if name is not None]
        op, attrs = _instruction(node)
        return cluster.instruct(op, tuple(args), kind.dtype, attrs)
    accept: Accept = lambda ref: _strides(coords, ref) is not None  # noqa: E731
    ref = values.demand(value, accept)
    strides = _strides(coords, ref)
    assert strides is not None, f"{value} is not affine over its reader's iteration space"
    return values.load(cluster, ref, strides)


def _codes_stored_beside(values: Values, value: str) -> str | None:
    """The codes of a value that is dequantised where they are computed: to read them and to dequantise again is less
    than to store and read what they mean. None of other values."""
    node, found = values.context.graph.producers.get(value), values.where[value]
    if node is None or node.op != "dequantize" or not isinstance(found, Reg) or found.slot >= 0:
        return None
    codes, *parameters = (name for name in node.inputs if name is not None)
    beside = values.where[codes]
    if not isinstance(beside, Reg) or values.clusters.find(beside.cluster) is not values.clusters.find(found.cluster):
        return None
    return codes if all(legality.is_scalar_constant(values, name) for name in parameters) else None


def _scalar(values: Values, value: str) -> int | float | bool:
    """The number in a constant of one element."""
    array = values.constant_of(value)
    assert array is not None
    element = array.reshape(-1)[0]
    return float(element) if values.context.graph.types[value].dtype.is_float else element.item()


def _strides(coords: Coords, ref: Ref) -> tuple[int, ...] | None:
    """Iteration-space strides of an operand that NumPy broadcasts to the node's shape."""
    return coords.pull(broadcast_strides(ref.shape, ref.strides, coords.shape))
