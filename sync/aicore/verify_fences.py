"""Where a program that was seen has fences: an operand whose loads come behind all stores of earlier calls.

Model: a fence at an operand is one where it holds on all cores that touch the operand. In a plan it promises more than
that, namely that loads further on, of that call and of later ones, come behind those stores as well. What was seen of
them is held against the promise, as far as they may read what was stored ahead of the fence: one that a load belies is
none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superkernel.scheduler.schedule import MemoryAccess, Space
from superkernel.sync.aicore.verify_seen import Called, Use


def fences(calls: Sequence[Sequence[Called]]) -> dict[int, frozenset[int]]:
    """By sub-operator, the operands that have fences. `calls`: of a launch, by core, in order."""
    found: dict[int, set[int]] = {}
    lacking: dict[int, set[int]] = {}
    for call in (call for core in calls for call in core):
        for operand, use in call.uses.items():
            if use.fenced is None:
                continue
            held = found if use.fenced >= call.number else lacking
            held.setdefault(call.task.subop, set()).add(operand)
    kept = {subop: operands - lacking.get(subop, set()) for subop, operands in found.items()}
    for core in calls:
        promised: list[Called] = []
        stores: dict[tuple[Space, int], list[tuple[int, MemoryAccess]]] = {}
        for call in core:
            behind = min((_behind(call, n, use, stores) for n, use in call.uses.items()), default=call.number)
            while promised and promised[-1].number > behind:
                kept[promised.pop().task.subop] = set()
            promised.append(call)
            for access in call.task.accesses:
                if access.write:
                    stores.setdefault((access.space, access.slot), []).append((call.number, access))
    return {subop: frozenset(operands) for subop, operands in kept.items() if operands}


def _behind(
    call: Called, operand: int, use: Use, stores: Mapping[tuple[Space, int], Sequence[tuple[int, MemoryAccess]]]
) -> int:
    """How many calls' stores an operand's loads come behind, as far as it reads what calls ahead of it may have
    stored; all of them where it reads nothing of the kind, whenever that is."""
    if use.fenced is None:
        return call.number
    for access in call.task.accesses:
        if access.write or access.operand not in (operand, None):
            continue
        for number, store in reversed(stores.get((access.space, access.slot), ())):
            if number < use.fenced:
                break
            if any(mine.overlaps(theirs) for mine in access.regions for theirs in store.regions):
                return use.fenced
    return call.number
