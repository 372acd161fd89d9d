"""Rows of f32 values as unsigned integers of one or two bytes with a scale and a zero point, found at run time.

Model: two passes over the row, which is near: the smallest and largest value, 0 being always between them, then the
integers, rounded to nearest even. Smallest and largest are kept by one comparison each, which forgets what is no
number; so a third sum is 0 times each value, which an infinity or NaN makes NaN: the scale is NaN then, and every
result of the row is.

Invariant: exactly the row is read, exactly its bytes are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from superkernel.codegen.host.builder import I8, I32, Index, KernelBuilder, mangle, vector_type
from superkernel.codegen.host.gemm_core import Values, fold, zero
from superkernel.codegen.host.loops import strips
from superkernel.codegen.host.shuffle import permute
from superkernel.core.dtypes import DType

MAGIC = 1.5 * 2.0**23
"""Added to a float below 2^22 it leaves the nearest integer in the low bits."""

_SETS = 4  # of extremes side by side, to hide the latency of a comparison


@dataclass(frozen=True)
class RowCodes:
    """What turns a row into bytes and back: (byte - zero_point) * scale. All scalars."""

    inverse: ir.Value
    zero_point: ir.Value
    scale: ir.Value


def codes_of(kb: KernelBuilder, source: ir.Value, count: int, lanes: int, largest: int = 255) -> RowCodes:
    """Scale and zero point of `count` neighbouring f32, as integers up to `largest`."""
    b = kb.b
    low, high, odd = _extremes(kb, source, count, lanes)
    width = b.fsub(high, low)
    one, most = ir.Constant(width.type, 1.0), ir.Constant(width.type, float(largest))
    some = b.fcmp_unordered("une", width, ir.Constant(width.type, 0.0))
    inverse = b.fdiv(most, b.select(some, width, one))
    start = nearest(kb, b.fmul(b.fneg(low), inverse), ir.Constant(I32, 0))
    return RowCodes(inverse, start, b.fadd(b.fdiv(width, most), odd))


def put_codes(
    kb: KernelBuilder, source: ir.Value, count: int, lanes: int, codes: RowCodes, planes: Sequence[ir.Value]
) -> None:
    """`count` neighbouring f32 as integers of as many bytes as there are planes, the highest byte in the first."""
    b, largest = kb.b, 256 ** len(planes) - 1

    def part(at: Index, n: int) -> None:
        value = b.fmul(kb.load(source, at, DType.F32, n), kb.splat(codes.inverse, n))
        code = nearest(kb, value, kb.splat(codes.zero_point, n))
        for name, bound in (("llvm.smax", 0), ("llvm.smin", largest)):
            function = kb.intrinsic(f"{name}.{mangle(code.type)}", code.type, [code.type] * 2)
            code = b.call(function, [code, kb.const(bound, DType.I32, n)])
        for i, plane in enumerate(reversed(planes)):
            byte = b.lshr(code, kb.const(8 * i, DType.I32, n)) if i else code
            b.store(b.trunc(byte, vector_type(I8, n)), kb.at(plane, at, DType.I8), align=1)

    strips(kb, count, lanes, part)


def nearest(kb: KernelBuilder, value: ir.Value, offset: ir.Value) -> ir.Value:
    """The nearest integer of a small float, plus an offset; of NaN any integer."""
    lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
    magic = kb.const(MAGIC, DType.F32, lanes)
    shifted = kb.b.bitcast(kb.b.fadd(value, magic), offset.type)
    return kb.b.add(kb.b.sub(shifted, kb.b.bitcast(magic, offset.type)), offset)


def _extremes(kb: KernelBuilder, source: ir.Value, count: int, lanes: int) -> Values:
    """Smallest and largest of the row and of 0, and a sum that is 0 or NaN."""
    b = kb.b

    def meet(value: ir.Value, state: Values) -> Values:
        low = b.select(b.fcmp_ordered("<", value, state[0]), value, state[0])
        high = b.select(b.fcmp_ordered(">", value, state[1]), value, state[1])
        return [low, high, kb.fma(value, zero(DType.F32, lanes), state[2])]

    def turn(k: Index, state: Values) -> Values:
        for i in range(_SETS):
            value = kb.load(source, kb.add(k, i * lanes), DType.F32, lanes)
            state[3 * i : 3 * i + 3] = meet(value, state[3 * i : 3 * i + 3])
        return state

    whole, single = count - count % (_SETS * lanes), count - count % lanes
    state = fold(kb, 0, whole, _SETS * lanes, [zero(DType.F32, lanes)] * (3 * _SETS), turn)
    for i, at in enumerate(range(whole, single, lanes)):
        state[3 * i : 3 * i + 3] = meet(kb.load(source, at, DType.F32, lanes), state[3 * i : 3 * i + 3])
    if count > single:
        rest = kb.load(source, single, DType.F32, count - single)
        state[:3] = meet(_filled(kb, rest, lanes), state[:3])
    for i in range(3, 3 * _SETS, 3):
        state[:3] = _joined(kb, state[:3], state[i : i + 3])
    return [kb.reduce_lanes(op, v) for op, v in zip(("fmin", "fmax", "fadd"), state[:3], strict=True)]


def _joined(kb: KernelBuilder, a: Values, c: Values) -> Values:
    """Two sets of extremes as one."""
    return [kb.call_float("llvm.minimum", a[0], c[0]), kb.call_float("llvm.maximum", a[1], c[1]), kb.b.fadd(a[2], c[2])]


def _filled(kb: KernelBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """A vector with zeros behind its lanes."""
    if not isinstance(value.type, ir.VectorType):
        return kb.b.insert_element(zero(DType.F32, lanes), value, ir.Constant(I32, 0))
    n = value.type.count
    return permute(kb, value, ir.Constant(value.type, None), [*range(n), *([n] * (lanes - n))])
