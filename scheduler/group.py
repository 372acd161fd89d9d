"""Graph -> sub-operators: each an anchor with the pointwise work around it, or pointwise work alone.

Model: one pass over the nodes in topological order. Reshapes, transposes, slices, expands and splits are re-indexing,
never work by themselves (`moves`). A pointwise node joins the cluster that holds one of its operands in registers
(`join`); anything else becomes the anchor of a new cluster (`anchors`), which may take the pointwise work in front of
it as a prologue. Values reach memory only where a reader needs them (`values`). Outputs and states come last
(`finish`); then clusters become bodies (`program_builder`).

Invariants: the sub-operators stand in an order that respects every read, write and overwrite; every node of the graph
whose value is needed is computed exactly once; inputs and constants are never written; a state is written only after
its old contents have been read by everybody. `legality` says what may be joined, `profit` what should; every decision
leaves a `GroupNote`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from superkernel.core.options import Options
from superkernel.ir.body import Body, SubOperator
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family
from superkernel.scheduler.anchors import add_anchor
from superkernel.scheduler.cluster import Cluster
from superkernel.scheduler.finish import place_outputs, place_updates
from superkernel.scheduler.group_context import GroupContext, TargetT
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.join import add_pointwise, single_body
from superkernel.scheduler.moves import add_concat, add_view, materialise
from superkernel.scheduler.program_builder import build_body, parts_only
from superkernel.scheduler.storage import StoragePolicy
from superkernel.scheduler.tiling import KernelFamily
from superkernel.scheduler.values import Values

Choose = Callable[[Body], str]


def _nameless(kernel: str, body: Body) -> str:
    """In place of canonical names where none are asked for."""
    return ""


def group(
    graph: Graph,
    choose: Choose,
    target: TargetT,
    options: Options,
    families: Callable[[str], KernelFamily[TargetT]],
    storage: StoragePolicy,
    name_of: Callable[[str, Body], str] = _nameless,
) -> Grouping:
    """Group the graph for a target. `choose` gives the kernel id for a body (`host.reference`: NumPy), `families` the
    family behind it, `storage` the layout of what is materialised (`layout.py`), `name_of` a kernel's canonical name
    for a body. Grouping itself asks no figure of the target; families may."""
    values = Values(
        GroupContext(graph, cache(choose), options, families, storage.of(graph, target.image_ranks), target)
    )
    for node in graph.nodes:
        family = graph.definition(node).family
        if family in (Family.RESHAPE, Family.VIEW):
            add_view(values, node)
        elif node.op == "concat":
            add_concat(values, node)
        elif family is Family.POINTWISE and _has_kernel(values, node.name):
            add_pointwise(values, node)
        else:
            add_anchor(values, node)
        if not options.fuse and family is not Family.RESHAPE:
            materialise(values, node)
    place_outputs(values)
    place_updates(values)
    return Grouping(_build(values, name_of), values.buffers, values.constants, tuple(values.notes))


def _has_kernel(values: Values, name: str) -> bool:
    """True where the pointwise node can be part of a program: its plain form has a kernel other than the reference."""
    position = values.context.positions[name]
    kernel = values.context.choose(single_body(values, values.context.graph.nodes[position]))
    if values.context.family_of(kernel).on_control_unit:
        values.control.add(position)
    return kernel != HOST_REFERENCE


def _build(values: Values, name_of: Callable[[str, Body], str]) -> tuple[SubOperator, ...]:
    shared: dict[Body, Body] = {}
    kernel_names: dict[tuple[str, int], str] = {}  # equal layers share their bodies
    found: list[SubOperator] = []
    taken: set[str] = set()
    for cluster in _in_order(values):
        body, operands = build_body(values, cluster)
        body = shared.setdefault(body, body)
        if values.context.target.begins_inside:
            body, operands = parts_only(values, body, operands)
            body = shared.setdefault(body, body)
        kernel = values.context.choose(body) if cluster.anchor is None else cluster.anchor.kernel
        nodes = [values.context.graph.nodes[i] for i in sorted(set(cluster.nodes))]
        lead = cluster.anchor.node if cluster.anchor is not None else nodes[-1] if nodes else None
        names = tuple(node.name for node in nodes)
        name = lead.name if lead is not None else f"copy:{operands[-1]}"
        name = _free_name(name, body, taken)
        taken.add(name)
        scope, stream = (lead.scope, lead.stream) if lead is not None else (None, None)
        wanted = _wanted_type([lead] if cluster.anchor is not None and lead is not None else nodes)
        key = kernel, id(body)
        if key not in kernel_names:
            kernel_names[key] = name_of(kernel, body)
        kernel_name = kernel_names[key]
        found.append(SubOperator(len(found), name, body, operands, names, kernel, scope, stream, wanted, kernel_name))
    return tuple(found)


def _free_name(name: str, body: Body, taken: Collection[str]) -> str:
    """The name itself for who computes the node; who copies its value elsewhere afterwards is told apart."""
    if name not in taken:
        return name
    casts = body.op is None and any(instruction.op == "cast" for instruction in body.epilogue.instructions)
    made = first = f"{name}/{'cast' if casts else 'copy'}"
    count = 1
    while made in taken:
        made, count = f"{first}.{count}", count + 1
    return made


def _wanted_type(nodes: Sequence[Node]) -> str | None:
    """The kernel type that the last of the nodes with one names: behind a chain's last node of the user's there may be
    a cast, which names none."""
    return next((node.kernel_type.value for node in reversed(nodes) if node.kernel_type is not None), None)


def _in_order(values: Values) -> list[Cluster]:
    """Clusters that store something, by their first node as far as dependences allow."""
    alive = [c for c in values.clusters.alive() if c.stores or _stores_in_prologue(c)]
    by_bit = {}
    for cluster in alive:
        for bit in _bits(cluster.bits):
            by_bit[bit] = cluster
    done = 0
    order: list[Cluster] = []

    def emit(cluster: Cluster) -> None:
        nonlocal done
        if done & cluster.bits:
            return
        before = {by_bit[b].id: by_bit[b] for b in _bits(cluster.ancestors & ~done) if b in by_bit}
        for ancestor in sorted(before.values(), key=lambda c: (c.ancestors.bit_count(), c.id)):
            if not done & ancestor.bits:
                done |= ancestor.bits
                order.append(ancestor)
        done |= cluster.bits
        order.append(cluster)

    for cluster in sorted(alive, key=lambda c: (min(c.nodes, default=len(values.context.graph.nodes)), c.id)):
        emit(cluster)
    return order


def _stores_in_prologue(cluster: Cluster) -> bool:
    feeds = cluster.anchor.feeds if cluster.anchor is not None else ()
    return any(getattr(feed, "stores", None) for feed in feeds)


def _bits(word: int) -> list[int]:
    found = []
    while word:
        low = word & -word
        found.append(low.bit_length() - 1)
        word ^= low
    return found
