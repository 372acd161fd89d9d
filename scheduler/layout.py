"""Whether the images of a graph lie channels last on the host.

Model: kernels that work on vectors of channels need no copies inside a network and lose nothing at narrow images, but
every value that somebody else reads or hands in costs a conversion. So a graph's images lie channels last where most of
its convolutions have such a kernel (they are asked as they would be there), and what these compute for one another is
more than what crosses a *border*: inputs and outputs of the graph, and operators that are neither image kernels nor
pointwise. A convolution that reads any order is no border. `deny` and `pin` of kernel ids work as everywhere: a denied
channels-last kernel, or a pinned row-major one, leaves the graph row-major.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from math import prod

from superkernel.body import Body
from superkernel.graph import Graph, Node
from superkernel.options import Options
from superkernel.scheduler.anchors import plain_body
from superkernel.scheduler.families import family_of
from superkernel.scheduler.storage import IMAGE_OPS, Storage, StoragePolicy, connects, lies_alike
from superkernel.scheduler.workspace import Workspace
from superkernel.target.aicore import AicoreTarget
from superkernel.target.cpu import CpuTarget

CHANNEL_KERNELS = frozenset(
    {"host.conv.nhwc", "host.conv.winograd2", "host.conv.winograd4", "host.conv.depthwise_nhwc", "host.pool_nhwc"}
    | {"host.conv.bf16", "host.conv.int8", "host.conv.nhwc_bf16", "host.conv.winograd2_bf16"}
)
"""Kernels of the host that want images channels last."""

_ROW_KERNELS = ("host.conv.igemm", "host.conv.depthwise", "host.pool")
_BORDER_FACTOR = 2  # a conversion moves each element twice, strided
_FEWEST = 2  # convolutions
_ALONG_CHANNELS = frozenset({"lrn"})  # their rows are the channels of a pixel, read and stored in any layout


def storage_policy(graph: Graph, choose: Callable[[Body], str], target: object, options: Options) -> StoragePolicy:
    """The layout policy of a graph on a target."""
    if isinstance(target, AicoreTarget):
        return StoragePolicy.CHANNELS_LAST
    pinned = any(fnmatch.filter(_ROW_KERNELS, pattern) for pattern in options.pin)
    convolutions = [node for node in graph.nodes if node.op == "conv"]
    if not isinstance(target, CpuTarget) or pinned or len(convolutions) < _FEWEST:
        return StoragePolicy.ROW_MAJOR
    storage = StoragePolicy.CHANNELS_LAST.of(graph)
    ws = Workspace(graph, choose, options, family_of, storage, target)
    ws.start()
    kernels = {node.name: choose(plain_body(ws, node)) for node in graph.nodes if node.op in IMAGE_OPS}
    served = [node for node in convolutions if kernels[node.name] in CHANNEL_KERNELS]
    if len(served) < _FEWEST or 2 * sum(map(graph_flops(graph), served)) < sum(map(graph_flops(graph), convolutions)):
        return StoragePolicy.ROW_MAJOR
    outputs = {node.outputs[0] for node in served}
    inside = sum(graph.types[v].size for v in outputs if _moves(graph, storage, v))
    border = sum(
        graph.types[v].size * _crossings(graph, v, kernels) for v in storage.images if _moves(graph, storage, v)
    )
    return StoragePolicy.CHANNELS_LAST if inside > _BORDER_FACTOR * border else StoragePolicy.ROW_MAJOR


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


def _crossings(graph: Graph, value: str, kernels: dict[str, str]) -> int:
    """How often an image is converted."""
    count = int(value in graph.outputs)
    producer = graph.producers.get(value)
    if producer is None:
        count += any(not _reads_any_order(node, kernels) for node in graph.consumers.get(value, ()))
    elif not _keeps(graph, producer, kernels):
        count += 1
    return count + sum(not _keeps(graph, node, kernels) for node in graph.consumers.get(value, ()))


def _reads_any_order(node: Node, kernels: dict[str, str]) -> bool:
    kernel = kernels.get(node.name)
    return kernel in CHANNEL_KERNELS and family_of(kernel).reads_any_order(kernel, 0)


def _keeps(graph: Graph, node: Node, kernels: dict[str, str]) -> bool:
    """True where a node reads and computes images as they lie."""
    return connects(graph, node) or node.op in _ALONG_CHANNELS or kernels.get(node.name) in CHANNEL_KERNELS
