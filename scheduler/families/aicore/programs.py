"""Which pointwise operators the vector engine computes, and of which element types: what the lowering accepts.

Model: the registry's table (`superkernel.registry.vector_ops`), and what the registry cannot offer because it depends
on more than types: constants, shifts by amounts that are known when compiling. Floats are computed in f32 and rounded
where they are stored; what is exact in f16 (copies, selection, maximum, comparison, ...) stays there.
"""

from __future__ import annotations

from collections.abc import Mapping

from superkernel.core.dtypes import DType
from superkernel.ops.opdef import VECTOR_COMPARABLE, VECTOR_INTS
from superkernel.registry.vector_ops import STEPS


def _supported() -> dict[str, frozenset[DType]]:
    found: dict[str, set[DType]] = {}
    for op, operand, _ in STEPS:
        found.setdefault(op, set()).add(operand)
    return {op: frozenset(dtypes) for op, dtypes in found.items()}


SUPPORTED: Mapping[str, frozenset[DType]] = {
    **_supported(),
    "constant": VECTOR_COMPARABLE,
    **dict.fromkeys(("shift_left", "shift_right"), VECTOR_INTS),
}
"""Element types of an operator's values (of `where`: of the selected ones; of `cast`: of the source; of `quantize` and
`dequantize`: of x). `pow` and the shifts want a constant right operand."""
