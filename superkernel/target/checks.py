"""Relations between fields of a target description that no single field can see.

A relation is checked only where all fields it names have legal values, so that one wrong number is one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from superkernel.core.errors import Violation
from superkernel.target.schema import Value

ISA_PARTS = ("rv64i", "m", "a", "f", "d", "c")
EXTENSIONS_NEEDED = ("zicbop", "zihintpause")

Check = Callable[..., Iterator[Violation]]
_CHECKS: list[tuple[tuple[str, ...], Check]] = []


def _relation(*paths: str) -> Callable[[Check], Check]:
    """Registers a check over the values of `paths`."""

    def register(check: Check) -> Check:
        _CHECKS.append((paths, check))
        return check

    return register


def relations(values: Mapping[str, Value]) -> list[Violation]:
    """What is wrong between fields; `location` is the path of the field to fix."""
    found: list[Violation] = []
    for paths, check in _CHECKS:
        if all(path in values for path in paths):
            found.extend(check(*(values[path] for path in paths)))
    return found


@_relation("device.groups", "device.cube_cores_per_group", "device.cube_cores")
def _cube_cores(groups: int, ratio: int, cores: int) -> Iterator[Violation]:
    yield from _product("device.cube_cores", groups, ratio, cores)


@_relation("device.groups", "device.vector_cores_per_group", "device.vector_cores")
def _vector_cores(groups: int, ratio: int, cores: int) -> Iterator[Violation]:
    yield from _product("device.vector_cores", groups, ratio, cores)


def _product(path: str, groups: int, ratio: int, cores: int) -> Iterator[Violation]:
    if cores != groups * ratio:
        yield Violation(
            f"not groups x {path.split('.')[1]}_per_group",
            path,
            expected=f"{groups} x {ratio} = {groups * ratio}",
            found=str(cores),
        )


def _multiple(path: str, align: str) -> None:
    """Registers: the memory's size is a multiple of its alignment."""

    @_relation(path, align)
    def _check(size: int, step: int) -> Iterator[Violation]:
        if size % step:
            yield Violation(
                f"not a multiple of {align}", path, expected=f"a multiple of {step} (bytes)", found=str(size)
            )


for _path, _align in (
    ("memory.l1_bytes", "memory.block_bytes"),
    ("memory.ub_bytes", "memory.block_bytes"),
    ("memory.l0a_bytes", "memory.fractal_bytes"),
    ("memory.l0b_bytes", "memory.fractal_bytes"),
    ("memory.l0c_bytes", "memory.accumulator_bytes"),
    ("l2.capacity_bytes", "l2.line_bytes"),
    ("dma.aligned_bytes", "memory.block_bytes"),
):
    _multiple(_path, _align)


@_relation("memory.fractal_bytes", "memory.block_bytes", "cube.m", "cube.n")
def _fractal(fractal: int, block: int, m: int, n: int) -> Iterator[Violation]:
    if m != n:
        yield Violation("differs from cube.m: one fractal serves both operands", "cube.n", str(m), str(n))
    if fractal != m * block:
        expected = f"cube.m x memory.block_bytes = {m * block}"
        yield Violation("not one fractal", "memory.fractal_bytes", expected, str(fractal))


@_relation("memory.accumulator_bytes", "cube.m", "cube.n")
def _accumulator(size: int, m: int, n: int) -> Iterator[Violation]:
    if size != m * n * 4:
        expected = f"cube.m x cube.n x 4 = {m * n * 4}"
        yield Violation("not one block of accumulators", "memory.accumulator_bytes", expected, str(size))


def _icache(path: str) -> None:
    """Registers: sets are whole and a power of two."""

    @_relation(path, "icache.line_bytes", "icache.ways")
    def _check(size: int, line: int, ways: int) -> Iterator[Violation]:
        sets, rest = divmod(size, line * ways)
        if rest or sets < 1 or sets & (sets - 1):
            expected = f"a power of two times line_bytes x ways = {line * ways}"
            yield Violation("gives no power-of-two number of sets", path, expected, str(size))


for _path in ("icache.cube_bytes", "icache.vector_bytes", "icache.aicpu_bytes"):
    _icache(_path)


@_relation("icache.preload_unit_bytes", "icache.line_bytes")
def _preload(unit: int, line: int) -> Iterator[Violation]:
    if unit % line:
        expected = f"a multiple of icache.line_bytes = {line}"
        yield Violation("not whole lines", "icache.preload_unit_bytes", expected, str(unit))


@_relation("l2.line_bytes", "icache.line_bytes")
def _lines(outer: int, inner: int) -> Iterator[Violation]:
    if outer % inner:
        expected = f"a multiple of icache.line_bytes = {inner}"
        yield Violation("an instruction line would straddle L2 lines", "l2.line_bytes", expected, str(outer))


def _curve(sizes: str, rates: str) -> None:
    """Registers: as many rates as sizes."""

    @_relation(sizes, rates)
    def _check(xs: tuple[int, ...], ys: tuple[float, ...]) -> Iterator[Violation]:
        if len(xs) != len(ys):
            yield Violation(f"not one rate per size of {sizes}", rates, f"{len(xs)} rates", f"{len(ys)} rates")


_curve("dma.size_curve_bytes", "dma.size_curve_gb_per_s")
_curve("dma.working_set_bytes", "dma.working_set_gb_per_s")


@_relation("vector.lanes_16bit", "vector.lanes_32bit", "vector.lanes_special")
def _lanes(narrow: int, wide: int, special: int) -> Iterator[Violation]:
    if narrow < wide:
        yield Violation("fewer lanes than of 4 bytes", "vector.lanes_16bit", f"at least {wide}", str(narrow))
    if special > wide:
        yield Violation("more lanes than plain arithmetic has", "vector.lanes_special", f"at most {wide}", str(special))


@_relation("sync.core_full_ns", "sync.group_ns")
def _sync(full: int, group: int) -> Iterator[Violation]:
    if group > full:
        yield Violation("more expensive than all cores together", "sync.group_ns", f"at most {full}", str(group))


@_relation("dispatch.steady_ns", "dispatch.first_ns")
def _dispatch(steady: int, first: int) -> Iterator[Violation]:
    if first < steady:
        yield Violation("cheaper than a further one", "dispatch.first_ns", f"at least {steady}", str(first))


@_relation("control.isa")
def _isa(isa: str) -> Iterator[Violation]:
    base, *extensions = isa.lower().split("_")
    missing = [e for e in EXTENSIONS_NEEDED if e not in extensions]
    if base != "rv64imafdc" or missing:
        expected = f"rv64imafdc with {' and '.join(EXTENSIONS_NEEDED)}, joined by underscores"
        yield Violation("not an instruction set the compiler emits", "control.isa", expected, repr(isa))


_RANGES = {
    "map.page_address": "map.page_bytes",
    "map.ram_address": "map.ram_bytes",
    "map.clint_address": 0x10000,
    "map.exit_address": 0x1000,
    "map.console_address": 0x1000,
}


@_relation(*_RANGES, *(size for size in _RANGES.values() if isinstance(size, str)))
def _map(*given: Any) -> Iterator[Violation]:
    """Ranges of the address map are disjoint and end below 2^48."""
    starts = dict(zip(_RANGES, given, strict=False))
    sizes = dict(zip((s for s in _RANGES.values() if isinstance(s, str)), given[len(_RANGES) :], strict=True))
    spans = sorted((starts[p], starts[p] + (sizes[s] if isinstance(s, str) else s), p) for p, s in _RANGES.items())
    for (_, end, below), (start, _, path) in pairwise(spans):
        if start < end:
            yield Violation(f"overlaps {below}", path, f"an address from {end:#x} on, or below", f"{start:#x}")
    if spans[-1][1] > 1 << 48:
        yield Violation("ends above 2^48", spans[-1][2], "addresses of 48 bits", f"{spans[-1][1]:#x}")
