"""In which order of dimensions a value lies in memory: row-major, or channels last for images.

Model: an *image* is a float or quantised value [N, C, H, W], [N, C, L] or (on the host) [N, C, D, H, W] that a
convolution or a pool reads or computes, or that pointwise work, a concatenation, a slice, a split or padding connects
with one. Under `CHANNELS_LAST` an image that is materialised lies as N, H, W, C and the like: the channels of a pixel
side by side, which is what a matrix engine wants to load. Everybody else sees it through strides, so nothing is
transposed inside a network; what the caller hands in or out keeps its declared layout and is converted once, at the
border. A value with one channel, or with one pixel, lies the same way in both.

Concatenations along the channels interleave their parts, row by row. Where one concatenation is a run of another one's
parts (the stages of a dense block), all of them share the bytes of the largest: `aliases` says which lies in which.

`ROW_MAJOR` has no images, and nothing here applies. The accelerator's policy is always channels last; the host's is
what pays for a graph (`layout.py`).

Invariants: no image shares the bytes of constants, inputs, outputs or states; aliases of one concatenation are disjoint
runs of its channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, channels_last_strides, row_major_strides
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family
from superkernel.scheduler.affine import Shape

IMAGE_OPS = frozenset({"conv", "conv_integer", "max_pool", "avg_pool", "global_avg_pool", "global_max_pool"})
"""Operators that read images in slot 0 and compute images; their kernels store channels last and in no other order."""

MOVED = frozenset({"concat", "pad"})
"""Operators that move images, in whatever order they lie."""

CONVOLUTIONS = frozenset({"conv", "conv_integer"})

CHANNEL = 1  # the dimension of an image that counts channels
_PIXEL_INTS = frozenset({DType.I8, DType.U8, DType.I32})  # of quantised images and their sums
_CONNECTING = frozenset({"concat", "slice", "split", "pad"})


@dataclass(frozen=True, slots=True)
class ChannelRun:
    """Channels [first, first + own) of the concatenation `whole`."""

    whole: str
    first: int


@dataclass(frozen=True)
class Storage:
    """What a policy says of one graph. `images`: values that lie channels last where they are materialised; `aliases`:
    concatenation -> the larger one whose bytes it shares."""

    images: frozenset[str] = frozenset()
    aliases: Mapping[str, ChannelRun] = field(default_factory=dict)

    def strides(self, value: str, kind: TensorType) -> Shape | None:
        """Strides over the value's shape of its layout; None where that is row-major."""
        if value not in self.images:
            return None
        strides = channels_last_strides(kind.shape)
        return None if lies_alike(kind.shape) else strides


class StoragePolicy(Enum):
    """See the module docstring."""

    ROW_MAJOR = "row_major"
    CHANNELS_LAST = "channels_last"

    def of(self, graph: Graph, ranks: Sequence[int]) -> Storage:
        """The layouts of a graph's values, whose images have so many dimensions."""
        if self is StoragePolicy.ROW_MAJOR:
            return Storage()
        images = _images(graph, ranks)
        return Storage(images, _aliases(graph, images))


def lies_alike(shape: Shape) -> bool:
    """True where row-major and channels last are the same bytes in the same order."""
    return shape[CHANNEL] == 1 or prod(shape[2:]) == 1 or 0 in shape


def channels_inside(shape: Shape, strides: Sequence[int]) -> bool:
    """True where the channels of a pixel stand side by side, whatever the distance from pixel to pixel."""
    return lies_alike(shape) or strides[CHANNEL] == 1


def stored_shape(shape: Shape, strides: Shape) -> Shape:
    """Extents in the order in which a dense store with these strides lays them out."""
    if strides == row_major_strides(shape):
        return shape
    return tuple(shape[d] for d in sorted(range(len(shape)), key=lambda d: -strides[d]))


def _images(graph: Graph, ranks: Sequence[int]) -> frozenset[str]:
    def could_be(value: str | None) -> bool:
        if value is None or value in graph.constants:
            return False
        kind = graph.types[value]
        return kind.rank in ranks and (kind.dtype.is_float or kind.dtype in _PIXEL_INTS)

    found: set[str] = set()
    fresh: list[str] = []

    def enter(values: Sequence[str | None]) -> None:
        for value in values:
            if value is not None and value not in found and could_be(value):
                found.add(value)
                fresh.append(value)

    for node in graph.nodes:
        if node.op in IMAGE_OPS:
            enter((node.inputs[0], *node.outputs))
    while fresh:
        value = fresh.pop()
        producer = graph.producers.get(value)
        for node in (*([producer] if producer else []), *graph.consumers.get(value, ())):
            if connects(graph, node):
                enter((*node.inputs, *node.outputs))
    return frozenset(found)


def connects(graph: Graph, node: Node) -> bool:
    """True of operators that work on images in any layout alike: pointwise work, concatenations and the like."""
    return node.op in _CONNECTING or graph.definition(node).family is Family.POINTWISE


def _aliases(graph: Graph, images: frozenset[str]) -> dict[str, ChannelRun]:
    """For each concatenation the first later one that has its parts as a run, where runs do not overlap."""
    parts: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        if _along_channels(graph, node, images):
            parts[node.outputs[0]] = tuple(p for v in node.inputs if v is not None for p in parts.get(v, (v,)))
    aliases: dict[str, ChannelRun] = {}
    taken: dict[str, list[tuple[int, int]]] = {}
    names = list(parts)
    for at, name in enumerate(names):
        for whole in names[at + 1 :]:
            start = _find(parts[name], parts[whole])
            if start is None:
                continue
            stop = start + len(parts[name])
            if all(stop <= first or last <= start for first, last in taken.get(whole, ())):
                taken.setdefault(whole, []).append((start, stop))
                aliases[name] = ChannelRun(whole, sum(graph.types[p].shape[CHANNEL] for p in parts[whole][:start]))
                break
    return aliases


def _along_channels(graph: Graph, node: Node, images: frozenset[str]) -> bool:
    if node.op != "concat" or node.outputs[0] not in images:
        return False
    axis, kind = node.attrs.get("axis"), graph.types[node.outputs[0]]
    return isinstance(axis, int) and axis % kind.rank == CHANNEL and not lies_alike(kind.shape)


def _find(part: Sequence[str], whole: Sequence[str]) -> int | None:
    """Where `part` begins as a run of `whole`."""
    size = len(part)
    return next((i for i in range(len(whole) - size + 1) if tuple(whole[i : i + size]) == tuple(part)), None)
