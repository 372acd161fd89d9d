"""Every row that the registry has for the accelerator has a body in unit tests: the registry chooses that very row for
it, and the cheapest tiling that its family offers passes `aicore_check`. What else is offered is for the families' own
tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aicore_check import check_aicore
from aicore_kernels import CASES, cases, covered_ids, graph_of, inputs_of, known_ids, precision_of
from grouped_on import chooser_on, grouped_on
from numpy.typing import NDArray

from superkernel.backends.fallback import compute
from superkernel.compilation.choice import KernelChooser
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, Role, SubOperator
from superkernel.ir.graph import Graph
from superkernel.scheduler.families.aicore import AICORE_KERNELS, family_of
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.grouped import grouped_cut
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.schedule import Space
from superkernel.target.aicore import load_target
from superkernel.transforms import simplify
from superkernel.transforms.precision import lower_precision
from superkernel.transforms.tilings import SinkTilings

Array = NDArray[Any]
MINI = load_target("mini")
TOLERANCES = {"f32": 1e-3, "f16": 6e-3, "bf16": 4e-2}


def grouped(graph: Graph, precision: Any) -> tuple[Grouping, KernelChooser]:
    """The compilation as far as its sub-operators."""
    chooser = chooser_on(MINI, AICORE_KERNELS, precision=precision)
    graph = simplify(graph, MINI.computes_integers, MINI.signed_integers)
    if precision != "f32":
        graph = lower_precision(graph, DType[precision.upper()], narrow_states=True)
        graph = simplify(graph, MINI.computes_integers, MINI.signed_integers)
    graph = SinkTilings(lambda x, w: grouped_cut(x, w, MINI), int(MINI.device.groups)).apply(graph)
    return grouped_on(graph, MINI, AICORE_KERNELS, choose=chooser.choose, precision=precision), chooser


def runs(graph: Graph, grouping: Grouping) -> list[tuple[SubOperator, list[Array], list[Array]]]:
    """Each sub-operator with its operands ahead of it and behind it, by the NumPy reference."""
    given = inputs_of(graph.inputs)
    slots = list(given.values())
    memory: dict[str, Array] = dict(grouping.constants)
    found = []
    for sub in grouping.subops:
        for name, operand in zip(sub.values, sub.body.operands, strict=True):
            if name in memory:
                continue
            home = grouping.buffers[name].address
            assert grouping.buffers[name].inside is None, name
            is_input = home is not None and home.space is Space.INPUT and operand.role is not Role.OUTPUT
            start = slots[home.slot] if is_input and home is not None else np.zeros(operand.type.shape)
            memory[name] = np.ascontiguousarray(start, operand.type.dtype.numpy)
        before = [memory[name].copy() for name in sub.values]
        after = [array.copy() for array in before]
        flat = [array.reshape(-1) for array in after]
        compute(sub.body, flat, sub.name)
        memory.update(zip(sub.values, after, strict=True))
        found.append((sub, before, after))
    return found


def written(body: Body) -> list[int]:
    return [k for k, operand in enumerate(body.operands) if operand.role in (Role.OUTPUT, Role.INOUT)]


def cheapest(sub: SubOperator) -> AicoreTiling:
    offered: list[Any] = list(family_of(sub.kernel).tilings(sub.kernel, sub.body, MINI))
    return min(offered, key=lambda t: t.cost_cycles(sub.body, 0, t.units, MINI))


@pytest.mark.parametrize(("name", "dtype", "number"), [case for case in cases() if case[2] == 0])
def test_a_row_has_a_body_that_it_computes(name: str, dtype: str, number: int) -> None:
    graph = graph_of(name, dtype, number)
    grouping, chooser = grouped(graph, precision_of(dtype))
    row = f"aicore.{name}/{dtype}"
    row = row if row in known_ids() else f"aicore.{name}"
    mine = [r for r in runs(graph, grouping) if chooser.select(r[0].body).row.id == row]
    assert mine, f"{row} is not chosen"
    for sub, before, after in mine:
        expected = {k: after[k] for k in written(sub.body)}
        tiling, tol = cheapest(sub), TOLERANCES.get(dtype, 0.0)
        check_aicore(sub.kernel, sub.body, before, expected, tiling=tiling, tol=tol, splits=1)


def test_no_row_is_left_out() -> None:
    assert known_ids() == covered_ids()
    assert {row.split("/")[0] for row in known_ids()} == {f"aicore.{name}" for name in CASES}
