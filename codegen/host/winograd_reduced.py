"""Code for minimal filtering in bf16: the stages of `winograd`, with words of two channels between them.

Model: see scheduler/families/winograd_reduced. Transformed inputs are rounded where they are stored, once for all
filters.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.host.arithmetic import Bf16Arithmetic, multiply
from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.gemm_core import Tile, Values
from superkernel.codegen.host.winograd import WinogradEmitter
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families.winograd_reduced import NarrowWinogradTiling
from superkernel.scheduler.tiling import Tiling


class NarrowWinogradEmitter(WinogradEmitter):
    """Writes the kernel of one body and tiling in bf16."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: NarrowWinogradTiling) -> None:
        self.bf16 = Bf16Arithmetic(kb, tiling.format)
        self.item = self.bf16.item
        super().__init__(kb, body, tiling)

    def _keep(self, value: ir.Value, plane: ir.Value, at: Index) -> None:
        self.bf16.store(value, plane, at)

    def _products(self, tile: Tile, source: ir.Value, weights: ir.Value) -> list[Values]:
        t = self.t
        return multiply(self.bf16, tile, (), (t.channels, 1), t.channels, source, weights, t.tile_rows)


def emit_winograd_narrow(kb: KernelBuilder, body: Body, tiling: Tiling) -> None:
    """Emit a convolution by minimal filtering in bf16."""
    if not isinstance(tiling, NarrowWinogradTiling):
        raise InternalError("wrong tiling for minimal filtering in bf16", found=type(tiling).__name__)
    NarrowWinogradEmitter(kb, body, tiling).emit()


emit = emit_winograd_narrow
