"""Commands of the vector engine that do not stay in place: reductions, casts, broadcasts, transposes, gathers."""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.target.engines.build import choice, count, element, reads, size, stride, ub, writes
from superkernel.target.engines.model import CommandSpec, Overlap
from superkernel.target.engines.vector_forms import (
    ANY_TYPE,
    DST,
    DST_STRIDE,
    F16,
    F32,
    I16,
    I32,
    MAX_RULE,
    MIN_RULE,
    NUMBERS,
    SHAPE,
    SRC,
    VALUE,
    vector_command,
)

_ORDER = (
    "Sums have a fixed order: 64 partial sums start from +0; element number e is added to partial sum e mod 64, "
    "in ascending order of e; then for h = 32, 16, 8, 4, 2, 1 partial sum p takes partial sum p + h for every p < "
    "h; partial sum 0 is the result. f16 is widened to f32, summed in f32 and rounded once at the end; integers "
    "are summed modulo 2^(their width)."
)
_SCOPE = choice("scope", "what becomes one element: each row, each column, everything", "row", "column", "whole")
_REDUCED = "choose(scope == 'row', rows, choose(scope == 'column', cols, 1)) * item0"
_REDUCE_BEATS = "rows * ceil_div(cols, lanes(item0)) + choose(scope == 'row', rows, 1) * vector.reduce_tail_cycles"


def _reduce(name: str, opcode: int, what: str, numbering: str) -> CommandSpec:
    text = (
        f"Writes one element after the other from dst on: {what} of each row (scope `row`), of each column "
        f"(`column`) or of all elements (`whole`). {numbering}"
    )
    operands = (
        ub("dst", "first element written", align="item0"),
        ub("src", "first element of the first row"),
        *SHAPE,
        stride("src_stride", "from row to row read; 0 repeats the row"),
        _SCOPE,
    )
    return vector_command(
        name,
        opcode,
        text,
        operands,
        (SRC, writes("dst", _REDUCED)),
        NUMBERS,
        beats=_REDUCE_BEATS,
        overlap=Overlap.DISJOINT,
    )


def _arg_reduce(name: str, opcode: int, what: str) -> CommandSpec:
    text = (
        f"Writes, one i32 per row from dst on, the column of the {what} element of the row: the first of several "
        "equal ones (-0 equals +0); where the row has NaN, the column of the first NaN."
    )
    operands = (
        ub("dst", "first number written", align="4"),
        ub("src", "first element of the first row"),
        *SHAPE,
        stride("src_stride", "from row to row read; 0 repeats the row"),
    )
    return vector_command(
        name,
        opcode,
        text,
        operands,
        (SRC, writes("dst", "rows * 4")),
        NUMBERS,
        beats="rows * (ceil_div(cols, lanes(item0)) + vector.reduce_tail_cycles)",
        overlap=Overlap.DISJOINT,
    )


_NUMBERING = "Elements are numbered by column in a row, by row in a column, and by row x cols + column in the whole. "

_REDUCING = (
    _reduce("v_sum", 0xB8, "the sum", _NUMBERING + _ORDER),
    _reduce("v_reduce_max", 0xB9, "the largest", f"max as in v_max: {MAX_RULE}."),
    _reduce("v_reduce_min", 0xBA, "the smallest", f"min as in v_min: {MIN_RULE}."),
    _arg_reduce("v_argmax", 0xBB, "largest"),
    _arg_reduce("v_argmin", 0xBC, "smallest"),
)

_CAST_TO = {
    F32: (F32, F16, DType.BF16, I32, I16, DType.I8, DType.U8),
    F16: (F16, F32, I32, I16, DType.I8, DType.U8),
    DType.BF16: (F32,),
    I32: (F32, F16, I16),
    I16: (F32, F16, I32),
    DType.I8: (F16, F32, I32),
    DType.U8: (F16, F32, I32),
}
_CASTS = tuple((source, to) for source, targets in _CAST_TO.items() for to in targets)

_MOVING = (
    vector_command(
        "v_cast",
        0xC0,
        "For every element: dst = src in the destination's type. Where it has no exact value there it is rounded "
        "once: `nearest_even` and `nearest_away` to the nearest (a tie to the even one, or away from zero), "
        "`floor` down, `ceil` up, `trunc` toward zero. To a float: IEEE 754 conversion with that direction "
        "(overflow gives infinity, or the largest finite number where the direction leads there); NaN becomes the "
        "canonical NaN. Float to the same float: rounded to a whole number of that type, the sign of zero kept. "
        "Float to integer: rounded to a whole number, then bounded by the type's range; NaN gives 0. Integer to "
        "integer: bounded by the type's range.",
        (
            ub("dst", "first element of the first row written"),
            ub("src", "first element of the first row read"),
            *SHAPE,
            DST_STRIDE,
            stride("src_stride", "from row to row read; 0 repeats the row"),
            choice("rounding", "direction", "nearest_even", "floor", "ceil", "trunc", "nearest_away"),
        ),
        (SRC, writes("dst", "cols * item1", "rows", "dst_stride")),
        _CASTS,
        type_names=("source", "destination"),
        beats="rows * ceil_div(cols, lanes(max(item0, item1)))",
    ),
    vector_command(
        "v_broadcast",
        0xC1,
        "For every row r and column c: dst[r, c] = src[c] with form `row`, src[r] with form `column`; src is a "
        "vector, one element after the other.",
        (
            ub("dst", "first element of the first row written"),
            ub("src", "first element of the vector", align="item0"),
            *SHAPE,
            DST_STRIDE,
            choice("form", "what is repeated", "row", "column", default=None),
        ),
        (reads("src", "choose(form == 'row', cols, rows) * item0"), DST),
        ANY_TYPE,
        overlap=Overlap.DISJOINT,
    ),
    vector_command(
        "v_duplicate",
        0xC2,
        "dst = value for every row and column.",
        (ub("dst", "first element of the first row written"), *SHAPE, DST_STRIDE, VALUE),
        (DST,),
        ANY_TYPE,
        overlap=Overlap.FREE,
    ),
    vector_command(
        "v_iota",
        0xC3,
        "dst[i] = start + i x step for i in 0..cols-1. Integers: modulo 2^(their width). f32: i is rounded to "
        "f32, then multiplied and added, each rounded.",
        (
            ub("dst", "first element written"),
            count("cols", "elements"),
            element("start", "first element"),
            element("step", "difference"),
        ),
        (writes("dst", "cols * item0"),),
        ((I32,), (I16,), (F32,)),
        beats="ceil_div(cols, lanes(item0))",
        overlap=Overlap.FREE,
    ),
    vector_command(
        "v_transpose",
        0xC4,
        "For every row r in 0..rows-1 and column c in 0..cols-1: element r of the row at dst + c x dst_stride = "
        "element c of the row at src + r x src_stride, bit by bit. Works in blocks of 16 x 16 elements; blocks at "
        "the edges cost as whole ones.",
        (
            ub("dst", "first element of the first row written; cols rows are written"),
            ub("src", "first element of the first row read"),
            count("rows", "rows read"),
            count("cols", "elements per row read"),
            stride("dst_stride", "from row to row written; at least rows elements"),
            stride("src_stride", "from row to row read; 0 repeats the row"),
        ),
        (SRC, writes("dst", "rows * item0", "cols", "dst_stride")),
        ANY_TYPE,
        beats="ceil_div(rows, 16) * ceil_div(cols, 16) * ceil_div(256, lanes(item0))",
        overlap=Overlap.DISJOINT,
    ),
)

_OFFSETS = (
    "the offsets are u32, one after the other, in bytes, multiples of the element's size, below table_bytes (else "
    "an error); bytes of the table that no offset names are not touched"
)

_INDEXED = (
    vector_command(
        "v_gather",
        0xC8,
        f"dst[i] = the element at src + offset[i], for i in 0..cols-1; {_OFFSETS}.",
        (
            ub("dst", "first element written"),
            ub("src", "table"),
            ub("offsets", "first offset"),
            count("cols", "elements"),
            size("table_bytes", "size of the table"),
        ),
        (reads("src", "table_bytes"), reads("offsets", "cols * 4"), writes("dst", "cols * item0")),
        ANY_TYPE,
        beats="ceil_div(cols, vector.lanes_gather)",
        overlap=Overlap.DISJOINT,
    ),
    vector_command(
        "v_scatter",
        0xC9,
        "The element at dst + offset[i] = src[i], for i in 0..cols-1 in ascending order: of equal offsets the "
        f"last one stays; {_OFFSETS}.",
        (
            ub("dst", "table"),
            ub("src", "first element read"),
            ub("offsets", "first offset"),
            count("cols", "elements"),
            size("table_bytes", "size of the table"),
        ),
        (reads("src", "cols * item0"), reads("offsets", "cols * 4"), writes("dst", "table_bytes")),
        ANY_TYPE,
        beats="ceil_div(cols, vector.lanes_gather)",
        overlap=Overlap.DISJOINT,
    ),
)

VECTOR_MOVE_COMMANDS = (*_REDUCING, *_MOVING, *_INDEXED)
