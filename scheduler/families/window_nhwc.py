"""How depthwise convolutions and pools over images that lie channels last are cut: vectors over channels, windows read
where they are.

Model: a *window body* combines the inputs under a window, channel by channel: products with a filter of its own, their
maximum, or their mean. Output columns are divided into tiles of neighbours that share inputs in registers; taps of a
tile that lie in the padding are left out, which is known when compiling for columns, and a range of kernel rows at run
time. The unit axis is *pixels* (one unit = one output row of one plane, all channels) or *channels* (one unit = one
block of channels of one plane, all rows). Global pools have channels only. Filters are packed as [tap][channel], f32.

Invariant: what is combined in which order depends on the output's position only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import Region, strided_view
from superkernel.ir.body import Body, PointwiseProgram, Role, View
from superkernel.ir.collapse import runs_of_range
from superkernel.ops.opdef import BYTES, Array
from superkernel.ops.windows import ONE, Window
from superkernel.registry.predicates import Reason, one_of
from superkernel.registry.requirement import CHANNELS_LAST
from superkernel.registry.rounding import PRODUCT_SUMS, ROW_SUMS
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.conv import CHANNELS, FILTERS_PACKED, FLOAT_TYPES, PIXELS, read_bias
from superkernel.scheduler.families.conv_form import conv_form
from superkernel.scheduler.families.costing import elements_ns, program_weight
from superkernel.scheduler.families.depthwise import DEPTHWISE_GROUPS
from superkernel.scheduler.families.kernel import CONSTANT_WEIGHT, VOLUME, HostKernelDef, HostTiling
from superkernel.scheduler.families.pool import GLOBAL, pool_form
from superkernel.scheduler.tiling import Access, KernelFamily, Pack
from superkernel.target.cpu import CpuTarget

DEPTHWISE, POOL, BYTES_POOL = "host.conv.depthwise_nhwc", "host.pool_nhwc", "host.pool_nhwc_bytes"
POOLS = ("max_pool", "avg_pool", *GLOBAL)
MAXIMA = ("max_pool", "global_max_pool")
_COLUMNS = {"avx512": 8, "avx2": 4, "plain": 4, "small": 4}
_UNROLLED_TAPS = 12  # kernel columns that are written out
_CALL_NS = 30.0
_NAMES = {"max_pool": "maxpool", "avg_pool": "avgpool", "global_avg_pool": "gavgpool", "global_max_pool": "maxpool"}


@dataclass(frozen=True)
class WindowForm:
    """[images, channels] planes under windows (rows, columns), x through strides (image, channel, row, column); in
    three dimensions the depths of an image are planes."""

    images: int
    channels: int
    rows: Window
    columns: Window
    operand: int
    x_strides: tuple[int, int, int, int]
    x_offset: int
    dtype: DType
    epilogue: PointwiseProgram
    spatial: int
    depth: Window = ONE
    x_depth: int = 0  # stride of x from depth to depth

    @property
    def planes(self) -> int:
        """Output planes: the depths of all images."""
        return self.images * self.depth.size

    @property
    def taps(self) -> int:
        """Inputs under a window."""
        return self.depth.kernel * self.rows.kernel * self.columns.kernel

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in (self.planes, self.channels, self.rows.size, self.columns.size)


@dataclass(frozen=True)
class PackDepthwise(Pack):
    """Filters [channels, 1, taps..] (a strided view) as [taps][channels], f32."""

    channels: int
    depth: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def apply(self, array: Array) -> Array:
        filters = strided_view(array, (self.channels, *self.depth), self.strides, self.offset)
        return np.ascontiguousarray(filters.reshape(self.channels, -1).T.astype(np.float32))


@lru_cache(maxsize=1024)
def window_form(body: Body) -> WindowForm:
    """The form of a depthwise convolution or of a pool."""
    if body.op == "conv":
        f = conv_form(body)
        sides = zip(
            (f.height, f.width), f.kernel, f.strides, f.dilations, f.pads, (f.out_height, f.out_width), strict=True
        )
        rows, columns = (Window(e, k, s, d, p, 0, size) for e, k, s, d, p, size in sides)
        return WindowForm(
            f.images, f.groups, rows, columns, f.operand, f.x_strides, f.x_offset, f.dtype, f.epilogue, f.spatial,
            f.depth, f.x_depth,
        )  # fmt: skip
    pool = pool_form(body)
    s = pool.strides
    return WindowForm(
        pool.images,
        pool.channels,
        pool.windows[1],
        pool.windows[2],
        pool.x.operand,
        (s[0], s[1], s[3], s[4]),
        pool.x.offset,
        pool.dtype,
        body.epilogue,
        pool.spatial,
        pool.windows[0],
        s[2],
    )


@dataclass(frozen=True)
class WindowTiling(HostTiling):
    """One cut, see the module docstring. `tile` output columns go together, `block` channels are a unit of axis
    channels."""

    axis: str
    images: int
    rows: int
    channels: int
    block: int
    tile: int
    lanes: int

    def named(self, body: Body) -> tuple[str, Mapping[str, int]]:
        form = window_form(body)
        if body.op == "conv":
            return "dwconv", {"primary": form.taps, "channel": self.lanes}
        return _NAMES[str(body.op)], {"primary": form.taps}

    @property
    def blocks(self) -> int:
        """Blocks of channels, the last one perhaps smaller."""
        return -(-self.channels // self.block)

    @property
    def units(self) -> int:
        return self.images * (self.rows if self.axis == PIXELS else self.blocks)

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = window_form(body), AccessSet(body)
        per = self.rows if self.axis == PIXELS else self.blocks
        for image, part in runs_of_range((self.images, per), begin, end):
            rows, channels = part, (0, self.channels)
            if self.axis == CHANNELS:
                rows = (0, form.rows.size)
                channels = (part[0] * self.block, min(self.channels, part[1] * self.block))
            space = (rows, (0, form.columns.size))
            strides = (*form.x_strides[:2], form.x_depth, *form.x_strides[2:])
            for own, depth in runs_of_range((form.images, form.depth.size), *image):
                found.program(form.epilogue, (own, channels, *(depth, *space)[3 - form.spatial :]))
                reads = (form.depth.reads(*depth), form.rows.reads(*rows), form.columns.reads(0, form.columns.size))
                if all(low < high for low, high in reads):
                    found.view(form.operand, (own, channels, *reads), strides, form.x_offset)
            if body.op == "conv":
                weights = body.anchor_inputs[1]
                assert isinstance(weights, View)
                count = channels[1] - channels[0]
                region = Region(channels[0] * 4, count * 4, self.channels * 4, form.taps)
                found.add(weights.operand, False, (region,))
                read_bias(found, body, channels)
        return found.result()

    def packs(self, body: Body) -> Mapping[int, Pack]:
        if body.op != "conv":
            return {}
        view = body.anchor_inputs[1]
        assert isinstance(view, View)
        return {view.operand: PackDepthwise(self.channels, view.shape[1:], view.strides, view.offset)}

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = window_form(body)
        share = (end - begin) / max(1, self.units)
        outputs = float(form.planes * form.channels * form.rows.size * form.columns.size)
        wide = self.channels / (-(-self.channels // self.lanes) * self.lanes)  # of whole vectors
        weight = form.taps * (1.25 if body.op == "conv" else 1.6) + 2.0 + program_weight(form.epilogue)
        width = 4 if form.dtype in FLOAT_TYPES else 1
        work = elements_ns(outputs / max(wide, 0.1), weight, target, width)
        space = form.depth.extent * form.rows.extent * form.columns.extent
        moved = form.images * form.channels * space * form.dtype.itemsize
        return _CALL_NS + share * max(work, moved / target.l3_bytes_per_ns)


class WindowFamily(KernelFamily[CpuTarget]):
    """Depthwise convolutions with constant filters, one per channel, and maximum, average and global pools."""

    any_view = True

    def _serves(self, body: Body) -> bool:
        x = body.anchor_input_types[0]
        if x is None or x.rank not in (3, 4, 5) or not isinstance(body.anchor_inputs[0], View):
            return False
        if x.dtype not in FLOAT_TYPES:
            return x.dtype in BYTES and body.op in MAXIMA
        if body.op != "conv":
            return body.op in POOLS
        weights = body.anchor_inputs[1]
        form = conv_form(body)
        constant = isinstance(weights, View) and body.operands[weights.operand].role is Role.CONSTANT
        return constant and form.channels == form.out_channels == 1

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        if not self._serves(body):
            raise UnsupportedError(
                "no window that this kernel computes",
                location=kernel,
                expected="a depthwise conv with constant filters or a pool, one to three dimensions, f32, f16 or bf16; "
                "of bytes a maximum",
                found=f"{body.op} of {body.anchor_input_types[0]}",
                hint="host.conv.generic and host.pool compute the others",
            )
        form = window_form(body)
        lanes = max(1, target.vector_bytes // (4 if form.dtype in FLOAT_TYPES else 1))
        most = _COLUMNS[target.register_tier]
        tiles = max(1, -(-form.columns.size // most))
        tile = max(1, -(-form.columns.size // tiles))
        images = 0 if form.is_empty else form.planes
        vectors = max(1, form.channels // lanes)
        block = lanes * max(1, -(-vectors // 16))
        by_row = WindowTiling(PIXELS, images, form.rows.size, form.channels, block, tile, lanes)
        by_channel = WindowTiling(CHANNELS, images, form.rows.size, form.channels, block, tile, lanes)
        if body.op in GLOBAL or form.rows.size == 1:
            return [by_channel]
        return [by_row, by_channel] if form.channels >= 2 * lanes else [by_row]


def unrolled_taps(form: WindowForm) -> bool:
    """Whether the columns of a window are written out."""
    return form.columns.kernel <= _UNROLLED_TAPS


_POOL = HostKernelDef(
    id=POOL,
    ops=POOLS,
    family=WindowFamily(),
    emitter="window_nhwc",
    micro="pool",
    modifier="nhwc",
    dtypes=FLOAT_TYPES,
    typed=True,
    limits=(VOLUME,),
    layout=CHANNELS_LAST,
    rounding=ROW_SUMS,
)
KERNELS = (
    replace(
        _POOL,
        id=DEPTHWISE,
        ops=("conv",),
        micro="conv",
        modifier="depthwise_nhwc",
        others=(None, None),
        limits=(DEPTHWISE_GROUPS, one_of(Reason.GROUPS, "multiplier", 1), CONSTANT_WEIGHT, VOLUME),
        transforms=(FILTERS_PACKED,),
        rounding=PRODUCT_SUMS,
        code_bytes=6144,
    ),
    _POOL,
    replace(_POOL, id=BYTES_POOL, ops=MAXIMA, modifier="nhwc_bytes", dtypes=BYTES, typed=False),
)
