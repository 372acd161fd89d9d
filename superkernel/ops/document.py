"""Print docs/operators.md from the operator table: `python -m superkernel.ops.document > docs/operators.md`.

The page is never edited by hand; a test compares it with what this module prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from superkernel.core.dtypes import DType
from superkernel.ops.opdef import (
    ANY,
    BOOLS,
    FLOATS,
    INTS,
    MOVED,
    NUMERIC,
    REQUIRED,
    ArgDef,
    AttrDef,
    AttrKind,
    Family,
    OpDef,
)
from superkernel.ops.table import op_table

_INTRODUCTION = """# Operators

Generated from the operator table (`superkernel/ops`) by `python -m superkernel.ops.document`. Do not edit.

A node of a graph applies one of these operators. Inputs in brackets are optional; `...` repeats. Attributes without a
default are required. Shapes broadcast as in NumPy unless the row says otherwise, negative axes count from the end, and
extents of 0 are legal where NumPy gives them a meaning.

Element types: **float** is f64, f32, f16, bf16; **int** is i64, i32, i16, i8, u64, u32, u16, u8; **number** is both;
**any** adds bool. **Small** types are only moved and converted: floats of 8 bits and fewer (f8e4m3fn, f8e4m3fnuz,
f8e5m2, f8e5m2fnuz, f8e8m0fnu, f6e2m3fn, f6e3m2fn, f4e2m1fn) and integers of 4 and 2 (int4, uint4, int2, uint2), a byte
each, as arrays of `ml_dtypes`. Inputs of one operator have the same element type unless the row says otherwise.

What holds for all: floats round once per operator (f16 and bf16 values that fusion keeps in registers later); integer
arithmetic wraps; integer division and remainder by zero give 0; indices count from the end where negative and are
clamped into range, so no input can reach outside a tensor.
"""

_FAMILY_TITLES = {
    Family.POINTWISE: "Pointwise",
    Family.RESHAPE: "Reshape",
    Family.VIEW: "Views",
    Family.MOVE: "Moves",
    Family.REDUCE: "Reductions and scans",
    Family.ROWWISE: "Row-wise",
    Family.MATMUL: "Matrix products",
    Family.CONV: "Convolutions",
    Family.POOL: "Pools",
    Family.ATTENTION: "Attention",
    Family.UPDATE: "State updates",
    Family.OTHER: "Others",
}
_NAMED_SETS = (
    (MOVED, "any or small"),
    (ANY, "any"),
    (NUMERIC, "number"),
    (FLOATS, "float"),
    (INTS, "int"),
    (BOOLS, "bool"),
)


def _types(dtypes: frozenset[DType]) -> str:
    """The shortest text for a set of element types."""
    for members, name in _NAMED_SETS:
        if dtypes == members:
            return name
    parts: list[str] = []
    left = set(dtypes)
    for members, name in _NAMED_SETS:
        if members <= left:
            parts.append(name)
            left -= members
    return ", ".join(parts + [d.value for d in DType if d in left])


def _argument(arg: ArgDef) -> str:
    text = f"{arg.name}: {_types(arg.dtypes)}" + ("..." if arg.variadic else "")
    return f"[{text}]" if arg.optional else text


def _value(attr: AttrDef) -> str:
    """An attribute's default as text."""
    default = attr.default
    if isinstance(default, str):
        return f'"{default}"'
    if isinstance(default, tuple):
        return "[" + ", ".join(f"{v!r}" for v in default) + "]"
    return f"{default!r}" if default is None or attr.kind is not AttrKind.FLOAT else f"{default:.9g}"


def _attribute(attr: AttrDef) -> str:
    text = f"`{attr.name}`: {attr.kind.value}"
    if attr.default is not REQUIRED:
        text += f" = {_value(attr)}"
    if attr.choices:
        text += f" ({', '.join(attr.choices)})"
    return f"{text}, {attr.doc}" if attr.doc else text


def _rows(definition: OpDef) -> Iterator[str]:
    signature = ", ".join(_argument(a) for a in definition.args)
    yield f"### `{definition.name}({signature})`"
    yield ""
    yield definition.doc
    notes = [f"- {a.name}: {a.doc}" for a in definition.args if a.doc]
    notes += [f"- {_attribute(a)}" for a in definition.attrs]
    if notes:
        yield ""
        yield from notes
    yield ""


def document(definitions: Iterable[OpDef]) -> str:
    """The whole page."""
    rows = list(definitions)
    lines = [_INTRODUCTION]
    for family, title in _FAMILY_TITLES.items():
        members = [row for row in rows if row.family is family]
        if members:
            lines += [f"## {title}", ""]
            lines += [line for row in members for line in _rows(row)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(document(op_table().values()))
