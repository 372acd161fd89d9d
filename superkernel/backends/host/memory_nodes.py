"""Constants in the memory of the cores that read them, on machines with several memories (NUMA).

Model: a *node* is a memory and the CPUs next to it. Packed by one thread, all constants would lie in that thread's
node, and its memory would serve all cores. The plan says which cores read what. So a stretch of constants that cores of
one node read goes there, and those that cores of several nodes read go to these in turn, which makes all their memories
work. What launches write needs nothing: large buffers are mapped untouched, and lie where a core first writes them.

Invariant: a wish. No byte changes, nor any address; where the system refuses, pages stay where they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from superkernel import _core
from superkernel.codegen.host.constants import Bytes, HostConstants
from superkernel.scheduler.schedule import Schedule, Space

STRETCH_BYTES = 2 << 20
"""A huge page, which is in one node as a whole. Stretches begin at multiples of it."""


def place_constants(constants: HostConstants, schedule: Schedule, node_of: Sequence[int]) -> None:
    """Bring large constants where they are read. `node_of`: of the CPUs, in the order in which cores take them."""
    for memory, node in homes(constants, schedule, node_of):
        _core.move_to_node(memory, node)


def homes(constants: HostConstants, schedule: Schedule, node_of: Sequence[int]) -> Iterator[tuple[Bytes, int]]:
    """Parts of constants that no other kernel uses yet, each with its node; none where there is one node."""
    nodes = [node_of[core % len(node_of)] for core in range(schedule.cores)]
    if len({*nodes}) < 2:
        return
    readers = _readers(constants, schedule, nodes)
    home = {number: sorted(found)[number % len(found)] for number, found in readers.items()}
    for memory in constants.fresh:
        first = memory.ctypes.data
        stretches = range(first // STRETCH_BYTES, (first + len(memory) - 1) // STRETCH_BYTES + 1)
        for node, run in groupby(stretches, home.get):
            numbers = [*run]
            begin, end = (max(n * STRETCH_BYTES - first, 0) for n in (numbers[0], numbers[-1] + 1))
            if node is not None:
                yield memory[begin:end], node


def _readers(constants: HostConstants, schedule: Schedule, nodes: Sequence[int]) -> Mapping[int, set[int]]:
    """By number of a stretch, the nodes of the cores that read of it."""
    readers: dict[int, set[int]] = defaultdict(set)
    firsts = [memory.ctypes.data for memory in constants.shared]
    for task in schedule.tasks:
        for access in task.accesses:
            for region in access.regions if access.space is Space.CONSTANT else ():
                block, inner = constants.places.find(region.start)
                if block is None:
                    continue
                begin = firsts[block] + inner
                end = begin + region.stop - region.start
                for number in range(begin // STRETCH_BYTES, (end - 1) // STRETCH_BYTES + 1):
                    readers[number].add(nodes[task.core])
    return readers
