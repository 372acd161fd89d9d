"""Relations between fields of a target description that no single field can see.

A relation is checked only where all fields it names have legal values, so that one wrong number is one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from superkernel.core.errors import Violation
from superkernel.target.schema import Value

EXTENSIONS_NEEDED = ("zicbop", "zihintpause")


class _Relation(NamedTuple):
    """`holds` and `expected` (in words) take the values of `paths`; the first of them is the field to fix."""

    message: str
    paths: tuple[str, ...]
    holds: Callable[..., bool]
    expected: Callable[..., str]


def _cores(kind: str) -> _Relation:
    return _Relation(
        f"not groups x {kind}_per_group",
        (f"device.{kind}", "device.groups", f"device.{kind}_per_group"),
        lambda cores, groups, ratio: cores == groups * ratio,
        lambda cores, groups, ratio: f"{groups} x {ratio} = {groups * ratio}",
    )


def _multiple(path: str, step: str, message: str = "", unit: str = "") -> _Relation:
    return _Relation(
        message or f"not a multiple of {step}",
        (path, step),
        lambda value, of: value % of == 0,
        lambda value, of: f"a multiple of {unit}{of}" if unit else f"a multiple of {of} (bytes)",
    )


def _sets(path: str) -> _Relation:
    def is_whole(size: int, line: int, ways: int) -> bool:
        sets, rest = divmod(size, line * ways)
        return not rest and sets > 0 and sets & (sets - 1) == 0

    return _Relation(
        "gives no power-of-two number of sets",
        (path, "icache.line_bytes", "icache.ways"),
        is_whole,
        lambda size, line, ways: f"a power of two times line_bytes x ways = {line * ways}",
    )


def _curve(sizes: str, rates: str) -> _Relation:
    return _Relation(
        f"not one rate per size of {sizes}",
        (rates, sizes),
        lambda ys, xs: len(xs) == len(ys),
        lambda ys, xs: f"{len(xs)} rates",
    )


def _at_least(path: str, other: str, message: str) -> _Relation:
    return _Relation(message, (path, other), lambda a, b: a >= b, lambda a, b: f"at least {b}")


def _at_most(path: str, other: str, message: str) -> _Relation:
    return _Relation(message, (path, other), lambda a, b: a <= b, lambda a, b: f"at most {b}")


def _is_emitted(isa: str) -> bool:
    base, *extensions = isa.lower().split("_")
    return base == "rv64imafdc" and set(EXTENSIONS_NEEDED) <= set(extensions)


_RELATIONS = (
    _cores("cube_cores"),
    _cores("vector_cores"),
    _multiple("memory.l1_bytes", "memory.block_bytes"),
    _multiple("memory.ub_bytes", "memory.block_bytes"),
    _multiple("memory.l0a_bytes", "memory.fractal_bytes"),
    _multiple("memory.l0b_bytes", "memory.fractal_bytes"),
    _multiple("memory.l0c_bytes", "memory.accumulator_bytes"),
    _multiple("l2.capacity_bytes", "l2.line_bytes"),
    _multiple("dma.aligned_bytes", "memory.block_bytes"),
    _Relation(
        "differs from cube.m: one fractal serves both operands",
        ("cube.n", "cube.m"),
        lambda n, m: n == m,
        lambda n, m: str(m),
    ),
    _Relation(
        "not one fractal",
        ("memory.fractal_bytes", "memory.block_bytes", "cube.m"),
        lambda fractal, block, m: fractal == m * block,
        lambda fractal, block, m: f"cube.m x memory.block_bytes = {m * block}",
    ),
    _Relation(
        "not one block of accumulators",
        ("memory.accumulator_bytes", "cube.m", "cube.n"),
        lambda size, m, n: size == m * n * 4,
        lambda size, m, n: f"cube.m x cube.n x 4 = {m * n * 4}",
    ),
    *(_sets(f"icache.{unit}_bytes") for unit in ("cube", "vector", "aicpu")),
    _multiple(
        "l2.line_bytes", "icache.line_bytes", "an instruction line would straddle L2 lines", "icache.line_bytes = "
    ),
    _curve("dma.size_curve_bytes", "dma.size_curve_gb_per_s"),
    _curve("dma.working_set_bytes", "dma.working_set_gb_per_s"),
    _at_least("vector.lanes_16bit", "vector.lanes_32bit", "fewer lanes than of 4 bytes"),
    _at_most("vector.lanes_special", "vector.lanes_32bit", "more lanes than plain arithmetic has"),
    _at_most("sync.group_ns", "sync.core_full_ns", "more expensive than all cores together"),
    _at_least("dispatch.first_ns", "dispatch.steady_ns", "cheaper than a further one"),
    _Relation(
        "not an instruction set the compiler emits",
        ("control.isa",),
        _is_emitted,
        lambda isa: f"rv64imafdc with {' and '.join(EXTENSIONS_NEEDED)}, joined by underscores",
    ),
)
_RANGES = {
    "map.page_address": "map.page_bytes",
    "map.ram_address": "map.ram_bytes",
    "map.clint_address": 0x10000,
    "map.exit_address": 0x1000,
    "map.console_address": 0x1000,
}


def relations(values: Mapping[str, Value]) -> list[Violation]:
    """What is wrong between fields; `location` is the path of the field to fix."""
    found: list[Violation] = []
    for relation in _RELATIONS:
        given: list[Any] = [values[path] for path in relation.paths if path in values]
        if len(given) == len(relation.paths) and not relation.holds(*given):
            first = given[0]
            shown = f"{len(first)} rates" if isinstance(first, tuple) else repr(first)
            found.append(Violation(relation.message, relation.paths[0], relation.expected(*given), shown))
    return [*found, *_address_map(values)]


def _address_map(values: Mapping[str, Any]) -> Iterator[Violation]:
    """Ranges of the address map are disjoint and end below 2^48."""
    if any(path not in values for pair in _RANGES.items() for path in pair if isinstance(path, str)):
        return
    sizes = {path: values[size] if isinstance(size, str) else size for path, size in _RANGES.items()}
    spans = sorted((values[path], values[path] + size, path) for path, size in sizes.items())
    for (_, end, below), (start, _, path) in pairwise(spans):
        if start < end:
            yield Violation(f"overlaps {below}", path, f"an address from {end:#x} on, or below", f"{start:#x}")
    if spans[-1][1] > 1 << 48:
        yield Violation("ends above 2^48", spans[-1][2], "addresses of 48 bits", f"{spans[-1][1]:#x}")
