"""Where buffers lie in the arena of several cores: whoever writes an address writes it again."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from seeds import seeds

import superkernel as sk
from superkernel import _core
from superkernel.backends.host.planner import HostPlanner
from superkernel.builder import GraphBuilder
from superkernel.compilation.compiled import Job
from superkernel.compilation.planning import plan_graph
from superkernel.compilation.stages import Stages
from superkernel.core.errors import InputError
from superkernel.core.options import Options
from superkernel.scheduler import memory
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.memory import MIXED, Run
from superkernel.scheduler.schedule import Schedule, Space
from superkernel.target.cpu import CpuTarget


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


def row(count: int, *meets: int) -> NDArray[np.uint8]:
    """Which of so many buffers interfere."""
    found = np.zeros(count, np.uint8)
    found[list(meets)] = memory.MEETS
    return found


def test_the_borders_between_cores_come_together() -> None:
    sizes = [2048, 512, 512]
    runs: list[list[Run]] = [[(0, 1024, 0), (1024, 2048, 1)], [(0, 256, 0), (256, 512, 1)], [(0, 512, MIXED)]]
    arena = _core.Arena(sizes, runs, 64, 4096)
    assert arena.place(0, row(3)) == 0
    assert arena.place(1, row(3)) == 1024 - 256
    assert arena.place(2, row(3, 1)) == 2048  # over nobody
    assert _core.Arena(sizes, runs, 64, 0).place(1, row(3)) == 0  # runs do not matter: the lowest


def test_what_interferes_is_left_alone_and_the_limit_is_kept() -> None:
    runs: list[list[Run]] = [
        [(0, 512, 0), (512, 1024, 1)],
        [(0, 64, MIXED)],
        [(0, 256, 0), (256, 512, 1)],
        [(0, 128, 1)],
    ]

    def placed() -> _core.Arena:
        arena = _core.Arena([1024, 320, 512, 128], runs, 64, 1024)
        assert [arena.place(i, row(4)) for i in range(2)] == [0, 0]
        return arena

    assert placed().place(2, row(4, 1)) == 320  # 64 bytes from the other core, at 256 it would be none
    assert placed().place(3, row(4)) == 512
    assert placed().place(3, row(4, 0)) == 1024  # what interferes has no say, and the limit is no bound for the lowest


@pytest.mark.parametrize(("placed", "expected"), [(8, 320), (9, 0)])
def test_with_too_many_runs_the_lowest_offset_is_taken(placed: int, expected: int) -> None:
    """Over the bytes of its own core, as long as there are at most 2048 pairs of runs."""
    every = [(64 * core, 64 * core + 64, core) for core in range(16)]
    small = [(4 * piece, 4 * piece + 4, 5) for piece in range(16)]
    runs: list[list[Run]] = [*[every] * placed, small]
    arena = _core.Arena([1024] * placed + [64], runs, 64, 1024)
    for buffer in range(placed):
        assert arena.place(buffer, row(placed + 1)) == 0
    assert arena.place(placed, row(placed + 1)) == expected


def test_a_choice_is_free_and_takes_no_more_than_the_lowest_offset_does() -> None:
    rng = np.random.default_rng(0)
    better = 0
    for _ in range(60):
        sizes = [64 * int(n) for n in rng.integers(2, 20, 12)]
        runs: list[list[Run]] = [
            [(0, size // 128 * 64, 0), (size // 128 * 64, size, 1)] if rng.random() < 0.7 else [(0, size, 1)]
            for size in sizes
        ]
        arena, placed, offsets = _core.Arena(sizes, runs, 64, 4096), list[Run](), list[int]()
        for i, size in enumerate(sizes):
            meets = rng.random(i) < 0.3
            starts = np.array([offsets[j] for j in range(i) if meets[j]], np.int64)
            ends = np.array([offsets[j] + sizes[j] for j in range(i) if meets[j]], np.int64)
            lowest = lowest_free(starts, ends, size)
            found = arena.place(i, row(len(sizes), *np.flatnonzero(meets)))
            assert found % 64 == 0
            assert not ((starts < found + size) & (ends > found)).any()
            others = [run for j in range(i) if not meets[j] for run in shifted(runs[j], offsets[j])]
            if lowest + size <= 4096:
                ours, plain = (foreign_bytes(shifted(runs[i], at), others) for at in (found, lowest))
                assert ours <= plain
                better += ours < plain
            offsets.append(found)
            placed += shifted(runs[i], found)
    assert better > 50


def lowest_free(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> int:
    """The lowest offset at which so many bytes are free."""
    candidates = sorted({0, *ends.tolist()})
    return next(at for at in candidates if not ((starts < at + size) & (ends > at)).any())


@pytest.mark.parametrize("seed", seeds(4))
def test_without_a_limit_each_takes_the_lowest_offset_that_is_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [64 * int(n) for n in rng.integers(0, 20, 40)]
    arena, offsets = _core.Arena(sizes, [()] * 40, 64, 0), np.full(40, -1, np.int64)
    for i in rng.permutation(40).tolist():
        meets = rng.random(40) < 0.5
        taken = meets & (offsets >= 0)
        starts, ends = offsets[taken], (offsets + np.array(sizes, np.int64))[taken]
        assert sizes[i] == 0 or arena.place(i, meets.astype(np.uint8)) == lowest_free(starts, ends, sizes[i])
        if sizes[i]:
            offsets[i] = lowest_free(starts, ends, sizes[i])


@pytest.mark.parametrize(
    ("sizes", "runs", "align", "limit"),
    [([64], [], 64, 0), ([64, -1], [(), ()], 64, 0), ([64], [()], 0, 0), ([64], [()], 64, -1)],
)
def test_what_is_no_buffer_is_refused(sizes: list[int], runs: list[list[Run]], align: int, limit: int) -> None:
    with pytest.raises(InputError, match="no buffers to place"):
        _core.Arena(sizes, runs, align, limit)


def halves(size: int, first: int = 0) -> list[Run]:
    """Two cores write a half each."""
    return [(0, size // 2, first), (size // 2, size, 1 - first)]


@pytest.mark.parametrize(
    ("size", "runs", "offset"),
    [
        (1024, halves(1024), 0),
        (512, halves(512), 256),  # the cores meet at the same address
        (512, [(0, 512, 0)], 0),  # one core alone, in its half
        (512, [(0, 512, 1)], 512),
        (1024, halves(1024, 1), 512),  # one of them behind it
        (1024, [(0, 256, 0), (256, 1024, 1)], 256),
        (960, [(0, 448, 0), (512, 960, 1)], 0),  # bytes between, which nobody uses
    ],
)
@pytest.mark.parametrize("limit", [0, 4096])
def test_buffers_lie_over_what_the_same_core_uses(size: int, runs: list[Run], offset: int, limit: int) -> None:
    arena = _core.Arena([1024, size], [halves(1024), runs], 64, limit)
    arena.place(0, row(2))
    meets = row(2)
    meets[0] = memory.OTHER_CORES
    assert arena.place(1, meets) == offset


@pytest.mark.parametrize("seed", seeds(4))
def test_no_byte_is_shared_by_cores_that_do_not_know_of_each_other(seed: int) -> None:
    rng, count = np.random.default_rng(seed), 24
    sizes = [64 * int(n) for n in rng.integers(2, 9, count)]
    runs = [halves(size // 128 * 128, int(rng.random() < 0.2)) for size in sizes]
    table = rng.choice([memory.FREE, memory.MEETS, memory.OTHER_CORES], (count, count), p=[0.2, 0.3, 0.5])
    table = np.triu(table, 1) + np.triu(table, 1).T
    over = 0
    for limit in (0, 4096):
        arena, offsets = _core.Arena(sizes, runs, 64, limit), [-1] * count
        for i in rng.permutation(count).tolist():
            offsets[i] = arena.place(i, table[i].astype(np.uint8))
        for i in range(count):
            for k in range(i):
                meet = offsets[i] < offsets[k] + sizes[k] and offsets[k] < offsets[i] + sizes[i]
                if not meet or table[i, k] == memory.FREE:
                    continue
                assert table[i, k] == memory.OTHER_CORES
                assert foreign_bytes(shifted(runs[i], offsets[i]), shifted(runs[k], offsets[k])) == 0
                over += 1
    assert over > 10


def test_a_chain_that_cores_share_by_rows_takes_two_buffers() -> None:
    """Each core writes again what only itself has read, without a wait."""
    b = GraphBuilder("chain")
    x = b.input("x", (16, 1024))
    scale = b.constant(np.ones(1024, np.float32))
    for _ in range(9):
        x = b.rms_norm(b.tanh(x), scale)
    b.output(x, name="y")
    kernel = sk.compile(b.graph(), threads=2)
    schedule = kernel._compiled.schedule
    assert schedule.cores == 2
    assert schedule.arena_bytes == 2 * 16 * 1024 * 4
    assert changed_hands(schedule) == 0
    assert kernel.report().waits == 0


@pytest.mark.parametrize("meets", [[3, 0], [0, memory.OTHER_CORES]])
def test_what_says_not_how_buffers_interfere_is_refused(meets: list[int]) -> None:
    arena = _core.Arena([64, 64], [(), ()], 64, 0)
    with pytest.raises(InputError, match="no buffers to place"):
        arena.place(0, np.array(meets, np.uint8))


def test_a_buffer_is_placed_once() -> None:
    arena = _core.Arena([64, 64], [(), ()], 64, 0)
    arena.place(0, row(2))
    for buffer, meets in ((0, row(2)), (2, row(2)), (1, row(3))):
        with pytest.raises(InputError, match="no buffers to place"):
            arena.place(buffer, meets)
    assert arena.place(1, row(2, 0)) == 64


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
    place = memory._Places.arena
    monkeypatch.setattr(memory._Places, "arena", lambda self, meets, limit=0: place(self, meets))
    lowest = planned()
    assert changed_hands(chosen) * 10 <= changed_hands(lowest)
    assert chosen.arena_bytes <= max(cpu.l2_bytes // 2, memory.ROOMY_FACTOR * lowest.arena_bytes)
