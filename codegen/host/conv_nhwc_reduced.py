"""Code for convolutions in bf16 over images that lie channels last: the loops of `conv_nhwc` over words of two values.

Model: see scheduler/families/conv_nhwc_reduced. Inputs are rounded when they are copied to the patch; channels are
inside there, in whatever order they lie. Inputs with columns inside and few channels (those that a network begins with)
are copied a vector of columns of all channels at a time, interleaved in registers.

Scratch: [parked register tile][patch].
"""

from __future__ import annotations

from dataclasses import replace

from llvmlite import ir

from superkernel.codegen.host.arithmetic import Bf16Arithmetic, multiply
from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.conv_nhwc import NhwcEmitter
from superkernel.codegen.host.gemm_core import Tile, Values
from superkernel.codegen.host.patch_nhwc import NhwcPatchCopier
from superkernel.codegen.host.shuffle import permute
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.families.conv_nhwc import Walk, patch_extent
from superkernel.scheduler.families.conv_nhwc_reduced import NarrowNhwcTiling, runs_of
from superkernel.scheduler.tiling import Tiling

_INTERLEAVED_MOST = 4  # channels


class InterleavingCopier(NhwcPatchCopier):
    """Copies inputs channels inside, in whatever order they lie."""

    def _as_kept(self, value: ir.Value) -> ir.Value:
        """Values as the patch holds them."""
        return value

    def _put(self, kept: ir.Value, to: ir.Value, at: Index) -> None:
        """Stores such values."""
        self.kb.store(kept, to, at, DType.F32)

    def _line(
        self,
        to: ir.Value,
        at: Index,
        image: Index,
        channel: Index,
        line: Index,
        left: Index,
        low: Index,
        stop: Index,
    ) -> None:
        kb, form = self.kb, self.form
        s = form.x_strides
        turned = form.prologue is None and s[3] == 1 and s[1] != 1
        if not turned or not 1 < form.channels <= _INTERLEAVED_MOST or self.lanes == 1:
            super()._line(to, at, image, channel, line, left, low, stop)
            return
        first = kb.add(kb.add(form.x_offset, kb.mul(image, s[0])), kb.mul(channel, s[1]))
        first = kb.add(first, kb.add(kb.mul(line, s[2]), left))

        def move(column: Index, lanes: int) -> None:
            base = kb.operands[form.operand]
            planes = [
                self._as_kept(kb.load(base, kb.add(kb.add(first, c * s[1]), column), form.dtype, lanes))
                for c in range(form.channels)
            ]
            start = kb.add(at, kb.mul(column, form.channels))
            for i, part in enumerate(interleaved(kb, planes)):
                self._put(part, to, kb.add(start, i * lanes))

        self._span(low, stop, move)


class NarrowPatchCopier(InterleavingCopier):
    """Copies inputs rounded."""

    def __init__(self, bf16: Bf16Arithmetic, form: ConvForm, walk: Walk, wide: int) -> None:
        super().__init__(bf16.kb, form, walk, wide)
        self.bf16 = bf16

    def _store(self, value: ir.Value, to: ir.Value, at: Index) -> None:
        self.bf16.store(value, to, at)

    def _as_kept(self, value: ir.Value) -> ir.Value:
        return self.bf16.rounded(value)

    def _put(self, kept: ir.Value, to: ir.Value, at: Index) -> None:
        self.bf16.put(kept, to, at)


def interleaved(kb: KernelBuilder, planes: list[ir.Value]) -> list[ir.Value]:
    """The first elements of all planes, then the second, ...: as many vectors as there are planes."""
    if not isinstance(planes[0].type, ir.VectorType):
        return planes
    count, lanes = len(planes), planes[0].type.count
    found = []
    for start in range(0, count * lanes, lanes):
        places = [divmod(start + i, count) for i in range(lanes)]  # element, plane
        part = planes[0]
        for c, plane in enumerate(planes):
            kept = [lanes + k if of == c else i for i, (k, of) in enumerate(places)]
            part = permute(kb, part, plane, [k if of == 0 else 0 for k, of in places] if c == 0 else kept)
        found.append(part)
    return found


class NarrowNhwcEmitter(NhwcEmitter):
    """Writes the kernel of one body and tiling in bf16."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: NarrowNhwcTiling) -> None:
        self.bf16 = Bf16Arithmetic(kb, tiling.format)
        self.item = self.bf16.item
        super().__init__(kb, body, tiling)

    def _walk(self, columns: int) -> Walk:
        wide = patch_extent(self.form, 1, columns)[1]
        return Walk(wide * self.form.channels, self.form.channels, 1)

    def _copier(self, wide: int) -> NhwcPatchCopier:
        return NarrowPatchCopier(self.bf16, self.form, self.walk, wide)

    def _products(self, tile: Tile, source: ir.Value, weights: ir.Value) -> list[Values]:
        form, walk = self.form, self.walk
        count, run = runs_of(form)
        rows = (form.kernel[0], walk.row * form.dilations[0])
        columns = (count // form.kernel[0], walk.column * form.dilations[1])
        nest = [loop for loop in (rows, columns) if loop[0] > 1]
        position = walk.column * form.strides[1]
        return multiply(self.bf16, replace(tile, last=0), nest, (run, 1), position, source, weights, self.t.tile_rows)


def emit_conv_nhwc_narrow(kb: KernelBuilder, body: Body, tiling: Tiling) -> None:
    """Emit a convolution in bf16 over channels-last images."""
    if not isinstance(tiling, NarrowNhwcTiling):
        raise InternalError("wrong tiling for a convolution in bf16", found=type(tiling).__name__)
    NarrowNhwcEmitter(kb, body, tiling).emit()


emit = emit_conv_nhwc_narrow
