"""toy.pointwise: programs without an anchor, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body
from superkernel.registry.requirement import POINTWISE
from superkernel.scheduler.tiling import Access
from toy_target.kernels.kernel import Flat, ToyFamily, ToyKernel, ToyTiling, row_accesses, run_row
from toy_target.target import ToyTarget


@dataclass(frozen=True)
class RowTiling(ToyTiling):
    """See the module docstring."""

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return tuple(row_accesses(body, body.epilogue, begin, end)) if begin < end else ()

    def compute(self, body: Body, operands: Sequence[Flat], unit: int) -> None:
        run_row(body.epilogue, operands, (), unit)


class RowFamily(ToyFamily):
    """See the module docstring."""

    def tilings(self, kernel: str, body: Body, target: ToyTarget) -> Sequence[RowTiling]:
        if not body.epilogue.shape:
            raise UnsupportedError("a scalar has no rows")
        return (RowTiling(body.epilogue.shape[0]),)


KERNELS = (
    ToyKernel(
        id="toy.pointwise", ops=(POINTWISE,), family=RowFamily(), emitter="", micro="pointwise",
    ),
)  # fmt: skip
