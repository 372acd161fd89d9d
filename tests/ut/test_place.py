"""Placement: legal orders, full coverage of units, sensible choices of cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from grouped_on import host_group
from interpret import interpret_schedule
from random_graphs import GraphMaker, LenientFamily, random_graph, random_inputs

from superkernel.builder import GraphBuilder
from superkernel.core.options import Options
from superkernel.core.tensor import Region
from superkernel.ir.body import Body, Role
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.scheduler import place as place_module
from superkernel.scheduler.dependences import dependences
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.kernel import HostTiling
from superkernel.scheduler.place import place, predicted_ns
from superkernel.scheduler.schedule import Schedule, Space, parse_tasks
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import verify
from superkernel.target.cpu import CpuTarget, cpu_target, profiled

TARGET = cpu_target("x86_64-unknown-linux-gnu", "avx2", ())


@dataclass(frozen=True)
class RowTiling(HostTiling):
    """Rows of the output; reads the same share of equally large inputs and the whole of the others."""

    rows: int
    ns_per_row: float

    @property
    def units(self) -> int:
        return self.rows

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = []
        for i, operand in enumerate(body.operands):
            size = operand.type.nbytes
            row = size // self.rows
            own = operand.role is not Role.INPUT or size == body.operands[-1].type.nbytes
            if operand.role is Role.CONSTANT or not own or (body.op is not None and operand.role is Role.INPUT):
                found.append(Access(i, False, (Region(0, size),)))
            else:
                found.append(Access(i, operand.role is Role.OUTPUT, (Region(begin * row, (end - begin) * row),)))
        return tuple(a for a in found if a.regions[0].length)

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        return 20.0 + (end - begin) * self.ns_per_row


class Rows(KernelFamily[CpuTarget]):
    """Every kernel cut by rows at a price per row."""

    def __init__(self, ns_per_row: float) -> None:
        self.ns_per_row = ns_per_row

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[RowTiling]:
        return (RowTiling(max(1, body.epilogue.shape[0]), self.ns_per_row),)


def placed(graph: Graph, cores: int, ns_per_row: float, **options: Any) -> Schedule:
    family = Rows(ns_per_row)
    chosen = Options(**options)
    grouping = host_group(graph, family, **options)
    return place(grouping, graph, TARGET, cores, chosen, lambda _: family)


def chain(length: int = 3, rows: int = 64) -> Graph:
    """Pointwise sub-operators that fusion is not allowed to join."""
    g = GraphMaker()
    h = g.input("x", rows, 16)
    for _ in range(length):
        h = g.op("tanh", h)
    return g.graph(h)


def certify(schedule: Schedule) -> int:
    """Verify the schedule's plan; its number of waits."""
    plan = plan_sync(schedule)
    verify(plan, {s.index: t.units for s, t in zip(schedule.subops, schedule.tilings, strict=True)})
    return plan.waits


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_units_are_covered_once_and_in_order(cores: int) -> None:
    schedule = placed(chain(), cores, 50.0, fuse=False)
    for sub, tiling in zip(schedule.subops, schedule.tilings, strict=True):
        parts = [(t.begin, t.end) for t in schedule.tasks if t.subop == sub.index]
        assert [b for b, _ in parts] == [0, *(e for _, e in parts)][:-1]
        assert parts[-1][1] == tiling.units
        assert len({t.core for t in schedule.tasks if t.subop == sub.index}) == len(parts)
    assert [t.index for t in schedule.tasks] == list(range(len(schedule.tasks)))
    certify(schedule)


def test_row_wise_chains_keep_their_partition_and_need_no_sync() -> None:
    schedule = placed(chain(), 4, 500.0, fuse=False)
    assert len(schedule.tasks) == 12
    assert certify(schedule) == 0


def test_a_chain_on_some_of_the_cores_stays_on_them() -> None:
    """The others are free sooner, but would have to fetch what they read."""
    schedule = placed(chain(rows=4), 10, 500.0, fuse=False)
    assert len(schedule.tasks) == 12
    assert len({t.core for t in schedule.tasks}) == 4
    assert certify(schedule) == 0


@pytest.mark.parametrize(
    ("core_of", "used"), [((0, 1, 0, 2, 2), {0, 1, 3}), ((0, 0, 1, 1), {0, 2}), ((0,), {0, 1, 2, 3})]
)
def test_of_hyperthreads_of_a_core_one_computes(core_of: tuple[int, ...], used: set[int]) -> None:
    """Where all of them would take longer. Workers that the profile does not know are cores of their own."""
    profile = replace(TARGET.profile, core_of=core_of, cluster_of=core_of, node_of=core_of)
    g, rng = GraphMaker(), np.random.default_rng(0)
    h = g.input("x", 96, 512)
    for _ in range(3):
        h = g.op("matmul", h, g.constant(rng.standard_normal((512, 512)).astype(np.float32)))
    graph = g.graph(h)
    schedule = place(host_group(graph), graph, profiled(TARGET, profile), max(4, len(core_of)))
    assert {t.core for t in schedule.tasks} == used
    certify(schedule)


def test_small_work_stays_on_one_core() -> None:
    schedule = placed(chain(rows=4), 4, 10.0, fuse=False)
    assert {t.core for t in schedule.tasks} == {0}
    assert "one core" in schedule.notes[0]


def test_large_work_uses_all_cores() -> None:
    assert len({t.core for t in placed(chain(), 8, 1000.0).tasks}) == 8


def test_without_cost_placement_everything_is_spread() -> None:
    schedule = placed(chain(rows=4), 4, 1.0, fuse=False, cost_placement=False)
    assert {t.core for t in schedule.tasks} == {0, 1, 2, 3}


def test_independent_branches_go_side_by_side() -> None:
    g = GraphMaker()
    x = g.input("x", 4, 16)
    branches = []
    for _ in range(2):
        h = x
        for _ in range(3):
            h = g.op("softmax", h, axis=-1)  # reads everything: splitting it means exchanging everything
        branches.append(h)
    schedule = placed(g.graph(*branches), 2, 400.0)
    of_core = [{schedule.subops[t.subop].name for t in schedule.tasks if t.core == core} for core in range(2)]
    assert {len(names) for names in of_core} == {3}
    assert certify(schedule) == 0, "each branch stays on its core"


def test_dependences_cover_overwrites_of_states() -> None:
    g = GraphMaker()
    s = g.state("s", np.zeros((4, 4), np.float32))
    g.updates["s"] = g.op("relu", g.input("x", 4, 4))
    graph = g.graph(g.op("softmax", s, axis=-1))
    family = LenientFamily(False)
    grouping = host_group(graph, family)
    writer = next(i for i, sub in enumerate(grouping.subops) if sub.body.op is None)
    reader = next(i for i, sub in enumerate(grouping.subops) if sub.body.op is not None)
    assert reader in dependences(grouping)[writer]


@pytest.mark.parametrize("cores", [1, 3])
def test_random_schedules_compute_the_graph(cores: int) -> None:
    for seed in range(30):
        graph = random_graph(seed, 10 + seed)
        inputs = random_inputs(graph, seed)
        family = LenientFamily(True)
        grouping = host_group(graph, family)
        schedule = place(grouping, graph, TARGET, cores, Options(), lambda _: family)  # noqa: B023
        certify(schedule)
        want = evaluate(graph, inputs)
        outputs, states = interpret_schedule(schedule, graph, inputs, grouping.constants)
        for name, found in zip(graph.outputs, outputs, strict=True):
            np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-5, err_msg=f"seed {seed} {name}")
        for name, found in states.items():
            np.testing.assert_allclose(found, want.states[name], rtol=1e-4, atol=1e-5, err_msg=f"seed {seed} {name}")


def test_real_families_end_in_a_certificate() -> None:
    rng = np.random.default_rng(0)
    g = GraphMaker()
    x = g.input("x", 32, 96)
    h = x
    for _ in range(4):
        up, down = (g.constant(rng.standard_normal(s).astype(np.float32)) for s in ((96, 384), (384, 96)))
        h = g.op("add", g.op("matmul", g.op("gelu", g.op("matmul", h, up)), down), h)
    graph = g.graph(h)
    for cores in (1, 2, 5):
        grouping = host_group(graph)
        certify(place(grouping, graph, TARGET, cores))


def test_placement_is_deterministic_and_its_tasks_parse_back() -> None:
    graph = random_graph(7, 40)
    texts = []
    for _ in range(2):
        family = LenientFamily(True)
        grouping = host_group(graph, family)
        schedule = place(grouping, graph, TARGET, 3, Options(), lambda _: family)  # noqa: B023
        texts.append(str(schedule))
        assert parse_tasks(str(schedule).splitlines()) == schedule.tasks
    assert texts[0] == texts[1]


@pytest.mark.parametrize("pairs", [False, True], ids=["all alike", "pairs"])
@pytest.mark.parametrize("cores", [2, 3, 4, 8])
def test_predicted_times_are_those_of_a_replay(cores: int, pairs: bool) -> None:
    """A range begins when its core is free and what it reads is written, a handover later where that was another core;
    each cache line from there costs a trip. Sub-operators read rows of one input and the whole of another."""
    rng = np.random.default_rng(cores)
    g = GraphMaker()
    values = [g.input("x", 24, 64), g.input("y", 24, 64)]
    for n in range(9):
        a, b = (values[int(k)] for k in rng.integers(max(0, len(values) - 3), len(values), 2))
        values.append(g.op("softmax", a, axis=-1) if n % 3 == 0 else g.op("add", a, b))
    graph, family = g.graph(values[-1], values[-2]), Rows(200.0)
    grouping = host_group(graph, family, fuse=False)
    near_pairs = [[40.0 if i % 2 == j % 2 else 170.0 for j in range(6)] for i in range(6)]  # others: as typical
    target = profiled(TARGET, replace(TARGET.profile, handover_ns=tuple(map(tuple, near_pairs)))) if pairs else TARGET
    assert target.handover_ns == (170.0 if pairs else 100.0)
    placer, order = place_module._placed(grouping, target, cores, Options(fuse=False), lambda _: family, None)

    def handover(a: int, b: int) -> float:
        known = near_pairs[a][b] if pairs and max(a, b) < len(near_pairs) else target.handover_ns
        return place_module.HANDOVER_FACTOR * known

    free = [0.0] + [2 * handover(0, c) for c in range(1, cores)]
    written: dict[str, list[tuple[int, float, int, int]]] = {}  # core, when, bytes [low, high)
    crossed = 0
    for i in order:
        sub, placement = grouping.subops[i], placer.placed[i]
        done = []
        for core, (begin, end) in zip(placement.cores, placement.partition.ranges, strict=True):
            start, trip = free[core], 0.0
            accesses = placement.partition.tiling.accesses(sub.body, begin, end)
            for access in accesses:
                for other, finish, low, high in written.get(sub.values[access.operand], ()) if not access.write else ():
                    (region,) = access.regions
                    shared = min(region.stop, high) - max(region.start, low)
                    if other != core and shared > 0:
                        start, trip = max(start, finish + handover(core, other)), trip + shared / 64 * TARGET.line_ns
                        crossed += 1
            free[core] = start + 20.0 + (end - begin) * 200.0 + trip
            done += [(sub.values[a.operand], core, free[core], a.regions[0]) for a in accesses if a.write]
        for name, core, finish, region in done:
            written.setdefault(name, []).append((core, finish, region.start, region.stop))
        assert placement.finish_ns == pytest.approx(max(free[core] for core in placement.cores))
    assert crossed
    used = {core for p in placer.placed.values() for core in p.cores}
    assert placer.makespan_ns() == pytest.approx(max(free[c] + (handover(c, 0) if c else 0.0) for c in used))


def test_work_for_some_of_the_cores_stays_with_those_that_hand_over_soonest() -> None:
    """Workers of two sockets in turn: four of eight are those of the caller's own, which start and join sooner."""
    pairs = tuple(tuple(50.0 if i % 2 == j % 2 else 400.0 for j in range(8)) for i in range(8))
    near = profiled(TARGET, replace(TARGET.profile, handover_ns=pairs))
    family, graph = Rows(3000.0), chain(rows=4)
    grouping = host_group(graph, family, fuse=False)
    schedule = place(grouping, graph, near, 8, Options(fuse=False), lambda _: family)
    assert {t.core for t in schedule.tasks} == {0, 2, 4, 6}
    certify(schedule)
    apart = replace(near, profile=TARGET.profile)
    assert apart.handover_ns == near.handover_ns == 400.0
    placers = [
        place_module._placed(grouping, target, 8, Options(fuse=False), lambda _: family, None)[0]
        for target in (near, apart)
    ]
    assert placers[0].makespan_ns() == pytest.approx(placers[1].makespan_ns() - 3 * 1.5 * 350.0)


def test_a_host_call_runs_on_core_0() -> None:
    g = GraphMaker()
    x = g.input("x", 64, 8)
    graph = g.graph(g.op("softmax", g.op("relu", x), axis=-1))
    family = Rows(1000.0)
    grouping = host_group(graph, family, choose=lambda b: "host.pointwise" if b.op is None else "host.reference")
    families = {"host.pointwise": family, "host.reference": family_of("host.reference")}
    schedule = place(grouping, graph, TARGET, 4, Options(), families.__getitem__)
    (call,) = [t for t in schedule.tasks if schedule.subops[t.subop].kernel == "host.reference"]
    assert (call.core, call.begin, call.end) == (0, 0, 1)
    certify(schedule)


def test_tasks_access_what_the_places_say() -> None:
    schedule = placed(chain(), 2, 500.0, fuse=False)
    first = schedule.tasks[0]
    assert {a.space for a in first.accesses} == {Space.INPUT, Space.ARENA}
    middle = next(t for t in schedule.tasks if t.subop == 1)
    offset = schedule.addresses[1][0].offset
    assert middle.accesses[0].regions[0].start == offset


@pytest.mark.parametrize("cores", [2, 4])
def test_a_cache_comes_from_another_core_as_far_as_rows_are_new(cores: int) -> None:
    """Where a new row goes is known at run time only, so it may be anywhere; yet one row is what changes its core."""
    b = GraphBuilder("decode")
    x, position = b.input("x", (1, 4, 1, 64)), b.input("position", (1,), "i64")
    caches = [b.state(name, np.zeros((1, 4, 4096, 64), np.float32)) for name in ("key", "value")]
    filled = [b.kv_update(cache, b.exp(x * scale), position) for cache, scale in zip(caches, (2.0, 3.0), strict=True)]
    for cache, new in zip(caches, filled, strict=True):
        b.update(cache, new)
    b.output(b.attention(x, filled[0], filled[1], None, position + 1), name="y")
    grouping = host_group(b.graph())
    assert predicted_ns(grouping, TARGET, cores) < 1.3 / cores * predicted_ns(grouping, TARGET, 1)
