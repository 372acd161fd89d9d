"""Graph -> sub-operators: each an anchor with the pointwise work around it, or pointwise work alone.

Model: one pass over the nodes in topological order. Reshapes, transposes, slices, expands and splits are re-indexing,
never work by themselves (`moves`). A pointwise node joins the cluster that holds one of its operands in registers
(`join`); anything else becomes the anchor of a new cluster (`anchors`), which may take the pointwise work in front of
it as a prologue. Values reach memory only where a reader needs them (`workspace`). Outputs and states come last
(`finish`); then clusters become bodies (`program_builder`).

Invariants: the sub-operators stand in an order that respects every read, write and overwrite; every node of the graph
whose value is needed is computed exactly once; inputs and constants are never written; a state is written only after
its old contents have been read by everybody. `legality` says what may be joined, `profit` what should; every decision
leaves a `GroupNote`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from superkernel.core.options import Options
from superkernel.ir.body import Body, SubOperator
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family
from superkernel.scheduler.anchors import add_anchor
from superkernel.scheduler.cluster import Cluster
from superkernel.scheduler.finish import place_outputs, place_updates
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.join import add_pointwise, single_body
from superkernel.scheduler.moves import add_concat, add_view, materialise
from superkernel.scheduler.program_builder import build_body
from superkernel.scheduler.storage import StoragePolicy
from superkernel.scheduler.tiling import KernelFamily
from superkernel.scheduler.workspace import Workspace
from superkernel.target.base import Target

Choose = Callable[[Body], str]
TargetT = TypeVar("TargetT", bound=Target)


def group(
    graph: Graph,
    choose: Choose,
    target: TargetT,
    options: Options,
    families: Callable[[str], KernelFamily[TargetT]],
    storage: StoragePolicy,
) -> Grouping:
    """Group the graph for a target. `choose` gives the kernel id for a body (`host.reference`: NumPy), `families` the
    family behind it, `storage` the layout of what is materialised (`layout.py`). Grouping itself asks no figure of the
    target; families may."""
    known: dict[Body, str] = {}

    def remembered(body: Body) -> str:
        found = known.get(body)
        if found is None:
            found = known[body] = choose(body)
        return found

    def takes_epilogue(kernel: str) -> bool:
        return families(kernel).accepts_epilogue(kernel, target)

    ws = Workspace(graph, remembered, options, families, storage.of(graph), target, takes_epilogue)
    ws.start()
    for node in graph.nodes:
        family = graph.definition(node).family
        if family in (Family.RESHAPE, Family.VIEW):
            add_view(ws, node)
        elif node.op == "concat":
            add_concat(ws, node)
        elif family is Family.POINTWISE and _has_kernel(ws, node.name):
            add_pointwise(ws, node)
        else:
            add_anchor(ws, node)
        if not ws.options.fuse and family is not Family.RESHAPE:
            materialise(ws, node)
    place_outputs(ws)
    place_updates(ws)
    return Grouping(_build(ws), ws.buffers, ws.constants, tuple(ws.notes))


def _has_kernel(ws: Workspace, name: str) -> bool:
    """True where the pointwise node can be part of a program: its plain form has a kernel other than the reference."""
    position = ws.positions[name]
    kernel = ws.choose(single_body(ws, ws.graph.nodes[position]))
    if ws.family_of(kernel).on_control_unit:
        ws.control.add(position)
    return kernel != HOST_REFERENCE


def _build(ws: Workspace) -> tuple[SubOperator, ...]:
    shared: dict[Body, Body] = {}
    found: list[SubOperator] = []
    for cluster in _in_order(ws):
        body, values = build_body(ws, cluster)
        body = shared.setdefault(body, body)
        kernel = ws.choose(body) if cluster.anchor is None else cluster.anchor.kernel
        nodes = [ws.graph.nodes[i] for i in sorted(set(cluster.nodes))]
        lead = cluster.anchor.node if cluster.anchor is not None else nodes[-1] if nodes else None
        names = tuple(node.name for node in nodes)
        name = lead.name if lead is not None else f"copy:{values[-1]}"
        scope, stream = (lead.scope, lead.stream) if lead is not None else (None, None)
        wanted = _wanted_type([lead] if cluster.anchor is not None and lead is not None else nodes)
        found.append(SubOperator(len(found), name, body, values, names, kernel, scope, stream, wanted))
    return tuple(found)


def _wanted_type(nodes: Sequence[Node]) -> str | None:
    """The kernel type that the last of the nodes with one names: behind a chain's last node of the user's there may be
    a cast, which names none."""
    return next((node.kernel_type.value for node in reversed(nodes) if node.kernel_type is not None), None)


def _in_order(ws: Workspace) -> list[Cluster]:
    """Clusters that store something, by their first node as far as dependences allow."""
    alive = [c for c in ws.clusters.alive() if c.stores or _stores_in_prologue(c)]
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

    for cluster in sorted(alive, key=lambda c: (min(c.nodes, default=len(ws.graph.nodes)), c.id)):
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
