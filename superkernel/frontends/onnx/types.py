"""ONNX element types and attributes as SuperKernel's; the only place that reads protobuf fields of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError, UnsupportedError

_ELEMENT: dict[int, DType] = {
    onnx.TensorProto.FLOAT: DType.F32,
    onnx.TensorProto.DOUBLE: DType.F64,
    onnx.TensorProto.FLOAT16: DType.F16,
    onnx.TensorProto.BFLOAT16: DType.BF16,
    onnx.TensorProto.INT64: DType.I64,
    onnx.TensorProto.INT32: DType.I32,
    onnx.TensorProto.INT16: DType.I16,
    onnx.TensorProto.INT8: DType.I8,
    onnx.TensorProto.UINT64: DType.U64,
    onnx.TensorProto.UINT32: DType.U32,
    onnx.TensorProto.UINT16: DType.U16,
    onnx.TensorProto.UINT8: DType.U8,
    onnx.TensorProto.BOOL: DType.BOOL,
}
_SMALL = {
    "FLOAT8E4M3FN": DType.F8E4M3FN,
    "FLOAT8E4M3FNUZ": DType.F8E4M3FNUZ,
    "FLOAT8E5M2": DType.F8E5M2,
    "FLOAT8E5M2FNUZ": DType.F8E5M2FNUZ,
    "FLOAT8E8M0": DType.F8E8M0FNU,
    "FLOAT6E2M3": DType.F6E2M3FN,
    "FLOAT6E3M2": DType.F6E3M2FN,
    "FLOAT4E2M1": DType.F4E2M1FN,
    "INT4": DType.INT4,
    "UINT4": DType.UINT4,
    "INT2": DType.INT2,
    "UINT2": DType.UINT2,
}
_ELEMENT |= {getattr(onnx.TensorProto, n): d for n, d in _SMALL.items() if hasattr(onnx.TensorProto, n)}  # by version
ONNX_OF = {dtype: code for code, dtype in _ELEMENT.items()}


def element_type(code: int, where: str) -> DType:
    """The DType of an ONNX element type code. UnsupportedError on strings and complex numbers."""
    found = _ELEMENT.get(code)
    if found is None:
        raise UnsupportedError(
            "the element type has no counterpart",
            location=where,
            expected=", ".join(sorted(d.value for d in ONNX_OF)),
            found=type_name(code),
        )
    return found


def type_name(code: int) -> str:
    """An ONNX element type code's name, or its number where it is none."""
    try:
        return str(onnx.TensorProto.DataType.Name(code))
    except ValueError:
        return str(code)


def tensor_type(info: onnx.ValueInfoProto) -> onnx.TypeProto.Tensor | None:
    """The declared type of a tensor, of one that may be absent, or of a sequence's elements; None for anything else."""
    kind = _value_type(info)
    kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
    return kind.tensor_type if kind.HasField("tensor_type") else None


def is_sequence(info: onnx.ValueInfoProto) -> bool:
    """Whether a sequence is declared, or one that may be absent."""
    return bool(_value_type(info).HasField("sequence_type"))


def _value_type(info: onnx.ValueInfoProto) -> onnx.TypeProto:
    return info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type


def tensor_array(tensor: onnx.TensorProto, where: str) -> NDArray[Any]:
    """The contents of a TensorProto. Raises FileFormatError where the data do not fit the declared shape."""
    dtype = element_type(tensor.data_type, where)
    try:
        array = numpy_helper.to_array(tensor)
    except Exception as error:  # onnx raises ValueError, TypeError, RuntimeError or its own checker errors here
        raise FileFormatError("the tensor cannot be read", location=where, found=str(error)) from error
    return np.ascontiguousarray(array.astype(dtype.numpy, copy=False)).reshape(tuple(tensor.dims))


def attribute_value(attribute: onnx.AttributeProto, where: str) -> Any:
    """The attribute as int, float, str, list, array, GraphProto or list of graphs."""
    kind = attribute.type
    if kind == onnx.AttributeProto.TENSOR:
        return attribute.t  # converted by the lowering that uses it, with its own error place
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError as error:
        raise FileFormatError("the attribute cannot be read", location=where, found=str(error)) from error
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if kind == onnx.AttributeProto.STRINGS:
        return [v.decode("utf-8", errors="replace") for v in value]
    if kind in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    return value
