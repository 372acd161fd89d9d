"""Pointwise operators: out[i] = f(inputs broadcast at i).

Model: the uniform unary and binary operators are rows of `elementwise.py`; here are those with a rule of their own for
types or shapes (cast, bitcast, pow, prelu, where, clip, quantize, dequantize), and the table of all of them.

Choices where the field is silent (kernels follow them): integer division and remainder by zero give 0; float to integer
casts truncate and, with `saturate`, clamp (NaN gives 0); minimum and maximum pass NaN on; shifts past the width shift
everything out.
"""

from __future__ import annotations

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import (
    attr,
    broadcast_shape,
    get,
    is_float,
    optional,
    present,
    require,
    require_broadcast_to,
    require_same_dtype,
    saturate,
    slot,
    small_elements,
    to_f64,
    widen,
)
from superkernel.ops.elementwise import ONE, pointwise_row
from superkernel.ops.elementwise import OPS as ELEMENTWISE
from superkernel.ops.numeric import int_pow
from superkernel.ops.opdef import (
    ANY,
    BOOLS,
    FLOATS,
    MOVED,
    NUMERIC,
    VECTOR_COMPARABLE,
    VECTOR_FLOATS,
    VECTOR_INTS,
    ArgDef,
    Array,
    Arrays,
    AttrDef,
    AttrKind,
    Attrs,
    Conversions,
    OpDef,
    Outputs,
    Traits,
    Types,
)


def _to_themselves(dtypes: frozenset[DType]) -> Conversions:
    return {d: frozenset({d}) for d in dtypes}


_POW_ARGS = (ArgDef("a", NUMERIC), ArgDef("b", NUMERIC, doc="may be of another type than a"))


def _pow_infer(inputs: Types, attrs: Attrs) -> Outputs:
    a, b = present(inputs, 0), present(inputs, 1)
    return (TensorType(a.dtype, broadcast_shape([a.shape, b.shape])),)


def _pow_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    a, b = present(inputs, 0), present(inputs, 1)
    if is_float(a) or is_float(b):
        exponents = np.array(np.broadcast_to(to_f64(b), outputs[0].shape))  # of one that is 1/2 NumPy takes the root
        result = np.power(to_f64(a), exponents)
        return (np.asarray(result if is_float(a) else saturate(result, outputs[0].dtype)),)
    return (np.asarray(int_pow(a, b)),)


_PRELU_ARGS = (ArgDef("x", NUMERIC), ArgDef("slope", NUMERIC, doc="broadcasts to x"))


def _prelu_infer(inputs: Types, attrs: Attrs) -> Outputs:
    require_same_dtype(inputs, _PRELU_ARGS)
    x = present(inputs, 0)
    require_broadcast_to(present(inputs, 1), x.shape, slot(_PRELU_ARGS, 1))
    return (x,)


def _prelu_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, slope = widen(present(inputs, 0)), widen(present(inputs, 1))
    return (np.asarray(np.where(x < 0, x * slope, x)).astype(x.dtype),)


_WHERE_ARGS = (ArgDef("cond", BOOLS), ArgDef("a", ANY), ArgDef("b", ANY))


def _where_infer(inputs: Types, attrs: Attrs) -> Outputs:
    dtype = require_same_dtype(inputs, _WHERE_ARGS, first=1)
    return (TensorType(dtype, broadcast_shape([present(inputs, i).shape for i in range(3)])),)


def _where_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    return (np.where(present(inputs, 0), widen(present(inputs, 1)), widen(present(inputs, 2))),)


_CLIP_ARGS = (ArgDef("x", NUMERIC), ArgDef("lo", NUMERIC, optional=True), ArgDef("hi", NUMERIC, optional=True))


def _clip_infer(inputs: Types, attrs: Attrs) -> Outputs:
    dtype = require_same_dtype(inputs, _CLIP_ARGS)
    return (TensorType(dtype, broadcast_shape([k.shape for k in inputs if k is not None])),)


def _clip_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    result, low, high = widen(present(inputs, 0)), optional(inputs, 1), optional(inputs, 2)
    if low is not None:
        result = np.maximum(result, widen(low))
    if high is not None:
        result = np.minimum(result, widen(high))
    return (np.asarray(result),)


def _opened(x: Array) -> Array:
    """Elements of a small type in one that NumPy computes in."""
    dtype = DType.of(x.dtype)
    return x if not dtype.is_small else to_f64(x) if dtype.is_float else x.astype(np.int64)


def _cast_infer(inputs: Types, attrs: Attrs) -> Outputs:
    dtype = attrs["dtype"]
    assert isinstance(dtype, DType)
    return (TensorType(dtype, present(inputs, 0).shape),)


def _cast_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, to = _opened(present(inputs, 0)), outputs[0].dtype
    if to is DType.BOOL:
        return (np.asarray(x != 0),)
    if to.is_small:
        return (small_elements(x, to, get(attrs, "saturate", bool)),)
    if not is_float(x):
        return (x.astype(to.numpy),)  # one rounding, straight to the target type; integers wrap
    if to.is_float:
        return (to_f64(x),)
    if get(attrs, "saturate", bool):
        return (saturate(to_f64(x), to),)
    wrapped = saturate(to_f64(x), DType.I64).astype(to.numpy)
    return (np.where(x < 0, wrapped, saturate(to_f64(x), to)) if to is DType.U64 else wrapped,)


_BITCAST_ARGS = (ArgDef("x", MOVED),)


def _bitcast_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, dtype = present(inputs, 0), attrs["dtype"]
    assert isinstance(dtype, DType)
    require(x.dtype.bits == dtype.bits, "element types of other sizes", f"{dtype.bits} bits", x.dtype)
    plain = dtype is not DType.BOOL or x.dtype is DType.BOOL
    require(plain, "not every byte is a truth value", "another type", dtype, "attribute 'dtype'")
    return (TensorType(dtype, x.shape),)


def _bitcast_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x = np.ascontiguousarray(present(inputs, 0))
    return (x.view(outputs[0].dtype.numpy).reshape(outputs[0].shape),)


_QUANTIZED = frozenset({DType.I8, DType.U8, DType.I16, DType.U16, DType.I32})
_QUANTIZE_ARGS = (
    ArgDef("x", FLOATS | {DType.I32}),
    ArgDef("scale", FLOATS, doc="broadcasts to x"),
    ArgDef("zero_point", _QUANTIZED, optional=True, doc="of type dtype; broadcasts to x"),
)
_DEQUANTIZE_ARGS = (
    ArgDef("x", _QUANTIZED),
    ArgDef("scale", FLOATS, doc="broadcasts to x; its type is the output's"),
    ArgDef("zero_point", _QUANTIZED, optional=True, doc="of x's type; broadcasts to x"),
)


def _quantization_shapes(inputs: Types, args: tuple[ArgDef, ...], quantized: DType) -> None:
    """Scale and zero point broadcast to x, and the zero point is of the quantised type."""
    x = present(inputs, 0)
    for index, kind in enumerate(inputs):
        if index and kind is not None:
            require_broadcast_to(kind, x.shape, slot(args, index))
    if len(inputs) > 2 and inputs[2] is not None:
        zero = inputs[2].dtype
        require(zero is quantized, "zero point has another type than the values", quantized, zero, slot(args, 2))


def _quantize_infer(inputs: Types, attrs: Attrs) -> Outputs:
    dtype = attrs["dtype"]
    assert isinstance(dtype, DType)
    names = ", ".join(sorted(d.value for d in _QUANTIZED))
    require(dtype in _QUANTIZED, "not a quantised type", names, dtype, "attribute 'dtype'")
    _quantization_shapes(inputs, _QUANTIZE_ARGS, dtype)
    return (TensorType(dtype, present(inputs, 0).shape),)


def _quantize_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    zero = optional(inputs, 2)
    steps = np.rint(to_f64(present(inputs, 0)) / to_f64(present(inputs, 1)))
    return (saturate(steps + (0.0 if zero is None else to_f64(zero)), outputs[0].dtype),)


def _dequantize_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x = present(inputs, 0)
    _quantization_shapes(inputs, _DEQUANTIZE_ARGS, x.dtype)
    return (TensorType(present(inputs, 1).dtype, x.shape),)


def _dequantize_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    zero = optional(inputs, 2)
    offset = 0.0 if zero is None else to_f64(zero)
    return (np.asarray((to_f64(present(inputs, 0)) - offset) * to_f64(present(inputs, 1))),)


_CAST_ATTRS = (
    AttrDef("dtype", AttrKind.DTYPE, doc="element type of the output"),
    attr(
        "saturate",
        True,
        "floats outside a type's range clamp, and NaN gives 0 as an integer; else they wrap, or become infinity or NaN "
        "where the type is a small float",
    ),
)
_QUANTIZE_ATTRS = (AttrDef("dtype", AttrKind.DTYPE, DType.U8, "i8, u8, i16, u16 or i32"),)

_I64, _I32, _I16, _I8, _U8, _BOOL = DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL
_CONVERTED: Conversions = {
    **dict.fromkeys(VECTOR_FLOATS, VECTOR_FLOATS | {_I32, _I16, _I8, _U8, _BOOL}),
    _I64: VECTOR_FLOATS | {_I32, _BOOL},
    **dict.fromkeys((_I32, _I16, _I8), VECTOR_FLOATS | {_I32, _I16, _I8, _BOOL}),
    _U8: VECTOR_FLOATS | {_I32, _I16, _U8, _BOOL},
    _BOOL: VECTOR_FLOATS | {_I32, _I16, _I8, _U8, _BOOL},
}
_VECTOR_CASTS: Conversions = {d: _CONVERTED.get(d, frozenset()) | {d} for d in DType}  # to the own type it is a copy
_VECTOR_QUANTIZED = _QUANTIZED - {DType.U16}

_OWN = (
    pointwise_row(
        "cast",
        "x in another type; floats to integers truncate, integers to narrower ones wrap.",
        (ArgDef("x", MOVED),),
        _CAST_ATTRS,
        _cast_infer,
        _cast_reference,
        1,
        Traits(weight=6.0, vector=_VECTOR_CASTS),
    ),
    pointwise_row(
        "bitcast",
        "The bits of x as elements of another type of the same size.",
        _BITCAST_ARGS,
        (AttrDef("dtype", AttrKind.DTYPE, doc="element type of the output"),),
        _bitcast_infer,
        _bitcast_reference,
        0,
        Traits(weight=0.0, vector="its commands convert, none takes bits for another type's"),
        discontinuous=True,
    ),
    pointwise_row(
        "pow",
        "a^b in the type of a.",
        _POW_ARGS,
        (),
        _pow_infer,
        _pow_reference,
        1,
        Traits(weight=90.0, vector=_to_themselves(VECTOR_FLOATS), constant="exponent", costly=True),
        onnx="Pow",
    ),
    pointwise_row(
        "prelu",
        "x where not negative, else slope * x.",
        _PRELU_ARGS,
        (),
        _prelu_infer,
        _prelu_reference,
        2,
        Traits(weight=ONE, vector=_to_themselves(VECTOR_FLOATS)),
        onnx="PRelu",
    ),
    pointwise_row(
        "where",
        "a where cond, else b.",
        _WHERE_ARGS,
        (),
        _where_infer,
        _where_reference,
        1,
        Traits(weight=ONE, vector=_to_themselves(VECTOR_COMPARABLE)),
        typed_by=1,
        onnx="Where",
    ),
    pointwise_row(
        "clip",
        "min(max(x, lo), hi).",
        _CLIP_ARGS,
        (),
        _clip_infer,
        _clip_reference,
        2,
        Traits(weight=ONE, vector=_to_themselves(VECTOR_FLOATS | VECTOR_INTS)),
    ),
    pointwise_row(
        "quantize",
        "saturate(round(x / scale) + zero_point), halves to even.",
        _QUANTIZE_ARGS,
        _QUANTIZE_ATTRS,
        _quantize_infer,
        _quantize_reference,
        3,
        Traits(weight=14.0, vector=dict.fromkeys(VECTOR_FLOATS, _VECTOR_QUANTIZED)),
        discontinuous=True,
    ),
    pointwise_row(
        "dequantize",
        "(x - zero_point) * scale.",
        _DEQUANTIZE_ARGS,
        (),
        _dequantize_infer,
        _dequantize_reference,
        2,
        Traits(weight=6.0, vector=dict.fromkeys(_VECTOR_QUANTIZED, VECTOR_FLOATS)),
    ),
)

OPS: tuple[OpDef, ...] = (*ELEMENTWISE, *_OWN)
