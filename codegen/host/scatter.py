"""Scatters: a copy of x with updates written, or joined, at places that an index tensor names.

Model: x is copied into scratch (dense, storage form), the updates are applied there one by one in row-major order
(slices of an update as vectors), and the epilogue then runs over the result. Indices are wrapped and clamped as in
gathers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.lookup import bounded
from superkernel.codegen.host.loops import each_row, split_index, vector_loop
from superkernel.codegen.host.program import ProgramEmitter, input_program
from superkernel.codegen.host.vecexpr import Expr
from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body
from superkernel.scheduler.families.rowops import integer


def emit_scatter(kb: KernelBuilder, body: Body) -> None:
    """The whole kernel: its one unit."""
    out = body.anchor_outputs[0]
    with kb.loop(kb.begin, kb.end):
        _copy_in(kb, body, out)
        _apply(kb, body, out)
        _copy_out(kb, body, out)


def _rows(
    kb: KernelBuilder, shape: tuple[int, ...], lanes: int, visit: Callable[[list[Index], Index, Index, int], None]
) -> None:
    """`visit(outer coordinates, position, linear index, width)` over a dense shape."""
    inner = shape[-1] if shape else 1
    with kb.loop(0, prod(shape[:-1]), name="row") as row:
        outer = split_index(kb, row, shape[:-1])
        base = kb.mul(row, inner)
        vector_loop(kb, inner, lanes, lambda p, n: visit(outer, p, kb.add(base, p), n))


def _copy_in(kb: KernelBuilder, body: Body, out: TensorType) -> None:
    x = input_program(kb, body, 0)

    def visit(outer: list[Index], position: Index, index: Index, width: int) -> None:
        (value,) = x.eval([*outer, position][: len(out.shape)], width)
        kb.store(value, kb.scratch, index, out.dtype)

    _rows(kb, out.shape, x.lanes, visit)


def _copy_out(kb: KernelBuilder, body: Body, out: TensorType) -> None:
    epilogue = ProgramEmitter(kb, body.epilogue)

    def visit(outer: list[Index], position: Index, index: Index, width: int) -> None:
        value = kb.load(kb.scratch, index, out.dtype, width)
        epilogue.eval([*outer, position][: len(out.shape)], width, [value], store=True)

    _rows(kb, out.shape, epilogue.lanes, visit)


def _apply(kb: KernelBuilder, body: Body, out: TensorType) -> None:
    indices, updates = input_program(kb, body, 1), input_program(kb, body, 2)
    shape, strides = indices.program.shape, row_major_strides(out.shape)
    if 0 in updates.program.shape:
        return
    if body.op == "scatter_elements":
        axis = integer(body.attr["axis"]) % len(shape)
        with each_row(kb, 0, prod(shape), shape) as at:
            place: Index = _index(kb, indices, at, out.shape[axis])
            offset = kb.mul(place, strides[axis])
            for d, coordinate in enumerate(at):
                if d != axis:
                    offset = kb.add(offset, kb.mul(coordinate, strides[d]))
            _join(kb, body, out.dtype, offset, updates.eval(at, 1)[0])
        return
    width, lead = shape[-1], shape[:-1]
    tail = out.shape[width:]
    with each_row(kb, 0, prod(lead), lead) as at:
        places = (_index(kb, indices, [*at, k], out.shape[k]) for k in range(width))
        start = kb.element(0, places, strides)

        def visit(outer: list[Index], position: Index, index: Index, lanes: int) -> None:
            (value,) = updates.eval([*at, *outer, position][: len(lead) + len(tail)], lanes)
            _join(kb, body, out.dtype, kb.add(start, index), value)

        _rows(kb, tail, updates.lanes, visit)


def _index(kb: KernelBuilder, indices: ProgramEmitter, at: list[Index], extent: int) -> Index:
    (value,) = indices.eval(at, 1)
    return bounded(kb, value, indices.program.inputs[0].dtype, extent).v


def _join(kb: KernelBuilder, body: Body, dtype: DType, offset: Index, value) -> None:  # type: ignore[no-untyped-def]
    """Write or accumulate one vector of updates into scratch."""
    new = Expr(kb, value)
    reduction = body.attr["reduction"]
    if reduction != "none":
        old = Expr(kb, kb.load(kb.scratch, offset, dtype, new.lanes))
        if reduction in ("add", "mul"):
            new = old + new if reduction == "add" else old * new
        else:
            new = old.extreme(">" if reduction == "max" else "<", new, dtype.is_signed)
    kb.store(new.v, kb.scratch, offset, dtype)
