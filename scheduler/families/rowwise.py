"""host.softmax, host.norm, host.lrn: how softmax and the normalisations are cut. See rowspace for the geometry.

Prologues and strided views are taken on the data; the other inputs (scale, bias, statistics) through any view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ops.opdef import FLOATS
from superkernel.registry.rounding import ROW_SUMS
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.families.pointwise import widest_item
from superkernel.scheduler.families.rowops import integer, space_of
from superkernel.scheduler.families.rowspace import RowSpace
from superkernel.scheduler.families.rowtiling import RowTiling, across
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.cpu import CpuTarget

_WORK = {"softmax": 20.0, "log_softmax": 20.0, "softmax_integer": 22.0, "rms_norm": 2.0, "lrn": 30.0}  # others 4


_ROW_NS = {
    "softmax": 12.5,
    "log_softmax": 25.0,
    "softmax_integer": 13.5,
    "rms_norm": 4.0,
    **dict.fromkeys(("layer_norm", "group_norm", "instance_norm"), 9.5),
}
"""What a short row takes beside its elements, its statistics being put together from lanes: of operators whose rows may
be walked across instead."""
_SHORT_ROW_MAX = 64


def keeps_row(body: Body, space: RowSpace) -> bool:
    """Whether the row's data is kept in scratch between passes: where computing it again costs more than reading it
    back."""
    return bool(space.data.instructions) or len(space.data.outputs) > 1


def row_item(program: PointwiseProgram) -> int:
    """Bytes of the type the statistics are computed in."""
    value = next(o.value for o in program.outputs if o.target < 0)
    return 8 if program.dtype_of(value) is DType.F64 else 4


def block_of(space: RowSpace, target: CpuTarget, vectors: int) -> int:
    """Inner positions per unit: some full vectors, all where there are fewer."""
    return max(1, min(space.inner, vectors * max(1, target.vector_bytes // widest_item(space.data))))


def _tiling(body: Body, space: RowSpace, target: CpuTarget, kept: int) -> RowTiling:
    """Units of some vectors, with room for `kept` elements of each of their rows."""
    block = block_of(space, target, 2)
    scratch = -(-kept * block * row_item(space.data) // 64) * 64 + 64 if kept else 0
    outer = 0 if 0 in space.row else prod(space.outer)
    return RowTiling(outer, space.inner, block, scratch, _WORK.get(str(body.op), 4.0))


class RowwiseFamily(KernelFamily[CpuTarget]):
    """Statistics over rows, then pointwise."""

    any_view = True
    prologue_slots = (0,)

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        """The faster walk of the two alone: they sum in different orders, and bits must not depend on the placement."""
        return (min(self.walks(kernel, body, target), key=lambda t: t.cost_ns(body, 0, t.units, target)),)

    def walks(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[RowTiling]:
        """Along rows and, where there are many and they are short, across."""
        space = space_of(body)
        keeps = kernel != "host.norm" or keeps_row(body, space)
        beyond = integer(body.attr["size"]) - 1 if kernel == "host.lrn" else 0
        whole = _tiling(body, space, target, space.row_size + beyond if keeps else 0)
        row_ns = _ROW_NS.get(str(body.op))
        has_inner = len(space.outer) + len(space.row) < len(space.epilogue.shape)
        if row_ns is None or has_inner or not 0 < space.row_size <= _SHORT_ROW_MAX:
            return (whole,)
        if not space.outer or space.outer[-1] < target.vector_bytes // row_item(space.data):
            return (whole,)
        wide = _tiling(body, across(space), target, space.row_size)
        return (replace(whole, unit_ns=row_ns), replace(wide, is_across=True))

    def prologue_may_store(self, kernel: str, op: str, slot: int) -> bool:
        return kernel == "host.norm"


FAMILY = RowwiseFamily()


def _kernel(name: str, *ops: str) -> HostKernelDef:
    return HostKernelDef(
        id=f"host.{name}",
        ops=ops,
        family=FAMILY,
        emitter="rowwise",
        micro=name,
        dtypes=FLOATS,
        typed=True,
        rounding=ROW_SUMS,
    )


KERNELS = (
    _kernel("softmax", "softmax", "log_softmax", "softmax_integer"),
    _kernel("norm", "layer_norm", "rms_norm", "group_norm", "instance_norm", "lp_norm", "batch_norm"),
    _kernel("lrn", "lrn"),
)
