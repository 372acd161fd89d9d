"""Copies of matrices into scratch as words of two neighbours along the depth, 16 bits each: f32 rounded, bf16 as it is.

Invariant: nothing beyond the last row or column is read.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.host.arithmetic import Arithmetic
from superkernel.codegen.host.builder import I16, I32, Index, vector_type
from superkernel.codegen.host.shuffle import permute, resize, transpose
from superkernel.core.dtypes import DType

_PAIR = 2


def copy_words_transposed(
    arithmetic: Arithmetic,
    source: ir.Value,
    dtype: DType,
    line: int,
    depth: int,
    columns: tuple[Index, Index],
    panel: ir.Value,
    width: int,
    lanes: int,
) -> None:
    """Columns [first, limit), at most `width` of them, of which c is depth-contiguous at source[c * line], as words
    [depth / 2][width]: squares of as many columns as words, transposed. Lanes beyond the last column repeat it."""
    kb, (start, limit) = arithmetic.kb, columns
    stop = kb.minimum(kb.sub(limit, start), width)
    with kb.loop(0, stop, lanes, name="group") as group:
        first, last = kb.add(start, group), kb.sub(limit, 1)
        rows = [kb.mul(kb.minimum(kb.add(first, i), last), line) for i in range(lanes)]
        for word in range(0, -(-depth // _PAIR), lanes):
            count = min(_PAIR * lanes, depth - _PAIR * word)
            places = [kb.add(row, _PAIR * word) for row in rows]
            parts = [_words(arithmetic, _bits(arithmetic, source, at, dtype, count), lanes) for at in places]
            for i, value in enumerate(transpose(kb, parts)[: -(-count // _PAIR)]):
                kb.b.store(value, kb.at(panel, kb.add((word + i) * width, group), DType.F32), align=4)


def _bits(arithmetic: Arithmetic, source: ir.Value, at: Index, dtype: DType, count: int) -> ir.Value:
    """So many elements as 16 bits each."""
    kb = arithmetic.kb
    if dtype is DType.BF16:
        return kb.load_raw(source, at, dtype, count)
    return arithmetic.bits(kb.load(source, at, dtype, count))


def _words(arithmetic: Arithmetic, bits: ir.Value, lanes: int) -> ir.Value:
    """Neighbours as a whole vector of words, zeros behind."""
    kb = arithmetic.kb
    have, whole = bits.type.count if isinstance(bits.type, ir.VectorType) else 1, _PAIR * lanes
    if have < whole:
        nothing = ir.Constant(ir.VectorType(I16, whole), None)
        bits = permute(kb, resize(kb, bits, whole), nothing, [i if i < have else whole for i in range(whole)])
    return kb.b.bitcast(bits, ir.VectorType(I32, lanes))


def copy_row_pairs(
    arithmetic: Arithmetic,
    source: ir.Value,
    dtype: DType,
    line: int,
    columns: int,
    count: Index,
    panel: ir.Value,
    pitch: int,
    lanes: int,
) -> None:
    """`count` rows, `line` elements apart, two and two as words [count / 2][pitch]; the partner of a last row without
    one is 0."""
    kb = arithmetic.kb

    def pair(index: Index, alone: bool) -> None:
        early = kb.mul(index, _PAIR * line)
        for column in range(0, columns, lanes):
            width = min(lanes, columns - column)
            kind = vector_type(I32, width)
            word = kb.b.zext(_bits(arithmetic, source, kb.add(early, column), dtype, width), kind)
            if not alone:
                late = _bits(arithmetic, source, kb.add(kb.add(early, line), column), dtype, width)
                word = kb.b.or_(word, kb.b.shl(kb.b.zext(late, kind), kb.const(16, DType.I32, width)))
            to = kb.at(panel, kb.add(kb.mul(index, pitch), column), DType.F32)
            kb.b.store(resize(kb, word, lanes), to, align=4)

    with kb.loop(0, kb.div(count, _PAIR), name="pair") as index:
        pair(index, alone=False)
    with kb.when(kb.compare("==", kb.rem(count, _PAIR), 1)):
        pair(kb.div(count, _PAIR), alone=True)
