"""The element types of tensors: names, sizes, NumPy counterparts, promotion classes.

bf16 has no NumPy type of its own; `ml_dtypes.bfloat16` serves. Names are the field's short ones (f32, bf16, i8, ...).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from superkernel.core.errors import UserError


class DType(Enum):
    """An element type; the value is its name in every text form."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"

    # Identity hash: Enum's own hashes the name on every dictionary access, and types are dictionary keys everywhere.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Also with what `of` takes: np.float32, np.dtype("float32"), "float32"."""
        if self is other or not isinstance(other, (str, np.dtype, type)):
            return self is other
        try:
            return DType.of(other) is self
        except UserError:
            return False

    @property
    def dtype(self) -> np.dtype[Any]:
        """As `numpy`: by this name NumPy's functions look for it where they take a type."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype that holds it."""
        return _NUMPY[self]

    @property
    def is_float(self) -> bool:
        """Whether it is f64, f32 or narrower, not an integer or bool."""
        return self in _FLOATS

    @property
    def is_signed(self) -> bool:
        """True of floats and signed integers."""
        return self in _FLOATS or self.value[0] == "i"

    @property
    def is_integer(self) -> bool:
        """True of integers, not of bool."""
        return self not in _FLOATS and self is not DType.BOOL

    def __repr__(self) -> str:
        return _NAMES[self]  # which an enumeration is slow to tell

    def __str__(self) -> str:
        return _NAMES[self]

    @staticmethod
    def of(thing: object) -> DType:
        """The DType of a DType, its name, a NumPy dtype or anything `np.dtype` takes. Raises UserError."""
        if isinstance(thing, DType):
            return thing
        if isinstance(thing, str) and thing in _BY_NAME:
            return _BY_NAME[thing]
        if isinstance(thing, np.dtype) and (known := _BY_NUMPY.get(thing)) is not None:  # asked for every constant
            return known
        try:
            if thing is None:  # f64 to NumPy
                raise TypeError
            key = np.dtype(thing)  # type: ignore[call-overload]
        except (SyntaxError, TypeError, ValueError) as error:
            raise UserError("not an element type", expected=", ".join(_BY_NAME), found=repr(thing)) from error
        found = _BY_NUMPY.get(key.newbyteorder("="))
        if found is None:
            raise UserError("element type is not supported", expected=", ".join(_BY_NAME), found=str(key))
        return found


_FLOATS = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})
_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F64: np.dtype(np.float64),
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.I64: np.dtype(np.int64),
    DType.I32: np.dtype(np.int32),
    DType.I16: np.dtype(np.int16),
    DType.I8: np.dtype(np.int8),
    DType.U64: np.dtype(np.uint64),
    DType.U32: np.dtype(np.uint32),
    DType.U16: np.dtype(np.uint16),
    DType.U8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
}
_NAMES: dict[DType, str] = {d: d.value for d in DType}
_ITEMSIZE = {d: n.itemsize for d, n in _NUMPY.items()}
_BY_NAME = {d.value: d for d in DType}
_BY_NUMPY = {n: d for d, n in _NUMPY.items()}
