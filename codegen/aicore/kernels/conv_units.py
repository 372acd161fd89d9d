"""Units of a convolution by number: the tile of the result that each is, with its extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.scheduler.families.aicore.conv_form import CubeConv
from superkernel.scheduler.families.aicore.conv_tiling import WEIGHTS, ConvTiling


def split(number: Number, extents: Sequence[int]) -> list[Number]:
    """Row-major coordinates of a number; a coordinate over one value is 0 and costs nothing."""
    found: list[Number] = []
    for place, extent in enumerate(reversed(extents)):
        last = place == len(extents) - 1
        found.append(0 if extent == 1 else number if last else number % extent)
        number = number if last else number // extent
    return found[::-1]


@dataclass(frozen=True)
class Unit:
    """The tile that is being computed: where it lies, and its extents."""

    image: Number
    group: Number
    row: Number  # first output row
    column: Number
    channel: Number  # first output channel within the group
    rows: Number
    columns: Number  # that are stored
    channels: Number


def unit_of(kb: KernelBuilder, conv: CubeConv, tiling: ConvTiling, outer: Number, inner: Number) -> Unit:
    """The unit of two numbers: what is held, and what varies inside."""
    place, block = (inner, outer) if tiling.hold == WEIGHTS else (outer, inner)
    places = (tiling.images, tiling.row_blocks, tiling.column_blocks)
    if tiling.hold == WEIGHTS:
        group, channel = split(block, (tiling.groups, tiling.channel_blocks))
        image, rows, columns = split(place, places)
    else:
        image, rows, columns, group = split(place, (*places, tiling.groups))
        channel = block if tiling.channel_blocks > 1 else 0
    row, column, first = rows * tiling.rows, columns * tiling.columns, channel * tiling.channels

    def extent(size: int, blocks: int, begin: Number, whole: int) -> Number:
        return size if size * blocks == whole else kb.minimum(size, whole - begin)

    return Unit(
        image, group, row, column, first,
        extent(tiling.rows, tiling.row_blocks, row, conv.out_height),
        extent(tiling.columns, tiling.column_blocks, column, conv.out_width),
        extent(tiling.channels, tiling.channel_blocks, first, conv.out_channels),
    )  # fmt: skip
