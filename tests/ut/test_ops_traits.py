"""The traits of operators: no row without them, and what every target makes of each row is code or has a reason."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from operator_cases import cases

import superkernel
from superkernel.codegen.host.instructions import FORMULAS
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ops.opdef import Family, OpDef, Traits
from superkernel.ops.table import op_table, traits_of
from superkernel.reference import apply
from superkernel.registry.vector_ops import STEPS, why_not

POINTWISE = [name for name, row in op_table().items() if row.family is Family.POINTWISE]


def test_an_incomplete_row_names_what_it_lacks() -> None:
    row = op_table()["atan"]
    with pytest.raises(InternalError, match="incomplete") as caught:
        replace(row, traits=None, doc="")
    (violation,) = caught.value.violations
    assert (violation.location, violation.expected) == ("atan", "doc, traits")
    with pytest.raises(TypeError, match="weight"):
        Traits(vector={})  # type: ignore[call-arg]
    assert isinstance(replace(op_table()["matmul"], traits=None), OpDef)


def test_steps_of_programs_have_traits() -> None:
    assert traits_of("constant").weight == 0.0
    assert all(traits_of(name).weight >= 0.0 for name in POINTWISE)
    with pytest.raises(AssertionError, match="matmul"):
        traits_of("matmul")


def test_the_host_computes_every_pointwise_operator() -> None:
    assert set(POINTWISE) == set(FORMULAS)


@pytest.mark.parametrize("op", POINTWISE)
def test_the_vector_engine_computes_it_or_says_why_not(op: str) -> None:
    row = op_table()[op]
    for dtype in row.args[row.typed_by].dtypes:
        if any(step[:2] == (op, dtype) for step in STEPS):
            assert not why_not(op, dtype)
        else:
            assert len(why_not(op, dtype).split()) >= 4
    assert {source for name, source, _ in STEPS if name == op} <= row.args[row.typed_by].dtypes


def test_reasons_name_the_type_or_the_operator() -> None:
    assert "8 bytes" in why_not("add", DType.F64)
    assert "u32" in why_not("add", DType.U32)
    assert "i8" in why_not("add", DType.I8)
    assert "remainder" in why_not("mod", DType.F32)


@pytest.mark.parametrize("op", op_table())
def test_results_are_named(op: str) -> None:
    row = op_table()[op]
    counts = {len(apply(*case)) for case in cases(op)[:6]}
    assert row.has_several_results if row.results[-1].endswith("...") else counts == {len(row.results)}


@pytest.mark.parametrize("op", [n for n in POINTWISE if op_table()[n].commutative])
def test_commutative_operators_commute(op: str) -> None:
    for case in cases(op):
        (one,), (other,) = apply(*case), apply(op, case.inputs[::-1], case.attrs)
        assert one.tobytes() == other.tobytes(), str(case)


def test_foreign_names_are_distinct() -> None:
    for column in ("onnx", "torch"):
        named = [getattr(row, column) for row in op_table().values() if getattr(row, column)]
        assert len(named) == len(set(named)) > 20


def test_no_module_keeps_a_list_of_pointwise_operators() -> None:
    """Tables of code and patterns name operators; a trait as a collection of names would be told in two places."""
    root = Path(superkernel.__file__).parent
    folders = [
        root / "registry",
        root / "transforms",
        root / "compilation",
        root / "builder",
        root.parent / "scheduler",
    ]
    patterns = {"rotary.py"}  # the operators that angles are made with
    found = []
    for path in (p for folder in folders for p in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Set, ast.Tuple, ast.List)) and path.name not in patterns:
                names = {n.value for n in node.elts if isinstance(n, ast.Constant)} & set(POINTWISE)
                if len(names) > 4:
                    found.append(f"{path.relative_to(root.parent)}:{node.lineno} {sorted(names)}")  # type: ignore[type-var]
    assert not found, "\n".join(found)
