"""Which pointwise operators the accelerator's vector engine computes, and of which element types.

Model: one step of a program is an operator, the element type of its operand (of `where`: of what is selected) and the
type of its result: what the column `Traits.vector` of the operator table holds. Floats are computed in f32 and rounded
where they are stored. Exponents and counts of shifts must be known when compiling (`Traits.constant`; programs where
one is not say so among their operators). What is no step, the scalar units compute (`aicore.scalar`), and `why_not`
says why.

The code generator draws on the same table; a test lowers every step of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from superkernel.core.dtypes import DType
from superkernel.ops.opdef import VECTOR_COMPARABLE
from superkernel.ops.table import op_table, traits_of
from superkernel.registry.predicates import Facts, FactValue, Test, show

Step = tuple[str, DType, DType]
"""Operator, operand's type, result's type."""


def _steps() -> Iterator[Step]:
    for op, row in op_table().items():
        if row.traits is not None and not isinstance(row.traits.vector, str):
            for source, results in row.traits.vector.items():
                yield from ((op, source, result) for result in results)


STEPS: frozenset[Step] = frozenset(_steps())
VECTOR_OPS: frozenset[str] = frozenset(op for op, _, _ in STEPS)
"""Operators with at least one step."""


def why_not(op: str, dtype: DType) -> str:
    """Why the vector engine does not compute a pointwise operator on operands of an element type; empty where it
    does."""
    vector = traits_of(op).vector
    if isinstance(vector, str):
        return vector
    if dtype in vector:
        return ""
    if dtype in VECTOR_COMPARABLE:
        return f"no command computes it for {dtype}"
    return "elements of 8 bytes are moved only" if dtype.itemsize == 8 else f"no command knows {dtype}"


@dataclass(frozen=True, slots=True)
class Computable(Test):
    """A set of steps, each of which the vector engine computes."""

    passes_absent: ClassVar[bool] = True

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return value is None or value <= STEPS

    def required(self, facts: Facts) -> str:
        wrong = (facts.get("program.steps") or frozenset()) - STEPS
        words = frozenset(" ".join(map(str, step)) for step in wrong)
        return f"without {show(words)}" if words else "steps that the vector engine computes"
