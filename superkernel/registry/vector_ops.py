"""Which pointwise operators the accelerator's vector engine computes, and of which element types.

Model: one step of a program is an operator, the element type of its operand (of `where`: of what is selected) and the
type of its result. Floats are computed in f32 and rounded where they are stored. Types of 64 bits, f64 and unsigned
types of 16 and 32 bits are copied, not computed with; `cast` is a matter of pairs. `pow` wants an exponent that is
known when compiling (a clause of its own); shifts by computed amounts have no command.

The code generator draws on the same table; a test lowers every step of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from superkernel.core.dtypes import DType
from superkernel.registry.predicates import Facts, FactValue, Test, show

Step = tuple[str, DType, DType]
"""Operator, operand's type, result's type."""

_F32, _F16, _BF16 = DType.F32, DType.F16, DType.BF16
_I64, _I32, _I16, _I8, _U8, _BOOL = DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL
_FLOATS = frozenset({_F32, _F16, _BF16})
_INTS = frozenset({_I32, _I16})
_BYTES = frozenset({_I8, _U8})
_NUMBERS = _FLOATS | _INTS
_COMPARABLE = _NUMBERS | _BYTES

_FUNCTIONS = (
    {"floor", "ceil", "round", "trunc", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "sin", "cos"}
    | {"tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid", "silu"}
    | {"hard_swish", "hard_sigmoid", "mish", "softplus", "softsign", "leaky_relu", "elu", "selu", "celu", "gelu"}
    | {"thresholded_relu", "shrink", "div", "prelu", "pow"}
)
_ARITHMETIC = {"abs", "neg", "sign", "relu", "square", "add", "sub", "mul", "minimum", "maximum", "clip"}
_ORDERS = {"less", "less_equal", "greater", "greater_equal"}

_SAME: Mapping[str, frozenset[DType]] = {
    **dict.fromkeys(_FUNCTIONS, _FLOATS),
    **dict.fromkeys(_ARITHMETIC, _NUMBERS),
    "identity": frozenset(DType),
    "where": _COMPARABLE | {_BOOL},
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), frozenset({_BOOL})),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), _INTS),
}
_TO_BOOL: Mapping[str, frozenset[DType]] = {
    **dict.fromkeys(_ORDERS, _COMPARABLE),
    **dict.fromkeys(("equal", "not_equal"), _COMPARABLE | {_BOOL}),
    **dict.fromkeys(("isnan", "isinf"), _FLOATS),
}
_CONVERTED: Mapping[DType, frozenset[DType]] = {
    **dict.fromkeys(_FLOATS, _FLOATS | {_I32, _I16, _I8, _U8, _BOOL}),
    _I64: _FLOATS | {_I32, _BOOL},
    **dict.fromkeys((_I32, _I16, _I8), _FLOATS | {_I32, _I16, _I8, _BOOL}),
    _U8: _FLOATS | {_I32, _I16, _U8, _BOOL},
    _BOOL: _FLOATS | {_I32, _I16, _I8, _U8, _BOOL},
}
CASTS: Mapping[DType, frozenset[DType]] = {d: _CONVERTED.get(d, frozenset()) | {d} for d in DType}
"""Source -> destinations of `cast`; floats to integers must saturate. To the own type it is a copy."""

QUANTIZED = frozenset({_I8, _U8, _I16, _I32})
"""What `quantize` may produce."""


def _steps() -> Iterator[Step]:
    for op, dtypes in _SAME.items():
        yield from ((op, dtype, dtype) for dtype in dtypes)
    for op, dtypes in _TO_BOOL.items():
        yield from ((op, dtype, _BOOL) for dtype in dtypes)
    for source, targets in CASTS.items():
        yield from (("cast", source, target) for target in targets)
    yield from (("quantize", source, target) for source in _FLOATS for target in QUANTIZED)
    yield from (("dequantize", source, target) for source in QUANTIZED for target in _FLOATS)


STEPS: frozenset[Step] = frozenset(_steps())
VECTOR_OPS: frozenset[str] = frozenset(op for op, _, _ in STEPS)
"""Operators with at least one step."""


@dataclass(frozen=True, slots=True)
class Computable(Test):
    """A set of steps, each of which the vector engine computes."""

    passes_absent: ClassVar[bool] = True

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return value is None or value <= STEPS

    def required(self, facts: Facts) -> str:
        wrong = (facts.get("program.steps") or frozenset()) - STEPS
        words = frozenset(" ".join(map(str, step)) for step in wrong)
        return f"without {show(words)}" if words else "steps that the vector engine computes"

    def witness(self, value: FactValue, facts: Facts) -> FactValue:
        return frozenset(value or ()) & STEPS
