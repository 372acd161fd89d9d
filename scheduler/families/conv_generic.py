"""How convolutions of any rank, direction and element type are cut: one unit is one output plane (of one image and
channel).

Model: a convolution over up to three spatial dimensions (missing ones are 1); the unit axis is images x output
channels x output depth. Transposed convolutions are the same with the roles of input and output positions exchanged.

Invariant: the order of additions behind an output is channel by channel, tap by tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.ops.common import get
from superkernel.ops.conv import conv_windows, transpose_windows
from superkernel.ops.opdef import FLOATS
from superkernel.registry.predicates import Reason, within
from superkernel.registry.records import KernelRole
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.conv import read_bias
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.cpu import CpuTarget

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class VolumeForm:
    """A convolution over (depth, height, width). `channels` and `out_channels` are per group."""

    transposed: bool
    spatial: int  # spatial dimensions of the tensors
    images: int
    groups: int
    channels: int
    out_channels: int
    size: Triple  # of the input
    out_size: Triple
    kernel: Triple
    strides: Triple
    dilations: Triple
    pads: Triple
    x: View
    x_strides: tuple[int, int, int, int, int]
    w: View
    w_strides: tuple[int, int, int, int, int]
    acc: DType


@lru_cache(maxsize=1024)
def volume_form(body: Body) -> VolumeForm:
    """The form of a `conv` or `conv_transpose` body whose x and w are views."""
    x, w = body.anchor_inputs[0], body.anchor_inputs[1]
    assert isinstance(x, View)
    assert isinstance(w, View)
    out = body.anchor_outputs[0]
    groups = get(body.attr, "groups", int)
    transposed = body.op == "conv_transpose"
    kinds = TensorType(out.dtype, x.shape), TensorType(out.dtype, w.shape)
    axes = transpose_windows(*kinds, body.attr) if transposed else conv_windows(*kinds, body.attr)
    in_channels = x.shape[1] // groups
    dtype = body.operands[x.operand].type.dtype
    return VolumeForm(
        transposed,
        len(axes),
        x.shape[0],
        groups,
        in_channels,
        out.shape[1] // groups,
        _triple(x.shape[2:], 1),
        _triple(out.shape[2:], 1),
        _triple(w.shape[2:], 1),
        _triple([v.stride for v in axes], 1),
        _triple([v.dilation for v in axes], 1),
        _triple([v.begin for v in axes], 0),
        x,
        (x.strides[0], x.strides[1], *_triple(x.strides[2:], 0)),
        w,
        (w.strides[0], w.strides[1], *_triple(w.strides[2:], 0)),
        DType.F64 if dtype is DType.F64 else DType.F32,
    )


def _triple(values: Sequence[int], missing: int) -> Triple:
    padded = (*(missing,) * (3 - len(values)), *values)
    return (padded[0], padded[1], padded[2])


@dataclass(frozen=True)
class VolumeTiling(HostTiling):
    """One unit per output plane. `row` is the padded length of one accumulated row (all stride phases)."""

    images: int
    channels: int
    depth: int
    row: int
    lanes: int
    acc: DType

    @property
    def units(self) -> int:
        return self.images * self.channels * self.depth

    @property
    def scratch_bytes(self) -> int:
        return 2 * self.row * self.acc.itemsize

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = volume_form(body), AccessSet(body)
        for box in runs_of_range((self.images, self.channels, self.depth), begin, end):
            image, channel, depth = box
            full = (depth, (0, form.out_size[1]), (0, form.out_size[2]))
            found.program(body.epilogue, (image, channel, *full[3 - form.spatial :]))
            group = (channel[0] // form.out_channels, -(-channel[1] // form.out_channels))
            inputs = (group[0] * form.channels, group[1] * form.channels)
            found.view(form.x.operand, (image, inputs, *((0, d) for d in form.size)), form.x_strides, form.x.offset)
            taps = tuple((0, k) for k in form.kernel)
            if not form.transposed:
                found.view(form.w.operand, (channel, (0, form.channels), *taps), form.w_strides, form.w.offset)
            else:
                found.view(form.w.operand, (inputs, (0, form.out_channels), *taps), form.w_strides, form.w.offset)
            read_bias(found, body, channel)
        return found.result()

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = volume_form(body)
        share = (end - begin) / max(1, self.units)
        positions = form.size if form.transposed else form.out_size
        steps = form.images * form.groups * form.channels * form.out_channels * prod(form.kernel)
        rows = steps * positions[0] * positions[1]
        vectors = -(-positions[2] // self.lanes)
        strided = form.strides[2] > 1 and not form.transposed
        return 30.0 + share * rows * (1.0 + vectors * (2.5 if strided else 1.0))


class VolumeFamily(KernelFamily[CpuTarget]):
    """Everything the direct kernels do not do."""

    any_view = True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        form = volume_form(body)
        lanes = max(1, target.vector_bytes // form.acc.itemsize)
        phases = form.strides[2] if form.transposed else 1
        row = phases * (-(-form.out_size[2] // phases) + lanes)
        empty = 0 in form.out_size
        images = 0 if empty else form.images
        return [VolumeTiling(images, form.groups * form.out_channels, form.out_size[0], row, lanes, form.acc)]


FAMILY = VolumeFamily()


def _kernel(name: str, op: str, micro: str) -> HostKernelDef:
    return HostKernelDef(
        id=f"host.conv.{name}",
        ops=(op,),
        family=FAMILY,
        emitter="conv_generic",
        micro=micro,
        dtypes=FLOATS,
        others=(FLOATS, FLOATS),
        role=KernelRole.GENERIC,
        limits=(within(Reason.RANK, "spatial", 1, 3),),
        rounding=PRODUCT_SUMS,
    )


KERNELS = (_kernel("generic", "conv", "conv"), _kernel("transpose", "conv_transpose", "convtranspose"))
