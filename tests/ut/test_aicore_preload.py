"""The planner of prefetches: against a reference cache, and what it promises; choices of copies; stubs in programs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from seeds import seeds

from superkernel.codegen.aicore.code_choice import CodeOptions, choose
from superkernel.codegen.aicore.footprint import Footprint
from superkernel.codegen.aicore.launch import OFFSET_BROKEN, OFFSET_BYTES
from superkernel.codegen.aicore.linking.objects import read_object
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.codegen.aicore.preload import (
    STUB_OVERHEAD,
    CacheShape,
    CodeSegment,
    Lru,
    Preload,
    Strength,
    plan_preload,
    replay,
)
from superkernel.codegen.aicore.program_spec import CodeLine
from superkernel.sync.aicore.plan import CoreKind
from superkernel.target.aicore import load_target

SHAPES = (CacheShape(1, 4, 128, 152), CacheShape(4, 2, 128, 152), CacheShape(8, 4, 128, 60))
SEEDS = seeds(25)


class ReferenceLru:
    """A cache written as one list of (time of last use, line) per set."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape, self.time = shape, 0
        self.held: dict[int, int] = {}

    def use(self, line: int) -> tuple[bool, int | None]:
        """Whether the line was there, and what went out."""
        self.time += 1
        hit, out = line in self.held, None
        mates = [x for x in self.held if x % self.shape.sets == line % self.shape.sets]
        if not hit and len(mates) == self.shape.ways:
            out = min(mates, key=self.held.__getitem__)
            del self.held[out]
        self.held[line] = self.time
        return hit, out


def program(seed: int, shape: CacheShape) -> list[CodeSegment]:
    """Kernels that come again, and a launch function that goes on and on."""
    rng = random.Random(seed)
    room = shape.sets * shape.ways
    kernels = []
    start = 1000
    for _ in range(rng.randint(2, 6)):
        size = rng.randint(1, max(1, room // 2))
        kernels.append(range(start, start + size))
        start += size
    segments = []
    for number in range(rng.randint(1, 20)):
        kernel = rng.choice(kernels)
        lines = (number, *kernel, *kernel, number + 1)
        segments.append(CodeSegment(lines, 32 * len(set(lines))))
    return segments


def misses(segments: list[CodeSegment], shape: CacheShape) -> int:
    cache = ReferenceLru(shape)
    return sum(not cache.use(line)[0] for segment in segments for line in segment.lines)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_cache_is_the_reference_cache(seed: int, shape: CacheShape) -> None:
    rng = random.Random(seed)
    mine, reference = Lru(shape), ReferenceLru(shape)
    for _ in range(400):
        line = rng.randrange(3 * shape.sets * shape.ways)
        there, victim = line in mine, mine.victim(line)
        hit, out = reference.use(line)
        assert (there, None if there else victim) == (hit, out)
        assert mine.use(line) is hit


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_without_stubs_the_replay_misses_what_the_reference_misses(seed: int, shape: CacheShape) -> None:
    segments = program(seed, shape)
    found = plan_preload(segments, shape, Strength.NONE)
    assert found.lines == 0
    assert found.after.misses == misses(segments, shape)
    assert found.after.cycles == sum(s.cycles for s in segments) + found.after.misses * shape.latency_cycles


def _displaced(segments: list[CodeSegment], found: Preload, shape: CacheShape) -> list[str]:
    """Prefetches that put out a line which is used before the one that they bring in, from the stub on."""
    cache = ReferenceLru(shape)
    wrong = []
    for number, (segment, stub) in enumerate(zip(segments, found.stubs, strict=True)):
        ahead = [line for later in segments[number:] for line in later.lines]
        first, *rest = segment.lines
        cache.use(first)
        for line in stub:
            hit, out = cache.use(line)
            if hit:
                wrong.append(f"{line} was there")
            elif line not in ahead:
                wrong.append(f"{line} is never used")
            elif out is not None and out in ahead and ahead.index(out) <= ahead.index(line):
                wrong.append(f"{line} puts out {out}, which is used sooner")
        for line in rest:
            cache.use(line)
    return wrong


@pytest.mark.parametrize("strength", [Strength.AUTO, Strength.MAX])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_runs_or_is_needed_sooner_is_displaced(seed: int, shape: CacheShape, strength: Strength) -> None:
    segments = program(seed, shape)
    found = plan_preload(segments, shape, strength)
    assert _displaced(segments, found, shape) == []
    assert found.after.misses <= found.before.misses


def test_the_check_above_rejects_a_plan_that_displaces() -> None:
    shape = CacheShape(1, 2, 128, 150)
    segments = [CodeSegment((0, 1, 0), 96), CodeSegment((2, 3), 64)]
    greedy = Preload(((2, 3), ()), "", *[replay(segments, ((2, 3), ()), shape)] * 2)
    assert "2 is never used" not in _displaced(segments, greedy, shape)
    assert _displaced(segments, greedy, shape)
    assert _displaced(segments, plan_preload(segments, shape, Strength.MAX), shape) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_auto_is_never_slower_than_nothing(seed: int) -> None:
    for shape in SHAPES:
        found = plan_preload(program(seed, shape), shape, Strength.AUTO)
        assert found.after.cycles <= found.before.cycles


def test_a_straight_line_hardly_misses_behind_its_entry() -> None:
    shape = CacheShape(32, 4, 128, 152)
    segments = [CodeSegment((n, *range(100 + 10 * n, 110 + 10 * n), n + 1), 600) for n in range(40)]
    found = plan_preload(segments, shape, Strength.AUTO)
    assert found.before.misses == 441
    assert found.after.misses <= 2
    work = sum(s.cycles for s in segments)
    stubs = found.lines + STUB_OVERHEAD * sum(map(bool, found.stubs))
    assert found.after.cycles - work - stubs < 0.02 * (found.before.cycles - work)


def test_auto_is_off_where_nothing_is_to_gain() -> None:
    shape = CacheShape(32, 4, 128, 1)
    found = plan_preload([CodeSegment((0, 1, 2, 3), 128)] * 3, shape, Strength.AUTO)
    assert found.lines == 0
    assert found.reason.startswith("off: ")
    assert plan_preload([], shape, Strength.AUTO).stubs == ()


def test_per_func_fetches_the_whole_next_function() -> None:
    shape = CacheShape(4, 4, 128, 100)
    segments = [CodeSegment((0, 10, 11, 10, 11, 1), 96), CodeSegment((1, 10, 11, 2), 96), CodeSegment((2, 20), 64)]
    found = plan_preload(segments, shape, Strength.PER_FUNC)
    assert found.stubs == ((0, 10, 11, 1, 2), (2, 20), ())


def test_a_stub_has_as_many_lines_of_a_set_as_there_are_ways() -> None:
    """And none that would displace one which is used before it."""
    found = plan_preload([CodeSegment((1, 0, 0, 2, 4), 64)], CacheShape(2, 2, 128, 100), Strength.MAX)
    assert found.stubs == ((0, 2),)
    segments = [CodeSegment((0, 2), 64), CodeSegment((0, 8), 64)]
    assert plan_preload(segments, CacheShape(2, 2, 128, 100), Strength.MAX).stubs == ((2,), (8,))


def test_replay_waits_for_what_comes_late() -> None:
    """Line 1 comes 80 cycles behind its use, 4 in time, 99 for nothing; 0, 2 and 3 miss."""
    shape = CacheShape(4, 4, 128, 100)
    segments = [CodeSegment((0, 1), 20), CodeSegment((2, 3), 1000), CodeSegment((4,), 10)]
    found = replay(segments, ((1, 4, 99), (), ()), shape)
    late = 1 + 100 - (3 + STUB_OVERHEAD + 10)
    assert found.cycles == 20 + 1000 + 10 + 3 * 100 + 3 + STUB_OVERHEAD + late
    assert found.missed == ((0,), (2, 3), ())


# Copies ---------------------------------------------------------------------------------------------------------------


def _footprint(waits: int, cold: bool) -> Footprint:
    step = 10 if cold else 0
    segments = tuple(CodeSegment((100 + n * step, 101 + n * step), 64) for n in range(waits))
    places = {line: CodeLine("k", 0) for s in segments for line in s.lines}
    return Footprint(CoreKind.VECTOR, "sk_fused0_vector", 0, segments, places, (True,) * waits)


@pytest.mark.parametrize(("cold", "copies"), [(True, True), (False, False)])
def test_copies_are_made_where_many_cores_enter_cold_code_together(cold: bool, copies: bool) -> None:
    target = load_target("a3")
    found = choose([_footprint(30, cold)], CodeOptions(preload="none"), target)
    assert (found.copies > 1) is copies
    assert found.reasons[-1].startswith(f"split {found.copies}: ")
    assert choose([_footprint(30, cold)], CodeOptions(preload="none", copies=5), target).copies == 5


def test_few_cores_need_no_copies() -> None:
    assert choose([_footprint(30, cold=True)], CodeOptions(preload="none"), load_target("mini")).copies == 1


def test_lines_of_one_lane_are_fetched_for_it_alone() -> None:
    target = load_target("a3")
    parts = []
    for lane in (0, 1):
        own = 200 + 10 * lane
        segments = (CodeSegment((0, 1), 64), CodeSegment((1, own, own + 1), 96))
        places = {0: CodeLine("main", 0), 1: CodeLine("main", 128)}
        places |= {own + n: CodeLine(f"k{lane}", 128 * n, lane) for n in (0, 1)}
        parts.append(Footprint(CoreKind.VECTOR, "main", lane, segments, places, (False, False)))
    found = choose(parts, CodeOptions(preload="per-func"), target)
    first = found.stubs["main"][0]
    assert CodeLine("main", 128) in first
    assert {line.lane for line in first if line.symbol == "k1"} == {1}
    assert len(first) == len(set(first)) == 6
    assert found.lines == sum(map(len, found.stubs["main"]))
    assert replace(found, reasons=()).settled(found)


# Code -----------------------------------------------------------------------------------------------------------------


def test_llvm_takes_every_offset_but_the_one_that_is_left_out() -> None:
    """LLVM ends the process on the offset 4064; it must not on any other that a stub may have."""
    offsets = [n for n in range(0, 1 << 14, OFFSET_BYTES) if n != OFFSET_BROKEN]
    calls = [
        f"  call void @llvm.prefetch.p0(ptr getelementptr (i8, ptr @k, i64 {n}), i32 0, i32 3, i32 0)" for n in offsets
    ]
    head = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\ndeclare void @k()\ndefine void @f() {\nentry:\n"
    obj = read_object(compile_rv64(head + "\n".join(calls) + "\n  ret void\n}\n"), "f")
    code = next(piece.data for piece in obj.pieces if piece.name == ".text.f")
    words = [int.from_bytes(code[n : n + 4], "little") for n in range(0, len(code) - 3, 2)]
    assert sum(word & 0x01F07FFF == 0x00006013 for word in words) >= len(offsets)
