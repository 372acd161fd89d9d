"""What a sub-operator costs on so many cores, from a tiling whose time is what it is told of the target."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from anchor_bodies import anchor_case
from plan_cases import TARGETS

from superkernel.core.dtypes import DType
from superkernel.core.tensor import Region
from superkernel.ir.body import Body, SubOperator
from superkernel.scheduler.cost import MAX_RIVALS, MAX_TILINGS, CostBook
from superkernel.scheduler.families.kernel import HostTiling
from superkernel.scheduler.tiling import Access, CannotCut, KernelFamily
from superkernel.scheduler.timed import code_text
from superkernel.target.cpu import CpuTarget
from superkernel.target.timings import Timings, settled_ns, timing_key

_MACHINE: Any = TARGETS["avx512"]()
CPU: CpuTarget = replace(_MACHINE, flops_per_ns=64.0, l2_bytes_per_ns=32.0)
Speed = Callable[[CpuTarget], float]


@dataclass(frozen=True)
class Cut(HostTiling):
    """Costs `fixed`, and each unit what `speed` says of the target; cores begin at multiples of `step`, below where it
    is negative."""

    count: int
    speed: Speed = field(default=lambda cpu: 1.0)
    fixed: float = 0.0
    step: int = 1
    scratch: int = 0

    @property
    def units(self) -> int:
        return self.count

    @property
    def scratch_bytes(self) -> int:
        return self.scratch

    def align(self, body: Body, unit: int) -> int:
        return -(-unit // self.step) * self.step if self.step > 0 else unit - unit % -self.step

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return Access(0, False, (Region(begin, end - begin),)), Access(1, False, ())

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        return self.fixed + (end - begin) * self.speed(target)


@dataclass
class Offers(KernelFamily[CpuTarget]):
    found: Sequence[Cut]

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[Cut]:
        return [*self.found]


BODY = anchor_case("matmul", {}, [((2, 3), DType.F32), ((3, 4), DType.F32)], constants=[1]).body
SUB = SubOperator(0, "sub", BODY, (), (), "kernel")


def book(*found: Cut, cores: int = 4, core_of: tuple[int, ...] = (), limit: int | None = None) -> CostBook:
    """`core_of`: of the first CPUs, the others are unknown."""
    profile = replace(CPU.profile, core_of=core_of)
    return CostBook(replace(CPU, profile=profile), cores, lambda _: Offers(found), limit)


@pytest.mark.parametrize(
    ("core_of", "cores", "apart", "counts"),
    [
        ((), 1, (0,), []),
        ((), 2, (0, 1), [2]),
        ((), 8, tuple(range(8)), [2, 4, 8]),
        ((), 9, tuple(range(9)), [2, 4, 8, 9]),
        ((0, 1, 0, 1), 4, (0, 1), [2, 4]),
        ((0, 0, 1, 1, 2, 2), 5, (0, 2, 4), [2, 3, 5]),
        ((0, 0), 4, (0, 2, 3), [2, 3, 4]),
    ],
)
def test_numbers_of_cores_that_are_looked_at(
    core_of: tuple[int, ...], cores: int, apart: tuple[int, ...], counts: list[int]
) -> None:
    made = book(Cut(1), cores=cores, core_of=core_of)
    assert (made.apart, made.counts, made.target.cores) == (apart, counts, len(apart))


def test_hyperthreads_share_arithmetic_and_the_second_level_where_all_take_part() -> None:
    """Those of a core alone keep all of it."""
    for speed, rate in ((lambda cpu: cpu.flops_per_ns, 64), (lambda cpu: cpu.l2_bytes_per_ns, 32)):
        tiling = Cut(12, speed)
        made = book(tiling, cores=4, core_of=(0, 1, 0, 2))
        assert made.partition(SUB, tiling, 3).work_ns == (4 * rate,) * 3
        four = made.partition(SUB, tiling, 4)
        assert four.work_ns == (3 * rate / 2, 3 * rate, 3 * rate / 2, 3 * rate)
        assert four.longest_ns == 3 * rate


def test_as_many_cores_read_as_have_a_range() -> None:
    tiling = Cut(7, lambda cpu: cpu.readers)
    made = book(tiling)
    for cuts, ranges in (
        ((0, 7), ((0, 7),)),
        ((0, 3, 3, 7), ((0, 3), (3, 7))),
        ((0, 0, 1, 2, 7), ((0, 1), (1, 2), (2, 7))),
    ):
        cut = made.cut(SUB, tiling, cuts)
        assert cut.ranges == ranges
        assert cut.work_ns == tuple((b - a) * len(ranges) for a, b in ranges)
        assert cut.longest_ns == max(cut.work_ns)
    empty = made.cut(SUB, tiling, (0, 0))
    assert (empty.ranges, empty.work_ns, empty.longest_ns) == ((), (), 0.0)


def test_parts_are_equal_and_begin_where_the_tiling_wants_it() -> None:
    plain, stepped = Cut(10), Cut(10, step=4)
    made = book(plain, stepped)
    assert made.partition(SUB, plain, 4).ranges == ((0, 2), (2, 5), (5, 7), (7, 10))
    assert made.partition(SUB, stepped, 4).ranges == ((0, 4), (4, 8), (8, 10))
    assert made.partition(SUB, replace(stepped, step=40), 4).ranges == ((0, 10),)
    assert made.partition(SUB, replace(stepped, step=-40), 4).ranges == ((0, 10),)
    assert made.partition(SUB, plain, 1).ranges == ((0, 10),)


def test_the_first_tilings_that_keep_to_the_working_memory() -> None:
    found = [Cut(n, scratch=64 * n) for n in range(1, MAX_TILINGS + 4)]
    assert len(book(*found).tilings(SUB)) == MAX_TILINGS
    assert book(*found, limit=192).tilings(SUB) == tuple(found[:3])
    with pytest.raises(CannotCut, match="64 bytes"):
        book(*found, limit=63).tilings(SUB)


def test_the_best_on_one_core_and_few_rivals_on_more() -> None:
    """More cores where they take less than nine tenths, others beside the best below one and a half of its time."""
    halves = [Cut(2, lambda cpu: 60.0, fixed=fixed) for fixed in (0.0, 10.0, 29.0, 20.0, 30.0)]
    made = book(*halves, cores=2)
    assert MAX_RIVALS == 3
    assert [(len(p.ranges), p.longest_ns) for p in made.partitions(SUB)] == [(1, 120), (2, 60), (2, 70), (2, 80)]
    for fixed, alone in ((19.0, [1, 2]), (20.0, [1, 2]), (600.0, [1])):
        assert [len(p.ranges) for p in book(Cut(2, lambda cpu: 60.0, fixed=fixed), cores=2).partitions(SUB)] == alone
    two = [Cut(2, lambda cpu: 60.0, fixed=fixed) for fixed in (0.0, 30.0)]
    assert [p.longest_ns for p in book(*two, cores=2).partitions(SUB)] == [120, 60]  # 90 is no rival
    two = [Cut(2, lambda cpu: 60.0, fixed=fixed) for fixed in (0.0, 29.0)]
    assert [p.longest_ns for p in book(*two, cores=2).partitions(SUB)] == [120, 60, 89]


def test_more_cores_have_to_gain_a_tenth() -> None:
    for fixed, counts in ((479.0, [1, 2]), (480.0, [1]), (481.0, [1])):  # 540 of 600
        assert [len(p.ranges) for p in book(Cut(2, lambda cpu: 60.0, fixed), cores=2).partitions(SUB)] == counts


def test_work_of_one_unit_stays_on_one_core_and_odd_numbers_of_hyperthreads_take_no_part() -> None:
    assert [len(p.ranges) for p in book(Cut(1, lambda cpu: 60.0)).partitions(SUB)] == [1]
    crowded = book(Cut(3, lambda cpu: 64 * 60 / cpu.flops_per_ns), cores=4, core_of=(0, 1, 0, 1))
    assert [len(p.ranges) for p in crowded.partitions(SUB)] == [1, 2]
    assert len(crowded.widest(SUB).ranges) == 3
    at_once = book(Cut(4, lambda cpu: 60.0), cores=4, core_of=(0, 1, 0, 1))
    assert [len(p.ranges) for p in at_once.partitions(SUB)] == [1, 2, 4]


def test_the_widest_is_the_fastest_on_all_cores() -> None:
    slow, fast = Cut(4, lambda cpu: 9.0), Cut(2, lambda cpu: 10.0)
    assert book(slow, fast).widest(SUB).tiling is slow
    assert book(slow, fast, cores=2).widest(SUB).tiling is fast
    nothing = Cut(0)
    assert book(nothing).widest(SUB).ranges == ()


def test_what_is_asked_again_is_remembered() -> None:
    tiling = Cut(8)
    made = book(tiling)
    assert made.tilings(SUB) is made.tilings(SUB)
    assert made.partitions(SUB) is made.partitions(SUB)
    first = made.accesses(BODY, tiling, (2, 5))
    assert first == (Access(0, False, (Region(2, 3),)),)
    assert made.accesses(BODY, tiling, (2, 5)) is first
    assert made.accesses(BODY, tiling, (2, 6)) != first


def test_targets_of_as_many_readers_are_one() -> None:
    """Estimates are remembered by them."""
    seen: list[CpuTarget] = []
    tiling = Cut(4, lambda cpu: float(seen.append(cpu) or 0))  # type: ignore[func-returns-value]
    made = book(tiling)
    for _ in range(2):
        made.cut(SUB, tiling, (0, 2, 4))
    assert len({id(cpu) for cpu in seen}) == 1


def test_what_is_remembered_by_its_place_in_memory_stays_there() -> None:
    body, tiling = anchor_case("tanh", {}, [((3, 4), DType.F32)]).body, Cut(8)
    alive = weakref.ref(body), weakref.ref(tiling)
    made = CostBook(CPU, 1, lambda _: Offers([Cut(8)]))
    made.accesses(BODY, tiling, (0, 1))
    made.tilings(replace(SUB, body=body))
    del body, tiling
    gc.collect()
    assert all(found() is not None for found in alive)


def test_measured_tilings_have_the_measured_proportion_to_the_one_that_the_model_likes() -> None:
    """Which keeps its time, like those that were not measured. What is hardly faster counts as as fast."""
    found = [Cut(2, fixed=fixed) for fixed in (28.0, 8.0, 18.0, 38.0, 48.0)]  # 30, 10, 20, 40, 50 ns
    measured = dict(zip(found, (200.0, 100.0, 50.0, 99.5), strict=False))
    ns = {timing_key(code_text(SUB.kernel, BODY, t), "l2"): taken for t, taken in measured.items()}
    made = CostBook(replace(CPU, timings=Timings(ns)), 1, lambda _: Offers(found))
    assert [made.partition(SUB, t, 1).longest_ns for t in found] == pytest.approx([20, 10, 5, made_even(10), 50])
    shares = made._shares_of(SUB)
    assert made._share(SUB, found[0]) == shares[id(found[0])]
    assert made._shares[SUB.kernel, id(BODY)] == shares
    kept = made._shares[SUB.kernel, id(BODY)]
    made._share(SUB, found[1])
    assert made._shares[SUB.kernel, id(BODY)] is kept


def made_even(ns: float) -> float:
    return settled_ns(0.995 * ns, ns)
