"""Small legal instances of every operator in every element type it takes: `cases(op, seed)`.

Model: a maker per operator yields (inputs, attributes) for one element type; operators of a uniform group share one.
The leading type of an operator gets all variants, the others the first two: the whole table is a few thousand cases.
Values lie inside each function's domain; comparisons draw from few values so that equality occurs. The makers of the
operators that are not pointwise are in `operator_makers.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from operator_makers import ANCHOR_MAKERS, Array, Instance, Maker, Rng, few, values

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.opdef import Family, OpDef
from superkernel.ops.table import op_table, traits_of


class Case(NamedTuple):
    """One instance: the operator, its inputs (None = absent), its attributes."""

    op: str
    inputs: list[Array | None]
    attrs: dict[str, Any]

    def __str__(self) -> str:
        shapes = ", ".join("_" if x is None else f"{x.dtype}{list(x.shape)}" for x in self.inputs)
        return f"{self.op}({shapes}) {self.attrs}"


_SHAPES = ((2, 3, 5), (7,), (), (4, 1), (0, 3), (3, 37))


def _variants(row: OpDef) -> list[dict[str, Any]]:
    """Attributes as they are by default; all numbers others; every truth value and choice the other way."""
    numbers = {a.name: a.default + 0.5 for a in row.attrs if isinstance(a.default, float)}
    flags = [{a.name: not a.default} for a in row.attrs if isinstance(a.default, bool)]
    choices = [{a.name: c} for a in row.attrs for c in a.choices if c != a.default]
    return [{}, *([numbers] if numbers else []), *flags, *choices]


def _unary(name: str) -> Maker:
    def make(rng: Rng, dtype: DType) -> Iterator[Instance]:
        row, traits = op_table()[name], traits_of(name)
        for shape in _SHAPES:
            for attrs in _variants(row):
                x = values(rng, shape, dtype, *traits.domain)
                if name in ("isnan", "isinf", "identity", "relu", "abs") and dtype.is_float and x.size > 6:
                    x.reshape(-1)[[0, 3, 5]] = [np.inf, np.nan, -np.inf]
                yield [x], attrs

    return make


_PAIRS = (((2, 3, 5), (2, 3, 5)), ((2, 3, 5), (5,)), ((3, 1), (1, 4)), ((), (6,)), ((0, 3), (3,)), ((4, 37), (4, 1)))


def _binary(name: str) -> Maker:
    def make(rng: Rng, dtype: DType) -> Iterator[Instance]:
        row = op_table()[name]
        for left, right in _PAIRS:
            a, b = values(rng, left, dtype), values(rng, right, dtype)
            if row.infer([TensorType(dtype, (1,))] * 2, {})[0].dtype is DType.BOOL:
                a, b = few(rng, left, dtype), few(rng, right, dtype)
            elif name in ("div", "mod"):
                b = np.where(b == 0, np.ones_like(b), b) if not dtype.is_float else values(rng, right, dtype, 0.5, 4.0)
            elif name in ("shift_left", "shift_right"):
                b = rng.integers(0, 8, right).astype(dtype.numpy)
            for attrs in _variants(row):
                yield [a, b], attrs

    return make


def _pow(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for exponent in (dtype, DType.F32, DType.I32):
        for left, right in _PAIRS[:4]:
            a = values(rng, left, dtype, 0.2, 3.0) if dtype.is_float else few(rng, left, dtype)
            yield [a, rng.integers(0, 5, right).astype(exponent.numpy)], {}


def _prelu(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for shape, slope in (((2, 3, 5), (3, 1)), ((4, 37), (37,)), ((6,), ()), ((0, 2), (2,))):
        yield [values(rng, shape, dtype), values(rng, slope, dtype)], {}


def _where(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for c, a, b in (((2, 3), (2, 3), (2, 3)), ((2, 1), (1, 3), ()), ((5,), (4, 5), (4, 1)), ((0,), (0,), (1,))):
        yield [values(rng, c, DType.BOOL), values(rng, a, dtype), values(rng, b, dtype)], {}


def _clip(rng: Rng, dtype: DType) -> Iterator[Instance]:
    low, high = np.array(1, dtype.numpy), np.array(2, dtype.numpy)
    x = values(rng, (3, 11), dtype)
    yield [x, low, high], {}
    yield [x, None, high], {}
    yield [x, low], {}
    yield [x], {}
    yield [x, values(rng, (3, 1), dtype), values(rng, (11,), dtype)], {}


def _cast(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for to in DType:
        x = values(rng, (3, 7), dtype)
        yield [np.abs(x) if dtype.is_float and not to.is_signed else x], {"dtype": to}
        if dtype.is_float and to.is_integer:
            wild = np.array([3e4, -3e4, 300.7, -300.7, np.nan, np.inf, -np.inf, 0.5]).astype(dtype.numpy)
            yield [wild], {"dtype": to}


def _bitcast(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for to in (d for d in DType if d.bits == dtype.bits and d is not DType.BOOL):
        yield [values(rng, (3, 7), dtype)], {"dtype": to}


_QUANTIZED = (DType.U8, DType.I8, DType.I16, DType.U16, DType.I32)


def _quantize(rng: Rng, dtype: DType) -> Iterator[Instance]:
    scale = DType.F32 if dtype is DType.I32 else dtype
    for to in _QUANTIZED:
        x = values(rng, (3, 5), dtype, -20.0, 20.0)
        yield [x, np.array(0.25, scale.numpy), np.array(7, to.numpy)], {"dtype": to}
        yield [x, values(rng, (3, 1), scale, 0.1, 0.3)], {"dtype": to}


def _dequantize(rng: Rng, dtype: DType) -> Iterator[Instance]:
    for scale in (DType.F32, DType.F16, DType.BF16, DType.F64):
        x = values(rng, (3, 5), dtype)
        yield [x, np.array(0.25, scale.numpy), np.array(7, dtype.numpy)], {}
        yield [x, values(rng, (5,), scale, 0.1, 0.3)], {}


_MAKERS: dict[str, Maker] = {
    "pow": _pow,
    "prelu": _prelu,
    "where": _where,
    "clip": _clip,
    "cast": _cast,
    "bitcast": _bitcast,
    "quantize": _quantize,
    "dequantize": _dequantize,
    **ANCHOR_MAKERS,
}


def maker_of(op: str) -> Maker:
    """The generator of an operator's instances."""
    definition = op_table()[op]
    if op in _MAKERS:
        return _MAKERS[op]
    assert definition.family is Family.POINTWISE, f"no maker for {op}"
    return _unary(op) if len(definition.args) == 1 else _binary(op)


_LEADING = (
    DType.F32,
    DType.I8,
    DType.BOOL,
    DType.I64,
)  # the type that gets every variant: the first of these that is taken


def dtypes_of(op: str) -> list[DType]:
    """The element types of the operator's leading input, the one with every variant first."""
    definition = op_table()[op]
    taken = definition.args[definition.typed_by].dtypes
    head = next(d for d in _LEADING if d in taken)
    return [head, *(d for d in DType if d in taken and d is not head)]


def cases(op: str, seed: int = 0) -> list[Case]:
    """Every instance of `op`: all variants in one element type, the first two in the others. Equal for equal seeds."""
    found = []
    for position, dtype in enumerate(dtypes_of(op)):
        rng = np.random.default_rng((seed, zlib.crc32(f"{op} {dtype}".encode())))
        variants = [Case(op, inputs, attrs) for inputs, attrs in maker_of(op)(rng, dtype)]
        found += variants if position == 0 or op in ("cast", "bitcast") else variants[:2]
    return found
