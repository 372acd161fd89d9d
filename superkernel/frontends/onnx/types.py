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
ONNX_OF = {dtype: code for code, dtype in _ELEMENT.items()}


def element_type(code: int, where: str) -> DType:
    """The DType of an ONNX element type code. UnsupportedError on strings, complex, 8-bit floats, 4-bit integers."""
    found = _ELEMENT.get(code)
    if found is None:
        try:
            name = onnx.TensorProto.DataType.Name(code)
        except ValueError:
            name = str(code)
        raise UnsupportedError(
            "the element type has no counterpart",
            location=where,
            expected=", ".join(sorted(d.value for d in ONNX_OF)),
            found=name,
        )
    return found


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
