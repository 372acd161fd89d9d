"""Memory: what lives at the same time never shares bytes; what does not, does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from grouped_on import host_group
from random_graphs import GraphMaker, LenientFamily, random_graph
from seeds import seeds

from superkernel.core.errors import VerificationError
from superkernel.ir.body import Role
from superkernel.ir.graph import Graph
from superkernel.scheduler import memory
from superkernel.scheduler.grouping import Grouping, view_chain
from superkernel.scheduler.hostcall import HostCallTiling
from superkernel.scheduler.memory import ALIGN_BYTES, BufferUse, MemoryPlan, plan_memory, walks_alike
from superkernel.scheduler.memory_check import check_memory
from superkernel.scheduler.schedule import MemoryAddress, Space


def planned(graph: Graph, *, fuse: bool = True) -> tuple[Grouping, MemoryPlan]:

    family = LenientFamily(True)
    grouping = host_group(graph, family, fuse=fuse)
    tilings = [HostCallTiling()] * len(grouping.subops)
    return grouping, plan_memory(grouping.subops, tilings, grouping.buffers, grouping.constants)


def arena_rows(grouping: Grouping, plan: MemoryPlan) -> dict[str, list[tuple[int, int]]]:
    """Arena buffer -> (position, start of the buffer) of every use of it or of a part of it."""
    uses: dict[str, list[tuple[int, int]]] = {}
    for at, (sub, addresses) in enumerate(zip(grouping.subops, plan.addresses, strict=True)):
        for i, address in enumerate(addresses):
            if address.space is Space.ARENA:
                *_, (name, _, offset) = view_chain(grouping.buffers, sub.values[i])
                uses.setdefault(name, []).append((at, address.offset - offset))
    return uses


@pytest.mark.parametrize("fuse", [True, False])
def test_live_buffers_share_no_byte_except_in_place(fuse: bool) -> None:
    reused = in_place = 0
    for seed in seeds(40):
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


def moved_onto(grouping: Grouping, plan: MemoryPlan, victim: str, start: int) -> list[list[MemoryAddress]]:
    """The plan's addresses with one buffer, and the parts of it, moved to another address."""
    shift = start - arena_rows(grouping, plan)[victim][0][1]
    return [
        [
            replace(p, offset=p.offset + shift) if [*view_chain(grouping.buffers, v)][-1][0] == victim else p
            for v, p in zip(sub.values, row, strict=True)
        ]
        for sub, row in zip(grouping.subops, plan.addresses, strict=True)
    ]


def is_rejected(grouping: Grouping, addresses: list[list[MemoryAddress]]) -> bool:
    try:
        check_memory(grouping.subops, addresses, grouping.buffers)
    except VerificationError:
        return True
    return False


def test_the_memory_check_accepts_plans_and_rejects_two_live_buffers_at_one_address() -> None:
    tried = 0
    for seed in seeds(25):
        grouping, plan = planned(random_graph(seed, 30))
        check_memory(grouping.subops, plan.addresses, grouping.buffers)
        uses = arena_rows(grouping, plan)
        writes = [
            v
            for sub in grouping.subops
            for v, o in zip(sub.values, sub.body.operands, strict=True)
            if o.role is Role.OUTPUT
        ]
        wholes = {b.inside[0] for b in grouping.buffers.values() if b.inside} | {
            v for v in writes if writes.count(v) > 1
        }
        for late, late_uses in uses.items():
            for early, early_uses in uses.items():
                if early in wholes:  # not written at once: what comes later may lie where nothing is yet
                    continue
                reads = [at for at, _ in early_uses if at > late_uses[0][0]]
                if early_uses[0][0] < late_uses[0][0] and reads:
                    tried += 1
                    assert is_rejected(grouping, moved_onto(grouping, plan, late, early_uses[0][1]))
    assert tried > 50


def test_a_reused_buffer_that_is_still_needed_is_named() -> None:
    g = GraphMaker()
    x = g.input("x", 4, 16)
    a = g.op("softmax", x, axis=-1)
    b = g.op("softmax", a, axis=-1)
    grouping, plan = planned(g.graph(g.op("add", g.op("softmax", b, axis=-1), a)), fuse=False)
    check_memory(grouping.subops, plan.addresses, grouping.buffers)
    flat = [[replace(p, offset=0) if p.space is Space.ARENA else p for p in row] for row in plan.addresses]
    with pytest.raises(VerificationError, match=r"operand 'v0'.*hold 'v"):
        check_memory(grouping.subops, flat, grouping.buffers)


def test_a_part_that_is_read_elsewhere_in_its_buffer_is_refused() -> None:
    g = GraphMaker()
    x = g.op("softmax", g.input("x", 8, 16), axis=-1)
    rows = [g.op("slice", x, starts=(i,), ends=(i + 1,), axes=(0,), steps=(1,)) for i in (2, 5)]
    grouping, plan = planned(g.graph(*(g.op("softmax", row, axis=-1) for row in rows)))
    assert grouping.subops[1].body is grouping.subops[2].body, "rows of one kernel"
    starts = [plan.addresses[i][0].offset - plan.addresses[0][1].offset for i in (1, 2)]
    assert starts == [2 * 16 * 4, 5 * 16 * 4]
    check_memory(grouping.subops, plan.addresses, grouping.buffers)
    for early in (0, 1):
        moved = [list(row) for row in plan.addresses]
        moved[2][0] = moved[early][1 - early]
        with pytest.raises(VerificationError, match="a buffer lies at two places"):
            check_memory(grouping.subops, moved, grouping.buffers)


def test_outputs_and_states_have_their_own_spaces() -> None:
    grouping, plan = planned(random_graph(5, 40))
    written = {
        (address.space, address.slot)
        for sub, addresses in zip(grouping.subops, plan.addresses, strict=True)
        for operand, address in zip(sub.body.operands, addresses, strict=True)
        if operand.role in (Role.OUTPUT, Role.INOUT)
    }
    assert not {Space.INPUT, Space.CONSTANT} & {space for space, _ in written}
    assert any(space is Space.OUTPUT for space, _ in written)


@pytest.mark.parametrize("seed", seeds(8, past=(558584785,)))
def test_the_smallest_arena_decides_whether_it_is_laid_out_or_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the shortcut, and with rows of interference made one by one."""
    rng = np.random.default_rng(seed)
    grouping, _ = planned(random_graph(seed, 30), fuse=False)
    tilings = [HostCallTiling()] * len(grouping.subops)
    touched = {
        name: BufferUse(
            {int(core): int(rng.integers(30)) for core in range(2)},
            [int(rng.integers(-1, 30)) for _ in range(2)],
            ((0, 64, 0), (64, max(65, buffer.type.nbytes), 1)),
        )
        for name, buffer in grouping.buffers.items()
    }

    def plans() -> list[MemoryPlan]:
        parts = grouping.subops, tilings, grouping.buffers, grouping.constants, touched
        return [plan_memory(*parts, roomy_bytes=roomy) for roomy in (0, 1 << 10, 1 << 14, 1 << 20)]

    short = plans()
    monkeypatch.setattr(memory, "_TABLE_MOST", 0)
    assert plans() == short
    monkeypatch.setattr(memory._Places, "together", 0)
    assert plans() == short
    if seed < 8:  # other graphs may have hardly any values that could share a place
        assert len({plan.arena_bytes for plan in short}) > 1
