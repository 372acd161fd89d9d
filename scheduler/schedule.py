"""The schedule: which core does which part of which sub-operator, in which order, on which bytes.

Model: tasks stand in ONE global order, a topological order of the sub-operators; it is the meaning of the program
(running all tasks one after another in this order is right by construction). Each core runs its tasks in this order
too. Memory is planned already: accesses are absolute, so that the reuse of an address is a conflict like any other.

Text form: `str(schedule)`; tasks and accesses parse back with `parse_tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import UserError
from superkernel.core.frozen import frozen
from superkernel.core.tensor import Region
from superkernel.ir.body import SubOperator
from superkernel.scheduler.tiling import Access, Pack, Tiling


class Space(Enum):
    """An address space. Inputs, outputs and states have one per slot; arena, constants and the workspaces of the
    accelerator's kernels are one block each."""

    ARENA = "arena"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    CONSTANT = "constant"
    SCRATCH = "scratch"

    __hash__ = object.__hash__


_NAMES = {space: space.value for space in Space}  # which an enumeration is slow to tell


@frozen()
class MemoryAddress:
    """Where a buffer starts: space, slot within it (0 for arena and constants), byte offset."""

    space: Space
    slot: int
    offset: int

    def __str__(self) -> str:
        return f"{_NAMES[self.space]}{self.slot}@{self.offset}"


@frozen()
class MemoryAccess:
    """Bytes that a task reads or writes, absolute within (space, slot). `operand`: of the sub-operator, where a plan
    tells waits of operands apart. `dynamically_partitioned`: the tasks of the sub-operator write disjoint parts of
    these bytes, which ones is decided at run time. Neither is part of the text."""

    space: Space
    slot: int
    write: bool
    regions: tuple[Region, ...]
    operand: int | None = field(default=None, compare=False)
    dynamically_partitioned: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{'w' if self.write else 'r'}:{self.space.value}{self.slot}:{','.join(map(str, self.regions))}"

    @staticmethod
    def parse(text: str) -> MemoryAccess:
        """Inverse of `str()`. Raises UserError."""
        try:
            mode, where, regions = text.split(":")
            name = where.rstrip("0123456789")
            parsed = tuple(Region.parse(r) for r in regions.split(",") if r)
            return MemoryAccess(Space(name), int(where[len(name) :]), {"w": True, "r": False}[mode], parsed)
        except (ValueError, KeyError) as error:
            raise UserError("not an access", found=text, expected="r|w:SPACE:REGION,...") from error


@frozen()
class Task:
    """Units [begin, end) of a sub-operator on one core. `index` is its position in the global order."""

    index: int
    subop: int
    core: int
    begin: int
    end: int
    accesses: tuple[MemoryAccess, ...]

    def __str__(self) -> str:
        head = f"task {self.index} subop {self.subop} core {self.core} units {self.begin}..{self.end}"
        return " ".join([head, *map(str, self.accesses)])


@frozen()
class ConstantSlot:
    """A constant in the blob: graph value, packing (None: as it is), byte offset and size."""

    value: str
    pack: Pack | None
    offset: int
    nbytes: int


MADE: NDArray[Any] = np.zeros(0, np.uint8)
"""Stands for an array that planning made and that was stored packed only."""


class PackedConstants(Mapping[str, NDArray[Any]]):
    """Constants by name, and `blob` with all of them packed as a schedule says. What stands there as `MADE` is made
    anew by `again` where somebody asks for it: nobody does who runs the kernel."""

    def __init__(
        self, stored: Mapping[str, NDArray[Any]], blob: NDArray[np.uint8], again: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.blob = blob
        self._stored, self._again = stored, again

    def __getitem__(self, name: str) -> NDArray[Any]:
        found = self._stored[name]
        return self._again()[name] if found is MADE else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


@dataclass(frozen=True, slots=True)
class Copies:
    """A value of sub-operator `subop` that the groups of an accelerator compute each for itself: copy g of `count` lies
    g * `stride` bytes behind the operand's place. `uses`: (sub-operator, operand) of all who write or read it, each in
    the copy of its own group."""

    subop: int
    uses: tuple[tuple[int, int], ...]
    stride: int
    count: int

    def __str__(self) -> str:
        uses = " ".join(f"{i}.{k}" for i, k in self.uses)
        return f"copies of sub-operator {self.subop}: {self.count}, {self.stride} bytes apart, used by {uses}"


@dataclass(frozen=True)
class Schedule:
    """See the module docstring. `tilings` and `addresses` follow `subops`; `addresses[i]` has one per operand."""

    cores: int
    subops: tuple[SubOperator, ...]
    tilings: tuple[Tiling, ...]
    addresses: tuple[tuple[MemoryAddress, ...], ...]
    tasks: tuple[Task, ...]
    constants: tuple[ConstantSlot, ...]
    arena_bytes: int
    scratch_bytes: int
    notes: tuple[str, ...]  # per sub-operator: why it was placed so; none where nobody says

    def remarks(self) -> list[str]:
        """What a kind of target adds to the text, a line each."""
        return []

    def __str__(self) -> str:
        lines = [f"schedule cores {self.cores} arena {self.arena_bytes} scratch {self.scratch_bytes}"]
        for sub, tiling, addresses in zip(self.subops, self.tilings, self.addresses, strict=True):
            lines.append(f"# subop {sub.index} {sub.name} {sub.kernel} {tiling} at {' '.join(map(str, addresses))}")
        lines += [f"# {remark}" for remark in self.remarks()]
        return "\n".join(lines + [str(task) for task in self.tasks])


def parse_tasks(lines: Iterable[str]) -> tuple[Task, ...]:
    """The task lines of a schedule's text. Raises UserError on a malformed one."""
    tasks = []
    for line in lines:
        if not line.startswith("task "):
            continue
        words = line.split()
        try:
            begin, _, end = words[7].partition("..")
            accesses = tuple(MemoryAccess.parse(w) for w in words[8:])
            tasks.append(Task(int(words[1]), int(words[3]), int(words[5]), int(begin), int(end), accesses))
        except (IndexError, ValueError) as error:
            raise UserError("not a task line", found=line) from error
    return tuple(tasks)


def absolute(accesses: Sequence[Access], addresses: Sequence[MemoryAddress]) -> tuple[MemoryAccess, ...]:
    """Accesses relative to operands as accesses of address spaces."""
    found = []
    for access in accesses:
        address = addresses[access.operand]
        start, regions = address.offset, access.regions
        if start:
            regions = tuple([Region(start + r.start, r.length, r.stride, r.count) for r in regions])
        found.append(MemoryAccess(address.space, address.slot, access.write, regions))
    return tuple(found)
