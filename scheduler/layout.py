"""Whether the images of a graph lie channels last on the host.

Model: kernels that work on vectors of channels need no copies inside a network and lose nothing at narrow images, but
every value that somebody else reads or hands in costs a conversion. So a graph's images lie channels last where most
of its convolutions have such a kernel (they are asked as they would be there), and what these compute for one another
is more than what crosses a *border*: inputs and outputs of the graph, and operators that are neither image kernels nor
pointwise; or where most of their work would be left to a generic kernel else, as in three dimensions. A convolution
that reads any order is no border, nor is a shuffle of channels (split, transposed and joined again): it copies the
image once, whatever the layout. `deny` and `pin` of kernel ids work as everywhere: a denied channels-last kernel, or a
pinned row-major one, leaves the graph row-major.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from math import prod
from typing import Any

from superkernel.core.options import Options
from superkernel.ir.body import Body
from superkernel.ir.graph import Graph, Node
from superkernel.registry.records import KernelRole
from superkernel.registry.requirement import CHANNELS_LAST
from superkernel.scheduler.affine import permutation
from superkernel.scheduler.anchors import plain_body
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.scheduler.group_context import GroupContext
from superkernel.scheduler.storage import (
    CHANNEL,
    CONVOLUTIONS,
    IMAGE_OPS,
    Storage,
    StoragePolicy,
    connects,
    lies_alike,
)
from superkernel.target.base import Target

_BORDER_FACTOR = 2  # a conversion moves each element twice, strided
_FEWEST = 2  # convolutions
_ALONG_CHANNELS = frozenset({"lrn"})  # their rows are the channels of a pixel, read and stored in any layout


def storage_policy(graph: Graph, choose: Callable[[Body], str], target: Target, options: Options) -> StoragePolicy:
    """The layout policy of a graph on a target: the one that its kernels are written for, or what pays."""
    if not target.layouts_compete:
        return StoragePolicy(target.image_layouts[0])
    pinned = any(fnmatch.filter(_row_kernels(), pattern) for pattern in options.pin)
    convolutions = [node for node in graph.nodes if node.op in CONVOLUTIONS]
    if pinned or not convolutions:
        return StoragePolicy.ROW_MAJOR
    storage = StoragePolicy.CHANNELS_LAST.of(graph, target.image_ranks)
    context = GroupContext[Any](graph, choose, options, family_of, storage, target)
    images = [node for node in graph.nodes if node.op in IMAGE_OPS]
    kernels = {node.name: choose(plain_body(context, node, graph.constants.__contains__)) for node in images}
    served, flops = [node for node in convolutions if wants_channels_last(kernels[node.name])], graph_flops(graph)
    most = sum(map(flops, convolutions)) / 2
    if not served or sum(map(flops, served)) < most:
        return StoragePolicy.ROW_MAJOR
    outputs = {node.outputs[0] for node in served}
    inside = sum(graph.types[v].size for v in outputs if _moves(graph, storage, v))
    keeping = channel_shuffles(graph) | {n.name for n in graph.nodes if _keeps(graph, n, kernels)}
    border = sum(
        graph.types[v].size * _crossings(graph, v, kernels, keeping)
        for v in storage.images
        if _moves(graph, storage, v)
    )
    if len(served) >= _FEWEST and inside > _BORDER_FACTOR * border:
        return StoragePolicy.CHANNELS_LAST
    rows = GroupContext[Any](graph, choose, options, family_of, Storage(), target)

    def is_left(node: Node) -> bool:
        kernel = choose(plain_body(rows, node, graph.constants.__contains__))
        same = family_of(kernel) is family_of(kernels[node.name])  # in any layout
        return not same and HOST_KERNELS[kernel].role is not KernelRole.TUNED

    left = sum(map(flops, filter(is_left, served)))
    return StoragePolicy.CHANNELS_LAST if left > most else StoragePolicy.ROW_MAJOR


def wants_channels_last(kernel: str) -> bool:
    """Whether a kernel of the host wants its images channels last."""
    return HOST_KERNELS[kernel].layout == CHANNELS_LAST


def _row_kernels() -> list[str]:
    """The kernels made for images that have others of them channels last."""
    kernels = [k for k in HOST_KERNELS.kernels.values() if k.role is KernelRole.TUNED and IMAGE_OPS & {*k.ops}]
    return [k.id for k in kernels if k.layout != CHANNELS_LAST]


def graph_flops(graph: Graph) -> Callable[[Node], int]:
    """Multiply-adds of a convolution."""

    def of(node: Node) -> int:
        weights = node.inputs[1]
        assert weights is not None
        return graph.types[node.outputs[0]].size * prod(graph.types[weights].shape[1:])

    return of


def _moves(graph: Graph, storage: Storage, value: str) -> bool:
    """True where the layouts of an image differ."""
    return value in storage.images and not lies_alike(graph.types[value].shape)


def _crossings(graph: Graph, value: str, kernels: dict[str, str], keeping: frozenset[str]) -> int:
    """How often an image is converted. `keeping`: the nodes that read and compute images as they lie."""
    count = int(value in graph.outputs)
    producer = graph.producers.get(value)
    if producer is None:
        count += any(not _reads_any_order(node, kernels) for node in graph.consumers.get(value, ()))
    elif producer.name not in keeping:
        count += 1
    return count + sum(node.name not in keeping for node in graph.consumers.get(value, ()))


def channel_shuffles(graph: Graph) -> frozenset[str]:
    """Names of the nodes that together do nothing but permute the channels of an image."""
    return frozenset(name for node in graph.nodes for name in _shuffle_from(graph, node))


def _shuffle_from(graph: Graph, node: Node) -> list[str]:
    """The nodes of a shuffle of channels that begins with this one; none where none does."""
    source = node.inputs[0] if node.inputs else None
    if node.op != "reshape" or source is None or graph.types[source].rank <= CHANNEL + 1:
        return []
    space, found = graph.types[source].shape[CHANNEL + 1 :], [node.name]
    while _regroups(graph, node, len(space)):
        value = node.outputs[0]
        users = graph.consumers.get(value, ())
        if graph.types[value].rank == CHANNEL + 1 + len(space):
            return found
        if len(users) != 1 or value in graph.outputs:
            return []
        node = users[0]
        found.append(node.name)
    return []


def _regroups(graph: Graph, node: Node, behind: int) -> bool:
    """True of reshapes and transposes that leave the first dimension and the last `behind` ones as they are."""
    if node.op not in ("reshape", "transpose") or node.inputs[0] is None:
        return False
    before, after = graph.types[node.inputs[0]].shape, graph.types[node.outputs[0]].shape
    if min(len(before), len(after)) <= behind or before[0] != after[0] or before[-behind:] != after[-behind:]:
        return False
    perm = permutation(node.attrs, len(before)) if node.op == "transpose" else tuple(range(len(before)))
    return perm[0] == 0 and perm[-behind:] == tuple(range(len(before) - behind, len(before)))


def _reads_any_order(node: Node, kernels: dict[str, str]) -> bool:
    kernel = kernels.get(node.name)
    return kernel is not None and wants_channels_last(kernel) and family_of(kernel).reads_any_order(kernel, 0)


def _keeps(graph: Graph, node: Node, kernels: dict[str, str]) -> bool:
    """True where a node reads and computes images as they lie."""
    kernel = kernels.get(node.name)
    inside = kernel is not None and wants_channels_last(kernel)
    return inside or connects(graph, node) or node.op in _ALONG_CHANNELS
