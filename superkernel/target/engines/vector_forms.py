"""The forms of the vector engine's commands: matrices of rows x cols elements in UB.

Nearly all have the same shape: rows of cols elements, each operand with a row stride of its own (0 repeats a row), so
that tiles inside larger tiles and broadcasting need no copies.
"""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.target.engines.build import choice, count, element, reads, stride, ub, writes
from superkernel.target.engines.model import TYPE_CODES, CommandAccess, CommandOperand, CommandSpec, Engine, Overlap

F32, F16, I32, I16 = DType.F32, DType.F16, DType.I32, DType.I16
FLOATS = ((F32,), (F16,))
NUMBERS = ((F32,), (F16,), (I32,), (I16,))
INTS = ((I32,), (I16,))
ANY_TYPE = tuple((dtype,) for dtype in TYPE_CODES)

PLAIN_BEATS = "rows * ceil_div(cols, lanes(item0))"
SPECIAL_BEATS = "rows * ceil_div(cols, vector.lanes_special)"
SHAPE = (count("rows", "rows", default=1), count("cols", "elements per row"))
DST_STRIDE = stride("dst_stride", "from row to row written; at least a written row's bytes")
SRC = reads("src", "cols * item0", "rows", "src_stride")
DST = writes("dst", "cols * item0", "rows", "dst_stride")

VALUE = element("value", "the number, an element")
MAX_RULE = "NaN where one of them is NaN, else the larger; +0 is larger than -0"
MIN_RULE = "NaN where one of them is NaN, else the smaller; -0 is smaller than +0"


def vector_command(
    name: str,
    opcode: int,
    semantics: str,
    operands: tuple[CommandOperand, ...],
    accesses: tuple[CommandAccess, ...],
    types: tuple[tuple[DType, ...], ...],
    *,
    beats: str = PLAIN_BEATS,
    overlap: Overlap = Overlap.IN_PLACE,
    ulp: int = 0,
    type_names: tuple[str, ...] = ("element",),
) -> CommandSpec:
    """A row of the table for the vector engine, with what its commands have in common."""
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


def binary(
    name: str,
    opcode: int,
    formula: str,
    types: tuple[tuple[DType, ...], ...],
    beats: str = PLAIN_BEATS,
    also: bool = False,
) -> CommandSpec:
    """dst = f(a, b); b elementwise or one element per row. `also`: the destination is an operand too."""
    operands = (
        ub("dst", "first element of the first row written"),
        ub("a", "left operand"),
        choice("b_form", "b: an element per element, or one element per row", "matrix", "column"),
        ub("b", "right operand", align="choose(b_form == 'column', item0, memory.block_bytes)"),
        *SHAPE,
        DST_STRIDE,
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
    return vector_command(name, opcode, text, operands, (*accesses, DST), types, beats=beats)


def unary(
    name: str,
    opcode: int,
    formula: str,
    types: tuple[tuple[DType, ...], ...],
    *extra: CommandOperand,
    beats: str = PLAIN_BEATS,
    ulp: int = 0,
    also: bool = False,
) -> CommandSpec:
    """dst = f(src), perhaps with a number of the command's own."""
    operands = (
        ub("dst", "first element of the first row written"),
        ub("src", "operand"),
        *SHAPE,
        DST_STRIDE,
        stride("src_stride", "from row to row read; 0 repeats the row"),
        *extra,
    )
    read_dst = (reads("dst", "cols * item0", "rows", "dst_stride"),) if also else ()
    text = f"For every element x of src: {formula}."
    return vector_command(name, opcode, text, operands, (SRC, *read_dst, DST), types, beats=beats, ulp=ulp)
