"""The normal form of convolutions with constant weights, and the patch geometry that the direct kernels share.

Model: every convolution is seen as one of planes: images, and in three dimensions the depths of each, have rows and
columns (one-dimensional ones have one row). A *block* of output positions,
`rows` x `columns`, is computed from a *patch*: a zero-padded copy of the input positions it needs, split by stride
phase so that every kernel tap is a constant offset into the patch and neighbouring outputs are neighbouring elements,
whatever strides, dilations and pads. Element (row, column) of plane (channel, phase) of the patch is input row (r0 +
row)*stride + phase_row - pad, and the like for columns.

Invariant: for every tap, offset + row * pitch + column of an output position inside the block lies inside the patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.ir.collapse import merge_dims, regroup, walks_of
from superkernel.ops.common import get
from superkernel.ops.conv import conv_windows
from superkernel.ops.windows import ONE, Window


@dataclass(frozen=True)
class ConvForm:
    """A convolution [images, channels, (depth,) height, width] -> [images, out_channels, (depth,) out_height,
    out_width]."""

    images: int
    channels: int  # per group
    height: int
    width: int
    out_channels: int  # per group
    out_height: int
    out_width: int
    groups: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]  # before the first row and column
    dtype: DType
    operand: int  # of x, -1 with a prologue
    x_strides: tuple[int, int, int, int]
    x_offset: int
    prologue: PointwiseProgram | None  # over [images, channels] + spatial
    epilogue: PointwiseProgram  # over [images, out_channels] + spatial
    spatial: int  # spatial dimensions of the programs: 1 to 3
    depth: Window = ONE
    x_depth: int = 0  # stride of x from depth to depth

    @property
    def taps(self) -> int:
        """Filter elements per channel."""
        return self.lines * self.kernel[1]

    @property
    def lines(self) -> int:
        """Rows of the window, of all its depths."""
        return self.depth.kernel * self.kernel[0]

    @property
    def planes(self) -> int:
        """Output planes: the depths of all images."""
        return self.images * self.depth.size

    @property
    def pixels(self) -> int:
        """Output positions of a plane."""
        return self.out_height * self.out_width

    @property
    def flops(self) -> int:
        """Multiplications and additions of the whole convolution."""
        return 2 * self.planes * self.groups * self.out_channels * self.channels * self.taps * self.pixels


@lru_cache(maxsize=1024)
def conv_form(body: Body) -> ConvForm:
    """The normal form of a `conv` body."""
    x, w = body.anchor_input_types[0], body.anchor_input_types[1]
    assert x is not None
    assert w is not None
    rank = x.rank - 2
    out = body.anchor_outputs[0]
    axes, groups = conv_windows(x, w, body.attr), get(body.attr, "groups", int)
    source, epilogue = body.anchor_inputs[0], body.epilogue
    prologue = source if isinstance(source, PointwiseProgram) else None
    view = source if isinstance(source, View) else None
    x_strides = view.strides if view is not None else (0,) * x.rank
    spatial = rank
    plain = all(v.kernel == v.stride == 1 and v.begin == v.end == 0 for v in axes)
    if rank == 2 and plain:  # a matrix product per image: rows and columns are one dimension
        merged = _merge_spatial(epilogue)
        before = _merge_spatial(prologue) if prologue is not None else None
        walks_on = view is None or x.shape[2] == 1 or x.shape[3] == 1 or x_strides[2] == x_strides[3] * x.shape[3]
        if merged is not None and walks_on and (prologue is None or before is not None):
            epilogue, prologue, spatial = merged, before, 1
            last = x_strides[3] if x.shape[3] > 1 or view is None else x_strides[2]
            x_strides = (*x_strides[:2], last)
            axes = (Window(prod(x.shape[2:]), 1, 1, 1, 0, 0, prod(out.shape[2:])),)
    if spatial == 1:
        x_strides = (x_strides[0], x_strides[1], 0, x_strides[2])
        axes = (ONE, *axes)
    depth, x_depth = ONE, 0
    if spatial == 3:
        depth, axes = axes[0], axes[1:]
        x_depth, x_strides = x_strides[2], (*x_strides[:2], *x_strides[3:])
    rows, columns = axes
    return ConvForm(
        x.shape[0],
        w.shape[1],
        rows.extent,
        columns.extent,
        w.shape[0] // groups,
        rows.size,
        columns.size,
        groups,
        (rows.kernel, columns.kernel),
        (rows.stride, columns.stride),
        (rows.dilation, columns.dilation),
        (rows.begin, columns.begin),
        x.dtype,
        view.operand if view is not None else -1,
        (x_strides[0], x_strides[1], x_strides[2], x_strides[3]),
        view.offset if view is not None else 0,
        prologue,
        epilogue,
        spatial,
        depth,
        x_depth,
    )


def _merge_spatial(program: PointwiseProgram) -> PointwiseProgram | None:
    """The program over [images, channels, pixels], or None where some access does not walk rows and columns as one."""
    groups = merge_dims(program.shape, walks_of(program), (1, 2))
    return regroup(program, groups) if groups == ((0,), (1,), (2, 3)) else None


@dataclass(frozen=True, slots=True)
class Patch:
    """Geometry of the patch of one block of `rows` x `columns` outputs, per input channel; sizes in elements."""

    rows: int
    columns: int
    patch_rows: int
    pitch: int
    phases: tuple[tuple[int, int], ...]  # (row phase, column phase) of each plane
    offsets: tuple[int, ...]  # of each tap, from the channel's start

    @property
    def channel(self) -> int:
        """Elements of one channel's planes."""
        return len(self.phases) * self.patch_rows * self.pitch

    @property
    def span(self) -> int:
        """Positions from the block's first output to its last, walked with the pitch."""
        return (self.rows - 1) * self.pitch + self.columns


def patch_of(form: ConvForm, rows: int, columns: int) -> Patch:
    """The patch of a block."""
    return make_patch(form.kernel, form.strides, form.dilations, rows, columns)


@lru_cache(maxsize=4096)
def make_patch(
    kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], rows: int, columns: int
) -> Patch:
    """The patch for a window and a block size."""
    taps = [(i * dilations[0], j * dilations[1]) for i in range(kernel[0]) for j in range(kernel[1])]
    phases = tuple(sorted({(a % strides[0], b % strides[1]) for a, b in taps}))
    patch_rows = rows + (kernel[0] - 1) * dilations[0] // strides[0]
    pitch = columns + (kernel[1] - 1) * dilations[1] // strides[1]
    plane = patch_rows * pitch
    number = {phase: k for k, phase in enumerate(phases)}
    offsets = tuple(
        number[a % strides[0], b % strides[1]] * plane + a // strides[0] * pitch + b // strides[1] for a, b in taps
    )
    return Patch(rows, columns, patch_rows, pitch, phases, offsets)
