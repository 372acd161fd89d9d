"""Memory: what lives at the same time never shares bytes; what does not, does."""

from __future__ import annotations

import numpy as np
import pytest
from random_graphs import GraphMaker, LenientFamily, random_graph

from superkernel.body import Role
from superkernel.graph import Graph
from superkernel.scheduler.group import Grouping, group
from superkernel.scheduler.hostcall import HostCallTiling
from superkernel.scheduler.memory import ALIGN_BYTES, MemoryPlan, plan_memory, walks_alike
from superkernel.scheduler.place import lineage
from superkernel.scheduler.schedule import Space


def planned(graph: Graph, *, fuse: bool = True) -> tuple[Grouping, MemoryPlan]:
    from superkernel.options import Options

    family = LenientFamily(True)
    grouping = group(graph, options=Options(fuse=fuse), families=lambda _: family)
    tilings = [HostCallTiling()] * len(grouping.subops)
    return grouping, plan_memory(grouping.subops, tilings, grouping.buffers, grouping.constants)


def arena_rows(grouping: Grouping, plan: MemoryPlan) -> dict[str, list[tuple[int, int]]]:
    """Arena buffer -> (position, start of the buffer) of every use of it or of a part of it."""
    uses: dict[str, list[tuple[int, int]]] = {}
    for at, (sub, places) in enumerate(zip(grouping.subops, plan.places, strict=True)):
        for i, place in enumerate(places):
            if place.space is Space.ARENA:
                *_, (name, _, offset) = lineage(grouping.buffers, sub.values[i])
                uses.setdefault(name, []).append((at, place.offset - offset))
    return uses


@pytest.mark.parametrize("fuse", [True, False])
def test_live_buffers_share_no_byte_except_in_place(fuse: bool) -> None:
    reused = in_place = 0
    for seed in range(40):
        grouping, plan = planned(random_graph(seed, 30), fuse=fuse)
        uses = arena_rows(grouping, plan)
        spans = {}
        for name, rows in uses.items():
            start = rows[0][1]
            assert {s for _, s in rows} == {start}
            assert start % ALIGN_BYTES == 0
            spans[name] = (start, start + grouping.buffers[name].type.nbytes, rows[0][0], rows[-1][0])
            assert spans[name][1] <= plan.arena_bytes
        for a, (start_a, stop_a, first_a, last_a) in spans.items():
            for b, (start_b, stop_b, first_b, last_b) in spans.items():
                if a >= b or start_a >= stop_b or start_b >= stop_a:
                    continue
                reused += 1
                if first_a <= last_b and first_b <= last_a:  # alive together: only where one takes the other's place
                    early, late = (a, b) if first_a < first_b else (b, a)
                    assert spans[early][3] == spans[late][2]
                    sub = grouping.subops[spans[late][2]]
                    assert sub.body.op is None
                    assert walks_alike(sub, sub.values.index(early), sub.values.index(late))
                    in_place += 1
    assert reused > 0
    assert in_place > 0


def test_a_chain_needs_two_buffers_at_most() -> None:
    g = GraphMaker()
    h = g.input("x", 64, 64)
    for _ in range(10):
        h = g.op("softmax", h, axis=-1)
    _, plan = planned(g.graph(h))
    assert plan.arena_bytes == 2 * 64 * 64 * 4
    assert plan.requested_bytes == 9 * 64 * 64 * 4


def test_pointwise_chains_without_fusion_run_in_place() -> None:
    g = GraphMaker()
    h = g.input("x", 64, 64)
    for _ in range(10):
        h = g.op("tanh", h)
    _, plan = planned(g.graph(h), fuse=False)
    assert plan.arena_bytes == 64 * 64 * 4


def test_a_transposing_copy_is_never_in_place() -> None:
    g = GraphMaker()
    a = g.op("softmax", g.input("x", 8, 8), axis=-1)
    grouping, plan = planned(g.graph(g.op("neg", g.op("transpose", a, perm=(1, 0)))), fuse=False)
    starts = {start for rows in arena_rows(grouping, plan).values() for _, start in rows}
    copy = next(s for s in grouping.subops if s.body.op is None)
    assert not walks_alike(copy, 0, 1)
    assert len(starts) == 2


def test_equal_constants_are_stored_once() -> None:
    g = GraphMaker()
    x = g.input("x", 4, 8)
    row = np.arange(8, dtype=np.float32)
    a = g.op("softmax", g.op("add", x, g.constant(row)), axis=-1)
    b = g.op("softmax", g.op("add", a, g.constant(row.copy())), axis=-1)
    c = g.op("add", b, g.constant(row + 1))
    _, plan = planned(g.graph(c))
    assert len(plan.constants) == 2
    assert all(slot.offset % ALIGN_BYTES == 0 for slot in plan.constants)


def test_outputs_and_states_have_their_own_spaces() -> None:
    grouping, plan = planned(random_graph(5, 40))
    written = {
        (place.space, place.slot)
        for sub, places in zip(grouping.subops, plan.places, strict=True)
        for operand, place in zip(sub.body.operands, places, strict=True)
        if operand.role in (Role.OUTPUT, Role.INOUT)
    }
    assert not {Space.INPUT, Space.CONSTANT} & {space for space, _ in written}
    assert any(space is Space.OUTPUT for space, _ in written)
