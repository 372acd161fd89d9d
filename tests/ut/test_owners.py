"""Where buffers lie in the arena of several cores: whoever writes an address writes it again."""

from __future__ import annotations

import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.host.planner import HostPlanner
from superkernel.builder import GraphBuilder
from superkernel.compilation.compiled import Job
from superkernel.compilation.planning import plan_graph
from superkernel.compilation.stages import Stages
from superkernel.core.options import Options
from superkernel.scheduler import memory
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.owners import MIXED, Owners, Run
from superkernel.scheduler.schedule import Schedule, Space
from superkernel.target.cpu import CpuTarget

NONE = np.zeros(0, np.int64)


def foreign_bytes(runs: list[Run], placed: list[Run]) -> int:
    """Bytes of runs that lie over those of other owners."""
    return sum(
        max(0, min(high, stop) - max(low, start))
        for low, high, core in runs
        for start, stop, owner in placed
        if core != owner
    )


def shifted(runs: list[Run], offset: int) -> list[Run]:
    return [(low + offset, high + offset, core) for low, high, core in runs]


def test_the_borders_between_cores_come_together() -> None:
    runs: list[list[Run]] = [[(0, 1024, 0), (1024, 2048, 1)], [(0, 256, 0), (256, 512, 1)], [(0, 512, MIXED)]]
    owners = Owners(runs, 64, 4096)
    owners.place(0, 0)
    near = np.array([True, True, True])
    assert owners.choose(1, 512, 0, NONE, NONE, near) == 1024 - 256
    assert owners.choose(2, 512, 0, NONE, NONE, near) == 2048  # over nobody
    assert Owners(runs, 64, 4096).choose(1, 512, 128, NONE, NONE, near) == 128  # nothing there yet: the lowest


def test_what_interferes_is_left_alone_and_the_limit_is_kept() -> None:
    runs: list[list[Run]] = [[(0, 512, 0), (512, 1024, 1)], [(0, 256, 0), (256, 512, 1)], [(0, 128, 1)]]
    owners = Owners(runs, 64, 1024)
    owners.place(0, 0)
    near = np.array([True, True, True])
    taken = (np.array([256]), np.array([320]))
    assert owners.choose(1, 512, 320, *taken, near) == 320  # 64 bytes from the other core, at 256 it would be none
    assert owners.choose(2, 128, 0, NONE, NONE, near) == 512
    blocked = np.array([False, True, True])
    assert owners.choose(2, 128, 0, NONE, NONE, blocked) == 0  # what interferes has no say


def test_with_too_many_runs_the_lowest_offset_is_taken() -> None:
    runs: list[list[Run]] = [[(64 * core, 64 * core + 64, core) for core in range(16)]] * 33
    owners = Owners(runs, 64, 1 << 20)
    for buffer in range(32):
        owners.place(buffer, 0)
    near = np.ones(33, np.bool_)
    assert owners.choose(32, 1024, 64, NONE, NONE, near) == 64
    assert owners.choose(32, 1024, 64, NONE, NONE, np.arange(33) < 1) == 0


def test_a_choice_is_free_and_takes_no_more_than_the_lowest_offset_does() -> None:
    rng = np.random.default_rng(0)
    better = 0
    for _ in range(60):
        sizes = [64 * int(n) for n in rng.integers(2, 20, 12)]
        runs: list[list[Run]] = [
            [(0, size // 128 * 64, 0), (size // 128 * 64, size, 1)] if rng.random() < 0.7 else [(0, size, 1)]
            for size in sizes
        ]
        owners, placed, offsets = Owners(runs, 64, 4096), list[Run](), list[int]()
        for i, size in enumerate(sizes):
            meets = rng.random(i) < 0.3
            near = np.ones(len(sizes), np.bool_)
            near[:i] = ~meets
            starts = np.array([offsets[j] for j in range(i) if meets[j]], np.int64)
            ends = np.array([offsets[j] + sizes[j] for j in range(i) if meets[j]], np.int64)
            lowest = memory._lowest_gap(starts, ends, size)
            found = owners.choose(i, size, lowest, starts, ends, near)
            assert found % 64 == 0
            assert not ((starts < found + size) & (ends > found)).any()
            others = [row for j in range(i) if not meets[j] for row in shifted(runs[j], offsets[j])]
            if lowest + size <= 4096:
                ours, plain = (foreign_bytes(shifted(runs[i], at), others) for at in (found, lowest))
                assert ours <= plain
                better += ours < plain
            owners.place(i, found)
            offsets.append(found)
            placed += shifted(runs[i], found)
    assert better > 50


def separable(size: int, channels: int) -> sk.Graph:
    """Depthwise and pointwise convolutions by turns, images smaller and deeper at every other pair."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("separable")
    x = b.input("x", (1, channels, size, size))
    for step in range(6):
        for depth, kernel in ((1, 3), (channels, 1)):
            more = 2 if depth > 1 and step % 2 else 1
            weights = rng.standard_normal((channels * more, depth, kernel, kernel)).astype(np.float32) / 8
            stride, pad = 2 if depth == 1 and step % 2 else 1, kernel // 2
            x = b.conv(x, b.constant(weights), strides=(stride,) * 2, pads=(pad,) * 4, groups=channels // depth)
            x, channels = b.relu(x), channels * more
    b.output(x, name="y")
    return b.graph()


def changed_hands(schedule: Schedule) -> int:
    """Lines of the arena that a core writes next after another core wrote them, over a launch that follows another."""
    owner: dict[int, int] = {}
    changed = 0
    for launch in range(2):
        for task in schedule.tasks:
            for access in task.accesses:
                if access.space is not Space.ARENA or not access.write:
                    continue
                for region in access.regions:
                    for start in range(region.start, region.stop, region.stride or region.length):
                        for line in range(start // 64, (start + region.length) // 64):
                            changed += launch and owner.get(line, task.core) != task.core
                            owner[line] = task.core
    return changed


def test_lines_stay_with_the_core_that_wrote_them_before(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = separable(40, 16)

    cpu = CpuTarget("x86_64-unknown-linux-gnu", "avx512", "", 64, 32)

    def planned() -> Schedule:
        everything_on_both = Options(cost_placement=False)
        job = Job(graph, cpu, 2, everything_on_both)
        return plan_graph(Stages(frozenset()), job, HostPlanner(job, HOST_KERNELS)).schedule

    chosen = planned()
    monkeypatch.setattr(Owners, "choose", lambda self, buffer, size, lowest, *rest: lowest)
    lowest = planned()
    assert changed_hands(chosen) * 10 <= changed_hands(lowest)
    assert chosen.arena_bytes <= max(cpu.l2_bytes // 2, memory.ROOMY_FACTOR * lowest.arena_bytes)
