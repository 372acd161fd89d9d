"""How pools are cut: one unit is a block of output rows of one plane (image and channel), or for global pools one
plane.

Model: a pool over up to three spatial dimensions (missing ones are 1 wide windows). Windows are separable: all rows
that an output row needs are combined column by column first, then the columns of each window; so every input row is
read once per output row.

Invariant: the order in which a window's elements are combined depends on its position only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.ops.opdef import NUMERIC
from superkernel.ops.opdef import Family as OpFamily
from superkernel.ops.pool import pool_windows
from superkernel.ops.windows import ONE, Window
from superkernel.registry.predicates import Reason, within
from superkernel.registry.rounding import ROW_SUMS
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.kerneldef import ops_of
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.cpu import CpuTarget

APART_NS = 0.7  # a load of one element
GLOBAL = ("global_avg_pool", "global_max_pool")


@dataclass(frozen=True)
class PoolForm:
    """A pool of [images, channels] planes over windows (depth, height, width)."""

    images: int
    channels: int
    windows: tuple[Window, Window, Window]
    spatial: int
    x: View
    strides: tuple[int, int, int, int, int]
    dtype: DType
    acc: DType

    @property
    def rows(self) -> int:
        """Output rows of a plane."""
        return self.windows[0].size * self.windows[1].size


@lru_cache(maxsize=1024)
def pool_form(body: Body) -> PoolForm:
    """The form of a pool body. A global pool is one window over the plane. Raises UnsupportedError above three
    dimensions."""
    x = body.anchor_inputs[0]
    assert isinstance(x, View)
    rank = len(x.shape) - 2
    if rank > 3:
        raise UnsupportedError("pool over too many dimensions", expected="1 to 3", found=rank)
    found: Sequence[Window]
    if body.op in GLOBAL:
        found = [Window(d, d, 1, 1, 0, 0, 1) for d in x.shape[2:]]
    else:
        found = pool_windows(x.shape, body.attr)
    windows = (*(ONE,) * (3 - rank), *found)
    spatial = (*(0,) * (3 - rank), *x.strides[2:])
    dtype = body.operands[x.operand].type.dtype
    acc = DType.F32 if dtype in (DType.F16, DType.BF16) else dtype
    strides = (x.strides[0], x.strides[1], spatial[0], spatial[1], spatial[2])
    return PoolForm(x.shape[0], x.shape[1], (windows[0], windows[1], windows[2]), rank, x, strides, dtype, acc)


@dataclass(frozen=True)
class PoolTiling(HostTiling):
    """One cut. `row` is the padded length of the combined row, `row_blocks` the number of units per plane."""

    planes: int
    rows: int
    block_rows: int
    row: int
    lanes: int
    acc: DType

    @property
    def row_blocks(self) -> int:
        """Units per plane, the last one perhaps smaller."""
        return -(-self.rows // self.block_rows)

    @property
    def units(self) -> int:
        return self.planes * self.row_blocks

    @property
    def scratch_bytes(self) -> int:
        return self.row * self.acc.itemsize

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = pool_form(body), AccessSet(body)
        deep, high, wide = form.windows
        for box in runs_of_range((form.images, form.channels, self.row_blocks), begin, end):
            image, channel, blocks = box
            first, last = blocks[0] * self.block_rows, min(blocks[1] * self.block_rows, self.rows)
            for depth, row in runs_of_range((deep.size, high.size), first, last):
                found.program(body.epilogue, (image, channel, *(depth, row, (0, wide.size))[3 - form.spatial :]))
                space = (deep.reads(*depth), high.reads(*row), (0, wide.extent))
                if all(a < b for a, b in space):
                    found.view(form.x.operand, (image, channel, *space), form.strides, form.x.offset)
        return found.result()

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = pool_form(body)
        share = (end - begin) / max(1, self.units)
        deep, high, wide = form.windows
        moved = form.images * form.channels * prod(w.extent for w in form.windows) * form.dtype.itemsize
        vertical = 0.5 * deep.kernel * high.kernel * -(-wide.extent // self.lanes)
        if form.strides[4] not in (0, 1):
            vertical = deep.kernel * high.kernel * wide.extent * _apart_ns(form, moved, target)
        horizontal = (
            wide.kernel * -(-wide.size // self.lanes) * (1.5 if wide.stride > 1 else 1.0) if wide.size > 1 else 6.0
        )
        work = self.planes * self.rows * (10.0 + vertical + horizontal)
        return 30.0 + share * max(work, moved / target.l3_bytes_per_ns)


def _apart_ns(form: PoolForm, moved: int, target: CpuTarget) -> float:
    """Of an element whose neighbour in the row lies elsewhere: a load of its own; of a cache line that has left the
    second level until the next channel comes to it, where the images do not fit there."""
    line = min(64, abs(form.strides[4]) * form.dtype.itemsize)
    return APART_NS if moved <= target.l2_bytes else APART_NS + line / target.l3_bytes_per_ns


class PoolFamily(KernelFamily[CpuTarget]):
    """Max, average and Lp pools, windowed or global."""

    any_view = True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        form = pool_form(body)
        wide = form.windows[2]
        lanes = max(1, target.vector_bytes // form.acc.itemsize)
        reach = max(wide.begin + wide.extent, (wide.size - 1) * wide.stride + wide.reach)
        planes = form.images * form.channels if form.rows and wide.size else 0
        sizes = {max(1, form.rows)}
        if planes < 16:
            sizes.add(max(1, form.rows * max(1, planes) // 32))
        return [PoolTiling(planes, form.rows, s, reach, lanes, form.acc) for s in sorted(sizes, reverse=True)]


KERNELS = (
    HostKernelDef(
        id="host.pool",
        ops=ops_of(OpFamily.POOL),
        family=PoolFamily(),
        emitter="pool",
        micro="pool",
        dtypes=NUMERIC,
        limits=(within(Reason.RANK, "spatial", 1, 3),),
        rounding=ROW_SUMS,
    ),
)
