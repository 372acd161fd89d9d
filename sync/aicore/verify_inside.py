"""What cores do to one another inside kernels: signals and waits that no plan knows of.

Model: a flag that is set inside kernels, between a `Called` and its `Returned`, is a flag of kernels alone. In a call a
core takes such a flag as often as it was given: in mode `group` by all cores of the other type in its group, each of
which must set it equally often; in mode `pair` by the first core of the other type there, if it is the first of its
own; in mode `type`, a *barrier*, once for each time that it sets the flag itself, since all cores of its type meet
equally often. Cores without units of the sub-operator must join (`verify_program`).

It checks of each sub-operator in each launch:

 E4  inside kernels cores signal one another as often as they wait, with flags that nobody else has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from superkernel.core.errors import Violation
from superkernel.sync.aicore.plan import AicorePlan, CoreKind
from superkernel.sync.aicore.verify_seen import Called, Lines, Returned, Seen, SetFlag, TakeFlag

_Counts: TypeAlias = Counter[tuple[str, int]]
"""Of a call: how often a flag was set in a mode, or taken ("take")."""


def inner_flags(lines: Lines) -> frozenset[int]:
    """Flags that are set inside kernels."""
    found = set()
    for launch in lines:
        for hart in launch:
            inside = False
            for event in hart:
                if isinstance(event, (Called, Returned)):
                    inside = isinstance(event, Called)
                elif isinstance(event, SetFlag) and inside:
                    found.add(event.flag)
    return frozenset(found)


def check_inside(lines: Lines, inner: frozenset[int], frame: AicorePlan) -> tuple[dict[int, int], list[Violation]]:
    """How often all cores of a type meet in a sub-operator, of those in which they do, and what is wrong. `frame`:
    which cores there are."""
    barriers: dict[int, int] = {}
    wrong: list[Violation] = []
    for launch, harts in enumerate(lines):
        for subop, cores in _told(harts[: frame.total], inner).items():
            barriers[subop] = max(_met(counts) for counts in cores.values())
            where = f"launch {launch}, sub-operator {subop}"
            wrong += _check_calls(where, cores, barriers[subop], frame)
    return {subop: times for subop, times in barriers.items() if times}, wrong


def _told(harts: Sequence[Sequence[Seen]], inner: frozenset[int]) -> dict[int, dict[int, _Counts]]:
    """What cores tell one another in their calls, by sub-operator and core."""
    told: dict[int, dict[int, _Counts]] = {}
    for core, events in enumerate(harts):
        inside: _Counts | None = None
        for event in events:
            if isinstance(event, Called):
                inside = told.setdefault(event.task.subop, {})[core] = Counter()
            elif isinstance(event, Returned):
                inside = None
            elif inside is not None and isinstance(event, SetFlag):
                inside[event.mode.value, event.flag] += 1
            elif inside is not None and isinstance(event, TakeFlag) and event.flag in inner:
                inside["take", event.flag] += 1
    return told


def _check_calls(where: str, cores: Mapping[int, _Counts], met: int, frame: AicorePlan) -> Iterator[Violation]:
    """The calls of one sub-operator, by core, some of which meet so often."""
    nothing: _Counts = Counter()
    flags = sorted({flag for counts in cores.values() for _, flag in counts})
    for core in range(frame.total) if flags else ():
        counts = cores.get(core, nothing)
        others = [
            cores.get(c, nothing)
            for kind in CoreKind
            for c in frame.cores(kind)
            if kind is not frame.kind(core) and frame.group(c) == frame.group(core)
        ]
        partner = cores.get(_partner(core, frame), nothing)
        for flag in flags:
            given = {other["group", flag] for other in others} or {0}
            wanted = counts["type", flag] + min(given) + partner["pair", flag]
            if counts["take", flag] != wanted or len(given) > 1 or counts["all", flag]:
                yield Violation(
                    "cores signal one another inside a kernel, and not as often as they wait",
                    f"{where}, core {core}, flag {flag}", str(wanted), str(counts["take", flag]),
                )  # fmt: skip
        if core in cores and _met(counts) != met:
            yield Violation("cores meet inside a kernel, and not equally often", f"{where}, core {core}")


def _partner(core: int, frame: AicorePlan) -> int:
    """The core that signals a core in mode `pair`; -1: none does."""
    first = {kind: next((c for c in frame.cores(kind) if frame.group(c) == frame.group(core)), -1) for kind in CoreKind}
    kind = CoreKind.CUBE if core in frame.cores(CoreKind.CUBE) else CoreKind.VECTOR
    return first[kind.other] if core == first[kind] else -1


def _met(counts: Counter[tuple[str, int]]) -> int:
    return sum(times for (what, _), times in counts.items() if what == "type")
