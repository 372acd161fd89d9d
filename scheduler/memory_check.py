"""The memory plan, checked: whoever reads a value finds that value and not what another buffer left at its address.

Model: the sub-operators are gone through in the global order. Each byte of every space has an owner, the buffer that
was last written there; a buffer that is a part of another one counts as that one. Reading an operand demands that its
buffer owns the operand's bytes; writing one makes its buffer the owner; overwriting in place demands that the bytes
belong to the version before. All operands that are one buffer, or parts of it, place it alike. In the end outputs and
updated states own their bytes. Together with the ordering that `sync` proves, every task reads what the global order
says.

It looks at addresses, types and views only, and shares no code with the planner of the memory. Reads count for the
whole operand (through a window onto a larger buffer, for the bytes that the views touch), writes for the very bytes
that the body stores.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from superkernel.core.errors import VerificationError, Violation, raise_all
from superkernel.core.tensor import Region, full_box, regions_of_box
from superkernel.ir.body import Body, PointwiseProgram, Role, SubOperator, View
from superkernel.scheduler.grouping import ValueBuffer, view_chain
from superkernel.scheduler.schedule import MemoryAddress, Space

MAX_RUNS = 4096


class ByteOwners:
    """Who owns which bytes of one address space: runs in order of address, each with its owner."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._names: list[str] = [""]  # "": nobody

    def claim(self, start: int, stop: int, name: str) -> None:
        """[start, stop) belongs to `name` from now on."""
        first = bisect_right(self._starts, start) - 1
        last = bisect_right(self._starts, stop) - 1
        after = self._names[last]
        keep = first + (self._starts[first] < start)
        tail = bisect_right(self._starts, stop - 1)
        rest = [] if tail < len(self._starts) and self._starts[tail] == stop else [(stop, after)]
        self._starts[keep:tail] = [start, *(s for s, _ in rest)]
        self._names[keep:tail] = [name, *(n for _, n in rest)]

    def strangers(self, start: int, stop: int, name: str) -> Iterator[tuple[int, int, str]]:
        """Runs of [start, stop) that belong to somebody else."""
        at = bisect_right(self._starts, start) - 1
        while at < len(self._starts) and self._starts[at] < stop:
            end = self._starts[at + 1] if at + 1 < len(self._starts) else stop
            if self._names[at] != name:
                yield max(start, self._starts[at]), min(stop, end), self._names[at]
            at += 1


def check_memory(
    subops: Sequence[SubOperator], addresses: Sequence[Sequence[MemoryAddress]], buffers: Mapping[str, ValueBuffer]
) -> None:
    """Raises VerificationError with every operand that would read, or overwrite in place, another buffer's bytes."""
    spaces: dict[tuple[Space, int], ByteOwners] = {}
    for name, buffer in buffers.items():
        address = buffer.address
        if address is not None and address.space in (Space.INPUT, Space.STATE) and buffer.previous is None:
            owners = spaces.setdefault((address.space, address.slot), ByteOwners())
            owners.claim(0, buffer.type.nbytes, name)
    wrong: list[Violation] = []
    known: dict[tuple[int, int, bool], list[tuple[int, int]]] = {}

    def runs_of(body: Body, operand: int, written: bool) -> list[tuple[int, int]]:
        """Asked once of each body: many sub-operators share one."""
        key = (id(body), operand, written)
        if key not in known:
            known[key] = list(written_runs(body, operand) if written else read_runs(body, operand))
        return known[key]

    wholes = {value: _whole(value, buffers) for sub in subops for value in sub.values}
    places: dict[str, tuple[Space, int, int]] = {}
    for sub, row in zip(subops, addresses, strict=True):
        uses = list(zip(sub.values, sub.body.operands, row, strict=True))
        for index, (value, operand, address) in enumerate(uses):
            wanted, inside = wholes[value]
            place = address.space, address.slot, address.offset - inside
            if operand.role is not Role.CONSTANT and places.setdefault(wanted, place) != place:
                space, slot, start = places[wanted]
                where = f"sub-operator {sub.index} ({sub.name}), operand {value!r}"
                meant = f"{space.value}{slot} from byte {start + inside} on"
                found = f"{address.space.value}{address.slot} from byte {address.offset} on"
                wrong.append(Violation("a buffer lies at two places", where, meant, found))
            if operand.role is Role.INOUT:
                wanted = buffers[wanted].previous or wanted
            if operand.role in (Role.OUTPUT, Role.CONSTANT) or not operand.type.nbytes:
                continue
            owners = spaces.setdefault((address.space, address.slot), ByteOwners())
            runs = runs_of(sub.body, index, False) if _is_window(value, buffers) else [(0, operand.type.nbytes)]
            strange = (
                found for a, b in runs for found in owners.strangers(address.offset + a, address.offset + b, wanted)
            )
            for start, stop, owner in strange:
                found = f"bytes {start}..{stop} of {address.space.value}{address.slot} hold {owner or 'nothing'!r}"
                where = f"sub-operator {sub.index} ({sub.name}), operand {value!r}"
                wrong.append(Violation("the operand's bytes are not its own", where, wanted, found))
        for index, (value, operand, address) in enumerate(uses):
            if operand.role in (Role.OUTPUT, Role.INOUT) and operand.type.nbytes:
                owners = spaces.setdefault((address.space, address.slot), ByteOwners())
                for start, stop in runs_of(sub.body, index, True):
                    owners.claim(address.offset + start, address.offset + stop, wholes[value][0])
    replaced = {buffer.previous for buffer in buffers.values()}
    for name, buffer in buffers.items():
        address = buffer.address
        if address is None or name in replaced or not (address.space is Space.OUTPUT or buffer.previous):
            continue
        owners = spaces.get((address.space, address.slot), ByteOwners())
        for start, stop, owner in owners.strangers(0, buffer.type.nbytes, name):
            found = f"bytes {start}..{stop} hold {owner or 'nothing'!r}"
            wrong.append(Violation("a result is not what was to be left there", str(address), name, found))
    raise_all(VerificationError, wrong)


def written_runs(body: Body, operand: int) -> Iterator[tuple[int, int]]:
    """The bytes of an operand that the body stores, as runs relative to its start; with very many runs their bounds."""
    kind = body.operands[operand].type
    if body.operands[operand].role is Role.INOUT:
        yield 0, kind.nbytes
        return
    for program in (body.epilogue, *(p for p in body.anchor_inputs if isinstance(p, PointwiseProgram))):
        for out in program.outputs:
            if out.target == operand:
                box = full_box(program.shape)
                yield from _runs(regions_of_box(box, out.strides, kind.dtype.itemsize, out.offset))


def read_runs(body: Body, operand: int) -> Iterator[tuple[int, int]]:
    """The bytes of an operand that the body's views and programs read, as runs relative to its start."""
    itemsize = body.operands[operand].type.dtype.itemsize
    for feed in (body.epilogue, *body.anchor_inputs):
        if isinstance(feed, View) and feed.operand == operand:
            yield from _runs(feed.regions(itemsize))
        elif isinstance(feed, PointwiseProgram):
            for load in feed.inputs:
                if load.source == operand:
                    yield from _runs(regions_of_box(full_box(feed.shape), load.strides, itemsize, load.offset))


def _runs(regions: Iterable[Region]) -> Iterator[tuple[int, int]]:
    for region in regions:
        if region.count > MAX_RUNS:
            yield region.start, region.stop
            continue
        for i in range(region.count):
            start = region.start + i * region.stride
            yield start, start + region.length


def _checked_chain(name: str, buffers: Mapping[str, ValueBuffer]) -> Iterator[tuple[str, ValueBuffer, int]]:
    """`view_chain`, of buffers that may be anything."""
    for step, found in enumerate(view_chain(buffers, name)):
        if step > len(buffers):
            raise VerificationError("a buffer that is a part of itself", found=name)
        yield found


def _is_window(name: str, buffers: Mapping[str, ValueBuffer]) -> bool:
    """True of a buffer that shares all bytes of the one it lies in, and of a part of such a one."""
    if buffers[name].inside is None:
        return False
    kinds = [buffer.type for _, buffer, _ in _checked_chain(name, buffers)]
    return any(inner == outer for inner, outer in pairwise(kinds))


def _whole(name: str, buffers: Mapping[str, ValueBuffer]) -> tuple[str, int]:
    """The buffer that a buffer is a part of in the end, and its byte offset there."""
    if buffers[name].inside is None:  # most are
        return name, 0
    *_, (whole, _, offset) = _checked_chain(name, buffers)
    return whole, offset
