"""Which pointwise operators the vector engine computes, and of which element types: the registry asks here.

Model: floats are computed in f32 and rounded where they are stored; what is exact in f16 (copies, selection, maximum,
comparison, ...) stays there. 64-bit types, f64 and unsigned 16- and 32-bit types can be copied, not computed with;
`cast` has its own table, because it is a matter of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

from superkernel.dtypes import DType

F32, F16, BF16 = DType.F32, DType.F16, DType.BF16
I64, I32, I16, I8, U8, BOOL = DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL
FLOATS = frozenset({F32, F16, BF16})
WIDE_INTS = frozenset({I32, I16})
BYTES = frozenset({I8, U8})
ALL = frozenset(DType)

_FLOAT_UNARY = (
    *("floor", "ceil", "round", "trunc", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "sin", "cos"),
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid"),
    *("hard_swish", "mish", "softplus", "softsign", "silu", "leaky_relu", "elu", "selu", "celu", "hard_sigmoid"),
    *("gelu", "thresholded_relu", "shrink", "isnan", "isinf"),
)
_ARITHMETIC = ("abs", "neg", "sign", "relu", "square", "add", "sub", "mul", "minimum", "maximum", "clip")
_NUMBERS = FLOATS | WIDE_INTS
_COMPARABLE = _NUMBERS | BYTES

SUPPORTED: Mapping[str, frozenset[DType]] = {
    **dict.fromkeys(_FLOAT_UNARY, FLOATS),
    "identity": ALL,
    "constant": FLOATS | WIDE_INTS | BYTES | {BOOL},
    **dict.fromkeys(_ARITHMETIC, _NUMBERS),
    **dict.fromkeys(("div", "prelu"), FLOATS),
    "pow": FLOATS,
    **dict.fromkeys(("less", "less_equal", "greater", "greater_equal"), _COMPARABLE),
    **dict.fromkeys(("equal", "not_equal"), _COMPARABLE | {BOOL}),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), frozenset({BOOL})),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), WIDE_INTS),
    **dict.fromkeys(("shift_left", "shift_right"), WIDE_INTS),
    "where": FLOATS | WIDE_INTS | BYTES | {BOOL},
    "cast": FLOATS | WIDE_INTS | BYTES | {BOOL, I64},
    "quantize": FLOATS | {I32},
    "dequantize": BYTES | WIDE_INTS,
}
"""Element types of an operator's values (of `where`: of the selected ones; of `cast`: of the source; of `quantize` and
`dequantize`: of x). `pow` and the shifts want a constant right operand."""

QUANTIZED = frozenset({I8, U8, I16, I32})
"""What `quantize` may produce."""

_FROM_FLOAT = FLOATS | {I32, I16, I8, U8, BOOL}
CASTS: Mapping[DType, frozenset[DType]] = {
    **dict.fromkeys(FLOATS, _FROM_FLOAT),
    I64: FLOATS | {I32, BOOL},
    I32: FLOATS | {I32, I16, I8, BOOL},
    I16: FLOATS | {I32, I16, I8, BOOL},
    I8: FLOATS | {I32, I16, I8, BOOL},
    U8: FLOATS | {I32, I16, U8, BOOL},
    BOOL: FLOATS | {I32, I16, I8, U8, BOOL},
}
"""Source -> destinations of `cast`; floats to integers must saturate."""
