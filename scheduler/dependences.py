"""What orders the sub-operators of a grouping: the values that they share, and the streams that nodes name."""

from __future__ import annotations

from superkernel.ir.body import Role
from superkernel.scheduler.grouping import Grouping, view_chain


def dependences(grouping: Grouping) -> list[set[int]]:
    """For each sub-operator those that must come before it: readers after writers, overwriters after everybody else."""
    before: list[set[int]] = [set() for _ in grouping.subops]
    writers: dict[object, list[int]] = {}
    readers: dict[object, list[int]] = {}
    chains: dict[str, list[object]] = {}  # of each buffer, what it is a part of: itself first
    for at, sub in enumerate(grouping.subops):
        for name, operand in zip(sub.values, sub.body.operands, strict=True):
            if operand.role is Role.CONSTANT:
                continue
            buffer = grouping.buffers[name]
            chain = chains.get(name)
            if chain is None:
                wholes = view_chain(grouping.buffers, name)
                chain = chains[name] = [n if b.address is None else b.address for n, b, _ in wholes]
            if operand.role is Role.INPUT:  # of a part that nobody writes by itself: who writes what it lies in
                for whole in chain:
                    if whole in writers:
                        before[at].update(writers[whole])
                        break
                for whole in chain:
                    readers.setdefault(whole, []).append(at)
            elif operand.role is Role.INOUT or buffer.previous is not None:  # takes over bytes that others used
                before[at].update(writers.get(chain[0], ()))
                before[at].update(readers.get(chain[0], ()))
                writers.setdefault(chain[0], []).append(at)
            else:  # several may write different parts of one buffer
                for whole in chain:
                    writers.setdefault(whole, []).append(at)
        before[at].discard(at)
    return before


def issued(grouping: Grouping) -> list[set[int]]:
    """`dependences`, and the order of streams that nodes name: each sub-operator of one behind the one before it."""
    before = dependences(grouping)
    last: dict[int | str, int] = {}
    for index, sub in enumerate(grouping.subops):
        if sub.stream is not None:
            before[index] |= {last[sub.stream]} if sub.stream in last else set()
            last[sub.stream] = index
    return before
