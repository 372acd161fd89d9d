"""Commands of the vector engine that compute element by element: arithmetic, functions, comparison, selection."""

from __future__ import annotations

from superkernel.target.engines.build import choice, number, reads, stride, ub, writes
from superkernel.target.engines.model import Overlap
from superkernel.target.engines.vector_forms import (
    ANY_TYPE,
    DST,
    DST_STRIDE,
    FLOATS,
    INTS,
    MAX_RULE,
    MIN_RULE,
    NUMBERS,
    SHAPE,
    SPECIAL_BEATS,
    SRC,
    VALUE,
    binary,
    unary,
    vector_command,
)

_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")

_SHIFT = number("shift", "places, below the element's width", bits=5)

_ARITHMETIC = (
    binary("v_add", 0x80, "dst = a + b", NUMBERS),
    binary("v_sub", 0x81, "dst = a - b", NUMBERS),
    binary("v_mul", 0x82, "dst = a * b", NUMBERS),
    binary("v_div", 0x83, "dst = a / b", FLOATS, beats=SPECIAL_BEATS),
    binary("v_max", 0x84, f"dst = max(a, b): {MAX_RULE}", NUMBERS),
    binary("v_min", 0x85, f"dst = min(a, b): {MIN_RULE}", NUMBERS),
    binary("v_fma", 0x86, "dst = a * b + dst, in f32 one fused operation with one rounding", FLOATS, also=True),
    binary("v_and", 0x87, "dst = bitwise and", INTS),
    binary("v_or", 0x88, "dst = bitwise or", INTS),
    binary("v_xor", 0x89, "dst = bitwise exclusive or", INTS),
    unary("v_adds", 0x90, "dst = x + value", NUMBERS, VALUE),
    unary("v_muls", 0x91, "dst = x * value", NUMBERS, VALUE),
    unary("v_maxs", 0x92, f"dst = max(x, value): {MAX_RULE}", NUMBERS, VALUE),
    unary("v_mins", 0x93, f"dst = min(x, value): {MIN_RULE}", NUMBERS, VALUE),
    unary("v_rsubs", 0x94, "dst = value - x", NUMBERS, VALUE),
    unary(
        "v_axpy",
        0x95,
        "dst = x * value + dst, in f32 one fused operation with one rounding",
        FLOATS,
        VALUE,
        also=True,
    ),
    unary("v_leaky", 0x96, "dst = x where x > 0, else x * value", FLOATS, VALUE),
    unary("v_shl", 0x97, "dst = x shifted left, zeros from the right", INTS, _SHIFT),
    unary("v_shr", 0x98, "dst = x shifted right, copies of the sign from the left", INTS, _SHIFT),
    unary(
        "v_abs",
        0xA0,
        "dst = the absolute value; floats: the sign bit cleared, of NaN too; the least integer stays",
        NUMBERS,
    ),
    unary("v_neg", 0xA1, "dst = -x; floats: the sign bit inverted, of NaN too; the least integer stays", NUMBERS),
    unary("v_relu", 0xA2, "dst = x where x > 0, NaN where x is NaN, else +0", NUMBERS),
    unary("v_not", 0xA3, "dst = every bit inverted", INTS),
    unary("v_copy", 0xA4, "dst = x, bit by bit", ANY_TYPE),
)

_TRANSCENDENTAL = (
    unary("v_exp", 0xA8, "dst = e^x; exp of +-0 is 1, of -inf +0, of +inf +inf", FLOATS, beats=SPECIAL_BEATS, ulp=1),
    unary(
        "v_ln",
        0xA9,
        "dst = natural logarithm; ln of 1 is +0, of +-0 -inf, of +inf +inf, of less than 0 NaN",
        FLOATS,
        beats=SPECIAL_BEATS,
        ulp=1,
    ),
    unary("v_sqrt", 0xAA, "dst = square root; of -0 it is -0, of less than 0 NaN", FLOATS, beats=SPECIAL_BEATS),
    unary(
        "v_rsqrt",
        0xAB,
        "dst = 1 / sqrt(x), in f32 two operations, square root and division, each rounded",
        FLOATS,
        beats=SPECIAL_BEATS,
    ),
    unary("v_reciprocal", 0xAC, "dst = 1 / x", FLOATS, beats=SPECIAL_BEATS),
)

_PREDICATE = choice("predicate", "the relation", *_PREDICATES, default=None)
_MASK = (
    "1 where the relation holds, else 0, a byte per element; with NaN only `ne` holds; -0 equals +0; integers are "
    "signed"
)
_BYTES_OUT = writes("dst", "cols", "rows", "dst_stride")

_SELECTING = (
    vector_command(
        "v_cmp",
        0xB0,
        f"For every row and column: dst = {_MASK}. a is on the left of the relation.",
        (
            ub("dst", "first byte of the mask"),
            ub("a", "left operand"),
            ub("b", "right operand"),
            *SHAPE,
            DST_STRIDE,
            stride("a_stride", "from row to row of a; 0 repeats the row"),
            stride("b_stride", "from row to row of b; 0 repeats the row"),
            _PREDICATE,
        ),
        (reads("a", "cols * item0", "rows", "a_stride"), reads("b", "cols * item0", "rows", "b_stride"), _BYTES_OUT),
        NUMBERS,
        overlap=Overlap.DISJOINT,
    ),
    vector_command(
        "v_cmps",
        0xB1,
        f"For every element x of src: dst = {_MASK}. x is on the left of the relation, value on the right.",
        (
            ub("dst", "first byte of the mask"),
            ub("src", "left operand"),
            *SHAPE,
            DST_STRIDE,
            stride("src_stride", "from row to row read; 0 repeats the row"),
            _PREDICATE,
            VALUE,
        ),
        (SRC, _BYTES_OUT),
        NUMBERS,
        overlap=Overlap.DISJOINT,
    ),
    vector_command(
        "v_select",
        0xB2,
        "For every row and column: dst = a where the mask's byte is not 0, else b, bit by bit.",
        (
            ub("dst", "first element of the first row written"),
            ub("a", "taken where the mask is set"),
            ub("b", "taken where it is not"),
            ub("mask", "a byte per element"),
            *SHAPE,
            DST_STRIDE,
            stride("a_stride", "from row to row of a; 0 repeats the row"),
            stride("b_stride", "from row to row of b; 0 repeats the row"),
            stride("mask_stride", "from row to row of the mask; 0 repeats the row"),
        ),
        (
            reads("a", "cols * item0", "rows", "a_stride"),
            reads("b", "cols * item0", "rows", "b_stride"),
            reads("mask", "cols", "rows", "mask_stride"),
            DST,
        ),
        ANY_TYPE,
    ),
    vector_command(
        "v_selects",
        0xB3,
        "For every row and column: dst = src where the mask's byte is not 0, else value, bit by bit.",
        (
            ub("dst", "first element of the first row written"),
            ub("src", "taken where the mask is set"),
            ub("mask", "a byte per element"),
            *SHAPE,
            DST_STRIDE,
            stride("src_stride", "from row to row read; 0 repeats the row"),
            stride("mask_stride", "from row to row of the mask; 0 repeats the row"),
            VALUE,
        ),
        (SRC, reads("mask", "cols", "rows", "mask_stride"), DST),
        ANY_TYPE,
    ),
)
VECTOR_COMMANDS = (*_ARITHMETIC, *_TRANSCENDENTAL, *_SELECTING)
