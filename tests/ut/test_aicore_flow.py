"""Scalar code of the control unit: what is known while emitting is folded, all else is one instruction each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from llvmlite import ir

from superkernel.codegen.aicore.scalar import I1, Flow, Number, Scalar


def flow() -> tuple[Flow, Scalar]:
    made = Flow(ir.Module(name="m"), "f", 1)
    return made, Scalar(made.b, made.function.args[0])


def emitted(made: Flow) -> list[str]:
    """Names of the instructions, without operands."""
    lines = [line.strip() for line in str(made.function).splitlines() if line.startswith("  ")]
    return [re.sub(r"^%\S+ = ", "", line).split()[0] for line in lines]


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda x: x + 0, "x"),
        (lambda x: 0 + x, "x"),
        (lambda x: x + 1, "add"),
        (lambda x: x - 0, "x"),
        (lambda x: x - 1, "sub"),
        (lambda x: 0 - x, "sub"),
        (lambda x: x * 0, 0),
        (lambda x: x * 1, "x"),
        (lambda x: 1 * x, "x"),
        (lambda x: x * 2, "mul"),
        (lambda x: x // 1, "x"),
        (lambda x: x // 2, "udiv"),
        (lambda x: x % 1, 0),
        (lambda x: x % 2, "urem"),
        (lambda x: x << 0, "x"),
        (lambda x: x << 1, "shl"),
        (lambda x: x >> 0, "x"),
        (lambda x: x >> 1, "lshr"),
        (lambda x: x & 1, "and"),
        (lambda x: x | 0, "x"),
        (lambda x: x | 1, "or"),
        (lambda x: x + x, "add"),
    ],
)
def test_neutral_numbers_emit_nothing(compute: Callable[[Any], Number], expected: object) -> None:
    made, x = flow()
    found = compute(x)
    if isinstance(expected, int):
        assert found == expected
    else:
        assert (found is x) is (expected == "x")
    assert emitted(made) == ([] if expected in ("x", 0) else [expected])


@pytest.mark.parametrize(
    ("begin", "end", "step", "trips"),
    [(0, 1, 1, 1), (3, 8, 5, 1), (3, 9, 5, 2), (3, 4, 5, 1), (3, 3, 5, 0), (4, 3, 5, 0), (0, 2, 1, 2)],
)
def test_a_single_trip_is_no_loop(begin: int, end: int, step: int, trips: int) -> None:
    made, _ = flow()
    with made.loop(begin, end, step) as index:
        assert (index == begin) is (trips == 1)
    assert made.nodes == (trips != 1)
    assert emitted(made).count("phi") == (trips != 1)


def test_a_loop_from_or_to_what_is_not_known_is_one() -> None:
    for bounds in ((0, None), (None, 4)):
        made, x = flow()
        begin, end = (x if bound is None else bound for bound in bounds)
        with made.loop(begin, end, 8) as index:
            assert isinstance(index, Scalar)
        assert emitted(made) == ["br", "phi", "icmp", "br", "add", "br"]


def test_conditions_that_are_known() -> None:
    made, x = flow()
    with made.when(True):
        pass
    assert made.nodes == 0
    with made.when(False):
        pass
    assert made.nodes == 1
    with made.when(ir.Constant(I1, 1)):
        pass
    assert made.nodes == 2
    assert made.select(True, 1, x) == 1
    assert made.select(False, 1, x) is x
    assert (made.minimum(2, 3), made.minimum(3, 2), made.maximum(2, 3), made.maximum(3, 2)) == (2, 2, 3, 3)


RELATIONS = {"<": "slt", "<=": "sle", ">": "sgt", ">=": "sge", "==": "eq", "!=": "ne"}


@pytest.mark.parametrize("relation", RELATIONS)
def test_comparisons(relation: str) -> None:
    made, x = flow()
    for a, b in ((1, 2), (2, 1), (2, 2)):
        assert made.compare(relation, a, b) is eval(f"{a} {relation} {b}")
    unknown: list[tuple[Number, Number]] = [(x, 1), (1, x), (x, x)]
    for left, right in unknown:
        found = made.compare(relation, left, right)
        assert isinstance(found, ir.Instruction)
        assert found.op == RELATIONS[relation]
    assert emitted(made) == ["icmp"] * 3


def test_the_smaller_and_the_larger_of_what_is_not_known() -> None:
    made, x = flow()
    made.minimum(x, 3)
    made.maximum(3, x)
    assert emitted(made) == ["icmp", "select", "icmp", "select"]
    text = str(made.function)
    assert "icmp slt" in text
    assert "icmp sgt" in text
