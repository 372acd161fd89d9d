"""The operator table: every `OpDef`, by name. One module per group of operators adds its rows."""

from __future__ import annotations

import difflib
from functools import cache

from superkernel.ops.opdef import OpDef, Traits

_CONSTANT = Traits(weight=0.0, vector={})


@cache
def op_table() -> dict[str, OpDef]:
    """name -> OpDef for every operator, in a fixed order."""
    from superkernel.ops import (
        attention,
        blocks,
        conv,
        counting,
        grouped,
        matmul,
        movement,
        pointwise,
        pool,
        ragged,
        reduce,
        rowwise,
        update,
    )

    modules = (
        pointwise, movement, reduce, rowwise, matmul, blocks, conv, pool, attention, update, grouped, ragged, counting,
    )  # fmt: skip
    rows = [row for module in modules for row in module.OPS]
    table = {row.name: row for row in rows}
    assert len(table) == len(rows), "two operators share a name"
    return table


def find_op(name: str) -> OpDef | None:
    """The operator's row, or None."""
    return op_table().get(name)


@cache
def traits_of(op: str) -> Traits:
    """Of a step of a pointwise program: an operator, or "constant"."""
    traits = _CONSTANT if op == "constant" else op_table()[op].traits
    assert traits is not None, op
    return traits


def suggest_ops(name: str) -> list[str]:
    """Operators whose names are close to a mistyped one, closest first."""
    lower = {key.replace("_", ""): key for key in op_table()}
    return [lower[k] for k in difflib.get_close_matches(name.lower().replace("_", ""), lower, n=3, cutoff=0.6)]
