"""toy.matmul: products of two matrices, a row of the result at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, View
from superkernel.scheduler.tiling import Access
from toy_target.kernels.kernel import Flat, ToyFamily, ToyKernel, ToyTiling, row_accesses, run_row, seen, whole
from toy_target.target import ToyTarget


@dataclass(frozen=True)
class ProductTiling(ToyTiling):
    """See the module docstring."""

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        if begin >= end:
            return ()
        left, right = _factors(body)
        size = body.operands[left.operand].type.dtype.itemsize
        rows = View(left.operand, (end - begin, left.shape[1]), left.strides, left.offset + begin * left.strides[0])
        second = whole(right.operand, body.operands[right.operand].type, write=False)
        return (Access(left.operand, False, rows.regions(size)), second, *row_accesses(body, body.epilogue, begin, end))

    def compute(self, body: Body, operands: Sequence[Flat], unit: int) -> None:
        left, right = (seen(operands[v.operand], v.shape, v.strides, v.offset) for v in _factors(body))
        run_row(body.epilogue, operands, (np.matmul(left[unit], right),), unit)


class ProductFamily(ToyFamily):
    """See the module docstring."""

    def tilings(self, kernel: str, body: Body, target: ToyTarget) -> Sequence[ProductTiling]:
        types = body.anchor_input_types[:2]
        if any(t is None or t.rank != 2 or not t.dtype.is_float for t in types) or body.attr["trans_a"] or (
            body.attr["trans_b"]
        ):  # fmt: skip
            raise UnsupportedError("only plain products of two matrices of floats")
        return (ProductTiling(body.anchor_outputs[0].shape[0]),)


def _factors(body: Body) -> tuple[View, View]:
    left, right = body.anchor_inputs[:2]
    assert isinstance(left, View)
    assert isinstance(right, View)
    return left, right


KERNELS = (ToyKernel(id="toy.matmul", ops=("matmul",), family=ProductFamily(), emitter="", micro="matmul"),)
