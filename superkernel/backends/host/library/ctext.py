"""Python values as C and C++ write them."""

from __future__ import annotations

from collections.abc import Iterable

from superkernel.core.dtypes import SMALL, DType

C_TYPES = {
    DType.F64: "double",
    DType.F32: "float",
    DType.F16: "uint16_t",
    DType.BF16: "uint16_t",
    DType.I64: "int64_t",
    DType.I32: "int32_t",
    DType.I16: "int16_t",
    DType.I8: "int8_t",
    DType.U64: "uint64_t",
    DType.U32: "uint32_t",
    DType.U16: "uint16_t",
    DType.U8: "uint8_t",
    **dict.fromkeys((DType.BOOL, *SMALL), "uint8_t"),
}


def c_string(text: str) -> str:
    """A string literal of one line: UTF-8, with octal escapes for all that is not plain."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode(errors="replace"))
    return '"' + "".join(plain) + '"'


def c_list(items: Iterable[object]) -> str:
    """An initialiser."""
    return "{" + ", ".join(map(str, items)) + "}"
