"""Parts that the pages of all targets have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from superkernel.compilation.kernel_uses import KernelUse
from superkernel.display.charts import DataFlow, MemoryUse
from superkernel.display.page import PageTable
from superkernel.display.spans import WORKING, Recording
from superkernel.ir.body import Role
from superkernel.ir.graph import Graph
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.schedule import Schedule, Space


def flops_of(graph: Graph, schedule: Schedule | Grouping) -> tuple[float, ...]:
    """By sub-operator: operations of its graph nodes on all cores together, a multiply-add counted as two. A node's are
    counted once, for the first that has it: those behind copy what it computed."""
    uncounted = {node.name: node for node in graph.nodes}

    def flops(names: Collection[str]) -> float:
        found = [uncounted.pop(name) for name in names if name in uncounted]
        return float(
            sum(
                graph.definition(node).flops(graph.input_types(node), graph.output_types(node), node.attrs)
                for node in found
            )
        )

    return tuple(flops(sub.nodes) for sub in schedule.subops)


def kernels_table(uses: Iterable[KernelUse]) -> PageTable:
    """Why each kernel was chosen, and what it takes and promises."""
    rows = tuple(
        (
            use.subop, use.name, use.row, use.role, use.why + (f"; {use.fallback}" if use.fallback else ""),
            use.workspace_bytes, use.transfer_bytes, use.determinism, use.computed_in,
        )
        for use in uses
    )  # fmt: skip
    head = ("", "sub-operator", "kernel", "role", "why", "workspace bytes", "NumPy bytes", "repeats", "computed in")
    return PageTable("Why these kernels", head, rows)


def flow_of(schedule: Schedule, us: Mapping[int, float]) -> DataFlow:
    """The graph of sub-operators, with the us that each takes. Who reads what whom wrote follows from addresses: of
    what a sub-operator reads, each byte is of the last one ahead of it that wrote there."""
    edges = dict.fromkeys((writer, reader) for writer, reader, _ in _reads(schedule))
    nodes = tuple((sub.index, sub.name, us.get(sub.index, 0.0)) for sub in schedule.subops)
    return DataFlow(nodes, tuple(edges))


def values_read(schedule: Schedule) -> dict[tuple[int, int], str]:
    """By writer and reader: the first value that one reads of the other."""
    found: dict[tuple[int, int], str] = {}
    for writer, reader, value in _reads(schedule):
        found.setdefault((writer, reader), value)
    return found


def reading_in_words(schedule: Schedule) -> dict[int, str]:
    """By sub-operator that reads what others wrote: which value of whom, the first of them."""
    found: dict[int, list[tuple[int, str]]] = {}
    for writer, reader, value in _reads(schedule):
        found.setdefault(reader, []).append((writer, value))
    texts = {}
    for reader, rows in found.items():
        (writer, value), more = rows[0], len(rows) - 1
        behind = f", and {more} more" if more else ""
        texts[reader] = f"it reads {value!r} of sub-operator {writer} ({schedule.subops[writer].name}){behind}"
    return texts


def _reads(schedule: Schedule) -> Iterator[tuple[int, int, str]]:
    """Writer, reader and the reader's name of what it reads; of a copy that the groups of cores have, the value's."""
    written: dict[tuple[Space, int], list[tuple[int, int, int]]] = {}  # by space: begin, end, writer; newest last
    for sub, addresses in zip(schedule.subops, schedule.addresses, strict=True):
        rows = [
            (operand.role, value.partition("@")[0], (at.space, at.slot), at.offset, at.offset + operand.type.nbytes)
            for operand, value, at in zip(sub.body.operands, sub.values, addresses, strict=True)
            if at.space is not Space.CONSTANT
        ]
        for role, value, space, begin, end in rows:
            if role is not Role.OUTPUT:
                yield from ((writer, sub.index, value) for writer in _writers(written.get(space, []), begin, end))
        for role, _, space, begin, end in rows:
            if role in (Role.OUTPUT, Role.INOUT):
                kept = [piece for row in written.get(space, []) for piece in _without(row, begin, end)]
                written[space] = [*kept, (begin, end, sub.index)]


def _writers(rows: Iterable[tuple[int, int, int]], begin: int, end: int) -> Iterator[int]:
    return (writer for first, last, writer in rows if first < end and begin < last)


def _without(row: tuple[int, int, int], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """What is left of a row where others write [begin, end)."""
    first, last, writer = row
    if first < min(begin, last):
        yield first, min(begin, last), writer
    if max(end, first) < last:
        yield max(end, first), last, writer


def busy_times(recording: Recording) -> dict[int, tuple[float, float]]:
    """By sub-operator: when its first work begins and its last one ends, in us."""
    times: dict[int, tuple[float, float]] = {}
    for span in recording.spans:
        if span.subop is not None and span.activity in WORKING:
            begin, end = times.get(span.subop, (span.begin_us, span.end_us))
            times[span.subop] = min(begin, span.begin_us), max(end, span.end_us)
    return times


def memory_of(schedule: Schedule, recording: Recording) -> MemoryUse:
    """Which bytes of the arena hold something, over the time of a recording."""
    times = busy_times(recording)
    lives: dict[str, tuple[float, float, int, int]] = {}  # us, us, first and last byte
    for sub, addresses in zip(schedule.subops, schedule.addresses, strict=True):
        for value, operand, at in zip(sub.values, sub.body.operands, addresses, strict=True):
            if at.space is Space.ARENA and sub.index in times:
                begin, end = times[sub.index]
                first, last, *_ = lives.get(value, (begin, end))
                lives[value] = min(first, begin), max(last, end), at.offset, at.offset + operand.type.nbytes
    changes = sorted({us for begin, end, _, _ in lives.values() for us in (begin, end)})
    steps = tuple(
        (us, _covered((low, high) for begin, end, low, high in lives.values() if begin <= us < end)) for us in changes
    )
    return MemoryUse(steps, recording.duration_us, schedule.arena_bytes)


def _covered(ranges: Iterable[tuple[int, int]]) -> int:
    """Bytes in any of them: values may lie in one another."""
    total, reached = 0, 0
    for begin, end in sorted(ranges):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
