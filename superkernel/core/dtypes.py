"""The element types of tensors: names, sizes, NumPy counterparts, promotion classes.

NumPy has no types of its own for bf16 and the small ones; those of `ml_dtypes` serve. Names are the field's short ones
(f32, bf16, i8, f8e4m3fn, ...); the smallest integers have
long ones (int4, uint2), for "i4" is NumPy's integer of 4 bytes.

*Small* types are floats of 8, 6 and 4 bits (OCP's, and those without infinities or negative zero) and integers of 4 and
2. An element of them takes a byte, of which the low bits count. They hold what is moved and converted: nothing computes
in them.
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
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0FNU = "f8e8m0fnu"
    F6E2M3FN = "f6e2m3fn"
    F6E3M2FN = "f6e3m2fn"
    F4E2M1FN = "f4e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

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
    def stored(self) -> np.dtype[Any]:
        """The dtype that NumPy itself has for elements in memory: of those that it does not know, integers of as many
        bytes."""
        return _STORED[self]

    @property
    def bits(self) -> int:
        """Of an element that count; of bool one byte."""
        return _BITS[self]

    @property
    def is_small(self) -> bool:
        """Whether it is one of those that nothing computes in."""
        return self in SMALL

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

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest number of an integer type."""
        half = 1 << (_BITS[self] - 1)
        return (-half, half - 1) if self.is_signed else (0, 2 * half - 1)

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


_SMALL_FLOATS = frozenset(
    {
        *(DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F8E8M0FNU),
        *(DType.F6E2M3FN, DType.F6E3M2FN, DType.F4E2M1FN),
    }
)
SMALL = _SMALL_FLOATS | {DType.INT4, DType.UINT4, DType.INT2, DType.UINT2}
_FLOATS = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16}) | _SMALL_FLOATS
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
    DType.F8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.F8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    DType.F8E8M0FNU: np.dtype(ml_dtypes.float8_e8m0fnu),
    DType.F6E2M3FN: np.dtype(ml_dtypes.float6_e2m3fn),
    DType.F6E3M2FN: np.dtype(ml_dtypes.float6_e3m2fn),
    DType.F4E2M1FN: np.dtype(ml_dtypes.float4_e2m1fn),
    DType.INT4: np.dtype(ml_dtypes.int4),
    DType.UINT4: np.dtype(ml_dtypes.uint4),
    DType.INT2: np.dtype(ml_dtypes.int2),
    DType.UINT2: np.dtype(ml_dtypes.uint2),
}
_STORED = {d: np.dtype(f"u{n.itemsize}") if n.type.__module__ == "ml_dtypes" else n for d, n in _NUMPY.items()}
_NAMES: dict[DType, str] = {d: d.value for d in DType}
_ITEMSIZE = {d: n.itemsize for d, n in _NUMPY.items()}
_BITS = {d: 8 * n.itemsize for d, n in _NUMPY.items()} | {
    **dict.fromkeys((DType.F6E2M3FN, DType.F6E3M2FN), 6),
    **dict.fromkeys((DType.F4E2M1FN, DType.INT4, DType.UINT4), 4),
    **dict.fromkeys((DType.INT2, DType.UINT2), 2),
}
_BY_NAME = {d.value: d for d in DType}
_BY_NUMPY = {n: d for d, n in _NUMPY.items()}
