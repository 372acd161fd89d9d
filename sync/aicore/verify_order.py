"""Races of an accelerator plan: pairs of accesses to the same bytes that nothing orders.

A5 of `verify`: of each pair that `verify_pairs` asks for, is the earlier access complete when the later one begins,
given what its core knows there (`verify_replay`)? Which pairs those are follows from the tasks alone: whoever checks
many plans of the same tasks keeps the `Accesses`.

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import Violation
from superkernel.scheduler.schedule import Space
from superkernel.sync.aicore.plan import AicorePlan, Pause
from superkernel.sync.aicore.verify_replay import Replay
from superkernel.sync.verify_pairs import Accesses, Numbers


def check_order(plan: AicorePlan, replay: Replay, accesses: Accesses) -> Iterator[Violation]:
    """Pairs of accesses of which the later one's core may begin before the earlier one is complete: it does not know so
    much of the other core; or it is the same core, which reads what it wrote and has passed no fence. Tasks of one
    sub-operator on two cores nothing can order."""
    core, subop = accesses.core, accesses.subop
    reached = replay.reached(accesses)
    # What runs between two launches begins when all before it is complete.
    paused = [s.subop for program in plan.programs.values() for s in program if isinstance(s, Pause)]
    between = np.isin(subop, paused)
    shared = np.array([a.space is Space.SCRATCH or a.dynamically_partitioned for a in accesses.source], np.bool_)

    def late(earlier: Numbers, later: Numbers) -> NDArray[np.bool_]:
        same_core, step = core[earlier] == core[later], reached.step[earlier]
        found = reached.known[reached.row[later], core[earlier]] < step
        found |= same_core & ~accesses.write[later] & (step > reached.fenced[later])
        found &= ~between[later]
        beside = subop[earlier] == subop[later]
        return np.where(beside, ~same_core & ~(shared[earlier] & shared[later]), found)

    for a, b in accesses.racing(late):
        one, other, access = accesses.tasks[a], accesses.tasks[b], accesses.source[b]
        wanted = "a fence behind the core's own stores" if one.core == other.core else f"an event from core {one.core}"
        yield accesses.race(a, b, f"sub-operator {other.subop}, operand {access.operand}", wanted)
