"""Which sub-operators may have fewer cores than they have units for, so that others stand beside them."""

from __future__ import annotations

import models
import pytest
from plan_cases import planned_graph

import superkernel as sk
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.scheduler.aicore.cores import Cores
from superkernel.scheduler.aicore.streams import _StreamState
from superkernel.target.aicore import load_target


def mixed() -> Graph:
    """A reduction whose cores meet inside, nothing to copy, and what NumPy computes."""
    b = sk.GraphBuilder("mixed")
    x, nothing = b.input("x", (617, 211)), b.input("nothing", (0, 7))
    b.output(b.softmax(x, axis=1) * b.reduce_sum(x, axes=[0, 1]), "y")
    b.output(b.exp(nothing), "z")
    b.output(b.exp(b.cast(x, dtype="f64")), "w")
    return b.graph()


@pytest.mark.parametrize(
    ("graph", "kept"),
    [
        (models.moe_layer(), {"TableTiling", "GroupedTiling"}),
        (mixed(), {"BarrierReduceTiling", "HostCallTiling", "PointwiseTiling of nothing"}),
    ],
    ids=["experts", "mixed"],
)
def test_all_but_those_that_others_cannot_stand_beside(graph: Graph, kept: set[str]) -> None:
    made = planned_graph(graph, "mini", Options(fallback="allow"))
    of_name = {sub.name: tiling for sub, tiling in zip(made.schedule.subops, made.schedule.tilings, strict=True)}
    tilings, target = [of_name[sub.name] for sub in made.grouping.subops], load_target("mini")
    state = _StreamState(made.grouping, tilings, target, Cores(target))
    names = [type(tiling).__name__ + " of nothing" * (not tiling.units) for tiling in tilings]
    assert {name for name, movable in zip(names, state.movable, strict=True) if not movable} == kept
    assert not {name for name, movable in zip(names, state.movable, strict=True) if movable} & kept
    assert {"RowsTiling", "PointwiseTiling"} <= {*names}
