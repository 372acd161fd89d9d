"""Commands of the vector engine: matrices of rows x cols elements in UB.

Nearly all have the same shape: rows of cols elements, each operand with a row stride of its own (0 repeats a row), so
that tiles inside larger tiles and broadcasting need no copies.
"""

from __future__ import annotations

from superkernel.dtypes import DType
from superkernel.target.engines.build import choice, count, element, number, reads, size, stride, ub, writes
from superkernel.target.engines.model import TYPE_CODES, Access, CommandSpec, Engine, Operand, Overlap

F32, F16, I32, I16 = DType.F32, DType.F16, DType.I32, DType.I16
_FLOATS = ((F32,), (F16,))
_NUMBERS = ((F32,), (F16,), (I32,), (I16,))
_INTS = ((I32,), (I16,))
_ANY_TYPE = tuple((dtype,) for dtype in TYPE_CODES)

_PLAIN_BEATS = "rows * ceil_div(cols, lanes(item0))"
_SPECIAL_BEATS = "rows * ceil_div(cols, vector.lanes_special)"
_SHAPE = (count("rows", "rows", default=1), count("cols", "elements per row"))
_DST_STRIDE = stride("dst_stride", "from row to row written; at least a written row's bytes")
_SRC = reads("src", "cols * item0", "rows", "src_stride")
_DST = writes("dst", "cols * item0", "rows", "dst_stride")
_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


def _vector(
    name: str,
    opcode: int,
    semantics: str,
    operands: tuple[Operand, ...],
    accesses: tuple[Access, ...],
    types: tuple[tuple[DType, ...], ...],
    *,
    beats: str = _PLAIN_BEATS,
    overlap: Overlap = Overlap.IN_PLACE,
    ulp: int = 0,
    type_names: tuple[str, ...] = ("element",),
) -> CommandSpec:
    return CommandSpec(
        name,
        opcode,
        (Engine.V,),
        semantics,
        operands,
        types,
        type_names,
        accesses,
        overlap,
        start_up="vector.startup_cycles",
        beats=beats,
        ulp=ulp,
    )


def _binary(
    name: str,
    opcode: int,
    formula: str,
    types: tuple[tuple[DType, ...], ...],
    beats: str = _PLAIN_BEATS,
    also: bool = False,
) -> CommandSpec:
    """dst = f(a, b); b elementwise or one element per row. `also`: the destination is an operand too."""
    operands = (
        ub("dst", "first element of the first row written"),
        ub("a", "left operand"),
        choice("b_form", "b: an element per element, or one element per row", "matrix", "column"),
        ub("b", "right operand", align="choose(b_form == 'column', item0, memory.block_bytes)"),
        *_SHAPE,
        _DST_STRIDE,
        stride("a_stride", "from row to row of a; 0 repeats the row"),
        stride(
            "b_stride",
            "from row to row of b; 0 repeats the row",
            align="choose(b_form == 'column', item0, memory.block_bytes)",
        ),
    )
    text = (
        f"For every row r and column c: {formula}, where b is b[r, c] with b_form `matrix` and b[r, 0] with `column`."
    )
    accesses = [
        reads("a", "cols * item0", "rows", "a_stride"),
        reads("b", "choose(b_form == 'column', 1, cols) * item0", "rows", "b_stride"),
    ]
    if also:
        accesses.append(reads("dst", "cols * item0", "rows", "dst_stride"))
    return _vector(name, opcode, text, operands, (*accesses, _DST), types, beats=beats)


def _unary(
    name: str,
    opcode: int,
    formula: str,
    types: tuple[tuple[DType, ...], ...],
    *extra: Operand,
    beats: str = _PLAIN_BEATS,
    ulp: int = 0,
    also: bool = False,
) -> CommandSpec:
    """dst = f(src), perhaps with a number of the command's own."""
    operands = (
        ub("dst", "first element of the first row written"),
        ub("src", "operand"),
        *_SHAPE,
        _DST_STRIDE,
        stride("src_stride", "from row to row read; 0 repeats the row"),
        *extra,
    )
    read_dst = (reads("dst", "cols * item0", "rows", "dst_stride"),) if also else ()
    text = f"For every element x of src: {formula}."
    return _vector(name, opcode, text, operands, (_SRC, *read_dst, _DST), types, beats=beats, ulp=ulp)


_VALUE = element("value", "the number, an element")
_SHIFT = number("shift", "places, below the element's width", bits=5)
_MAX = "NaN where one of them is NaN, else the larger; +0 is larger than -0"
_MIN = "NaN where one of them is NaN, else the smaller; -0 is smaller than +0"

_ARITHMETIC = (
    _binary("v_add", 0x80, "dst = a + b", _NUMBERS),
    _binary("v_sub", 0x81, "dst = a - b", _NUMBERS),
    _binary("v_mul", 0x82, "dst = a * b", _NUMBERS),
    _binary("v_div", 0x83, "dst = a / b", _FLOATS, beats=_SPECIAL_BEATS),
    _binary("v_max", 0x84, f"dst = max(a, b): {_MAX}", _NUMBERS),
    _binary("v_min", 0x85, f"dst = min(a, b): {_MIN}", _NUMBERS),
    _binary("v_fma", 0x86, "dst = a * b + dst, in f32 one fused operation with one rounding", _FLOATS, also=True),
    _binary("v_and", 0x87, "dst = bitwise and", _INTS),
    _binary("v_or", 0x88, "dst = bitwise or", _INTS),
    _binary("v_xor", 0x89, "dst = bitwise exclusive or", _INTS),
    _unary("v_adds", 0x90, "dst = x + value", _NUMBERS, _VALUE),
    _unary("v_muls", 0x91, "dst = x * value", _NUMBERS, _VALUE),
    _unary("v_maxs", 0x92, f"dst = max(x, value): {_MAX}", _NUMBERS, _VALUE),
    _unary("v_mins", 0x93, f"dst = min(x, value): {_MIN}", _NUMBERS, _VALUE),
    _unary("v_rsubs", 0x94, "dst = value - x", _NUMBERS, _VALUE),
    _unary(
        "v_axpy",
        0x95,
        "dst = x * value + dst, in f32 one fused operation with one rounding",
        _FLOATS,
        _VALUE,
        also=True,
    ),
    _unary("v_leaky", 0x96, "dst = x where x > 0, else x * value", _FLOATS, _VALUE),
    _unary("v_shl", 0x97, "dst = x shifted left, zeros from the right", _INTS, _SHIFT),
    _unary("v_shr", 0x98, "dst = x shifted right, copies of the sign from the left", _INTS, _SHIFT),
    _unary(
        "v_abs",
        0xA0,
        "dst = the absolute value; floats: the sign bit cleared, of NaN too; the least integer stays",
        _NUMBERS,
    ),
    _unary("v_neg", 0xA1, "dst = -x; floats: the sign bit inverted, of NaN too; the least integer stays", _NUMBERS),
    _unary("v_relu", 0xA2, "dst = x where x > 0, NaN where x is NaN, else +0", _NUMBERS),
    _unary("v_not", 0xA3, "dst = every bit inverted", _INTS),
    _unary("v_copy", 0xA4, "dst = x, bit by bit", _ANY_TYPE),
)

_TRANSCENDENTAL = (
    _unary("v_exp", 0xA8, "dst = e^x; exp of +-0 is 1, of -inf +0, of +inf +inf", _FLOATS, beats=_SPECIAL_BEATS, ulp=1),
    _unary(
        "v_ln",
        0xA9,
        "dst = natural logarithm; ln of 1 is +0, of +-0 -inf, of +inf +inf, of less than 0 NaN",
        _FLOATS,
        beats=_SPECIAL_BEATS,
        ulp=1,
    ),
    _unary("v_sqrt", 0xAA, "dst = square root; of -0 it is -0, of less than 0 NaN", _FLOATS, beats=_SPECIAL_BEATS),
    _unary(
        "v_rsqrt",
        0xAB,
        "dst = 1 / sqrt(x), in f32 two operations, square root and division, each rounded",
        _FLOATS,
        beats=_SPECIAL_BEATS,
    ),
    _unary("v_reciprocal", 0xAC, "dst = 1 / x", _FLOATS, beats=_SPECIAL_BEATS),
)

_PREDICATE = choice("predicate", "the relation", *_PREDICATES, default=None)
_MASK = (
    "1 where the relation holds, else 0, a byte per element; with NaN only `ne` holds; -0 equals +0; integers are "
    "signed"
)
_BYTES_OUT = writes("dst", "cols", "rows", "dst_stride")

_SELECTING = (
    _vector(
        "v_cmp",
        0xB0,
        f"For every row and column: dst = {_MASK}. a is on the left of the relation.",
        (
            ub("dst", "first byte of the mask"),
            ub("a", "left operand"),
            ub("b", "right operand"),
            *_SHAPE,
            _DST_STRIDE,
            stride("a_stride", "from row to row of a; 0 repeats the row"),
            stride("b_stride", "from row to row of b; 0 repeats the row"),
            _PREDICATE,
        ),
        (reads("a", "cols * item0", "rows", "a_stride"), reads("b", "cols * item0", "rows", "b_stride"), _BYTES_OUT),
        _NUMBERS,
        overlap=Overlap.DISJOINT,
    ),
    _vector(
        "v_cmps",
        0xB1,
        f"For every element x of src: dst = {_MASK}. x is on the left of the relation, value on the right.",
        (
            ub("dst", "first byte of the mask"),
            ub("src", "left operand"),
            *_SHAPE,
            _DST_STRIDE,
            stride("src_stride", "from row to row read; 0 repeats the row"),
            _PREDICATE,
            _VALUE,
        ),
        (_SRC, _BYTES_OUT),
        _NUMBERS,
        overlap=Overlap.DISJOINT,
    ),
    _vector(
        "v_select",
        0xB2,
        "For every row and column: dst = a where the mask's byte is not 0, else b, bit by bit.",
        (
            ub("dst", "first element of the first row written"),
            ub("a", "taken where the mask is set"),
            ub("b", "taken where it is not"),
            ub("mask", "a byte per element"),
            *_SHAPE,
            _DST_STRIDE,
            stride("a_stride", "from row to row of a; 0 repeats the row"),
            stride("b_stride", "from row to row of b; 0 repeats the row"),
            stride("mask_stride", "from row to row of the mask; 0 repeats the row"),
        ),
        (
            reads("a", "cols * item0", "rows", "a_stride"),
            reads("b", "cols * item0", "rows", "b_stride"),
            reads("mask", "cols", "rows", "mask_stride"),
            _DST,
        ),
        _ANY_TYPE,
    ),
    _vector(
        "v_selects",
        0xB3,
        "For every row and column: dst = src where the mask's byte is not 0, else value, bit by bit.",
        (
            ub("dst", "first element of the first row written"),
            ub("src", "taken where the mask is set"),
            ub("mask", "a byte per element"),
            *_SHAPE,
            _DST_STRIDE,
            stride("src_stride", "from row to row read; 0 repeats the row"),
            stride("mask_stride", "from row to row of the mask; 0 repeats the row"),
            _VALUE,
        ),
        (_SRC, reads("mask", "cols", "rows", "mask_stride"), _DST),
        _ANY_TYPE,
    ),
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
        *_SHAPE,
        stride("src_stride", "from row to row read; 0 repeats the row"),
        _SCOPE,
    )
    return _vector(
        name,
        opcode,
        text,
        operands,
        (_SRC, writes("dst", _REDUCED)),
        _NUMBERS,
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
        *_SHAPE,
        stride("src_stride", "from row to row read; 0 repeats the row"),
    )
    return _vector(
        name,
        opcode,
        text,
        operands,
        (_SRC, writes("dst", "rows * 4")),
        _NUMBERS,
        beats="rows * (ceil_div(cols, lanes(item0)) + vector.reduce_tail_cycles)",
        overlap=Overlap.DISJOINT,
    )


_NUMBERING = "Elements are numbered by column in a row, by row in a column, and by row x cols + column in the whole. "

_REDUCING = (
    _reduce("v_sum", 0xB8, "the sum", _NUMBERING + _ORDER),
    _reduce("v_reduce_max", 0xB9, "the largest", f"max as in v_max: {_MAX}."),
    _reduce("v_reduce_min", 0xBA, "the smallest", f"min as in v_min: {_MIN}."),
    _arg_reduce("v_argmax", 0xBB, "largest"),
    _arg_reduce("v_argmin", 0xBC, "smallest"),
)

_ROUNDED = (DType.F16, DType.BF16, DType.I32, DType.I16, DType.I8, DType.U8)
_CASTS = (
    (F32, F32),
    *((F32, to) for to in _ROUNDED),
    (F16, F16),
    *((F16, to) for to in (F32, I32, I16, DType.I8, DType.U8)),
    (DType.BF16, F32),
    (I32, F32),
    (I32, F16),
    (I32, I16),
    (I16, F32),
    (I16, F16),
    (I16, I32),
    (DType.I8, F16),
    (DType.I8, F32),
    (DType.I8, I32),
    (DType.U8, F16),
    (DType.U8, F32),
    (DType.U8, I32),
)

_MOVING = (
    _vector(
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
            *_SHAPE,
            _DST_STRIDE,
            stride("src_stride", "from row to row read; 0 repeats the row"),
            choice("rounding", "direction", "nearest_even", "floor", "ceil", "trunc", "nearest_away"),
        ),
        (_SRC, writes("dst", "cols * item1", "rows", "dst_stride")),
        _CASTS,
        type_names=("source", "destination"),
        beats="rows * ceil_div(cols, lanes(max(item0, item1)))",
    ),
    _vector(
        "v_broadcast",
        0xC1,
        "For every row r and column c: dst[r, c] = src[c] with form `row`, src[r] with form `column`; src is a "
        "vector, one element after the other.",
        (
            ub("dst", "first element of the first row written"),
            ub("src", "first element of the vector", align="item0"),
            *_SHAPE,
            _DST_STRIDE,
            choice("form", "what is repeated", "row", "column", default=None),
        ),
        (reads("src", "choose(form == 'row', cols, rows) * item0"), _DST),
        _ANY_TYPE,
        overlap=Overlap.DISJOINT,
    ),
    _vector(
        "v_duplicate",
        0xC2,
        "dst = value for every row and column.",
        (ub("dst", "first element of the first row written"), *_SHAPE, _DST_STRIDE, _VALUE),
        (_DST,),
        _ANY_TYPE,
        overlap=Overlap.FREE,
    ),
    _vector(
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
    _vector(
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
        (_SRC, writes("dst", "rows * item0", "cols", "dst_stride")),
        _ANY_TYPE,
        beats="ceil_div(rows, 16) * ceil_div(cols, 16) * ceil_div(256, lanes(item0))",
        overlap=Overlap.DISJOINT,
    ),
)

_OFFSETS = (
    "the offsets are u32, one after the other, in bytes, multiples of the element's size, below table_bytes (else "
    "an error); bytes of the table that no offset names are not touched"
)

_INDEXED = (
    _vector(
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
        _ANY_TYPE,
        beats="ceil_div(cols, vector.lanes_gather)",
        overlap=Overlap.DISJOINT,
    ),
    _vector(
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
        _ANY_TYPE,
        beats="ceil_div(cols, vector.lanes_gather)",
        overlap=Overlap.DISJOINT,
    ),
)

VECTOR_COMMANDS = (*_ARITHMETIC, *_TRANSCENDENTAL, *_SELECTING, *_REDUCING, *_MOVING, *_INDEXED)
