"""The accelerator's verifier as a whole: every check is asked, and the certificate counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand_plans import ALL, CUBE, GROUP, plan_of, read, tasks_of, write

from superkernel.core.errors import VerificationError
from superkernel.scheduler.schedule import Copies
from superkernel.sync.aicore.plan import AicorePlan, Await, AwaitCount, Run, Signal
from superkernel.sync.aicore.verify import check_aicore_plan, verify_aicore
from superkernel.sync.verify import Emitted
from superkernel.sync.verify_pairs import Accesses

TASKS = tasks_of(
    (0, 0, (write(0, 8, 0), write(8, 8, 1))),
    (0, 1, (write(16, 8, 0),)),
    (1, 2, (read(0, 8, 0), read(8, 8, 1), write(32, 8, 2))),
    (1, 4, (read(16, 8, 0), write(40, 8, 2))),
    (2, 2, (write(32, 8, 0), write(36, 4, 1))),
)


def plan(**changes: Any) -> AicorePlan:
    parts: dict[str, Any] = {"tasks": TASKS, "cube": [Run(0), Signal(0)], "vector": [Await(0, 1), Run(1), Run(2)]}
    return plan_of(**parts | {"events": [(GROUP, CUBE, 0)]} | changes)


def test_the_certificate_counts() -> None:
    """Pairs of accesses of different sub-operators, one of them a write, whose ranges meet."""
    found = verify_aicore(replace(plan(), tasks=TASKS[:4]), {0: 2, 1: 2})
    assert (found.tasks, found.cores, found.events, found.awaits) == (4, 6, 1, 1)
    assert (found.conflicting_pairs, found.cross_core_pairs) == (3, 3)
    assert str(found) == (
        "certificate: 4 tasks on 6 cores, 1 event, 1 await; 3 pairs of accesses whose address ranges meet (3 across "
        "cores): none races; no deadlock; no flag above its limit"
    )


def test_the_certificate_says_which_program_it_covers() -> None:
    """Each digest is told by its first 16 characters."""
    digests = [letter + "0123456789abcdef" for letter in "wxyz"]
    calls, addresses, accesses, objects = (digest[:16] for digest in digests)
    found = replace(verify_aicore(plan()), emitted=Emitted(*digests))
    assert str(found).splitlines()[1:] == [
        f"covers the program as linked: calls, signals and waits {calls}, addresses {addresses}, accesses {accesses}, "
        f"ELF file {objects}",
        "does not cover: paths that only data take, the order of commands within a kernel and its workspace, the "
        "processor (docs/reliability.md)",
    ]


def test_pairs_of_one_sub_operator_are_not_counted_and_those_of_one_core_are_no_others() -> None:
    """Sub-operator 2 writes bytes 36 to 40 twice, and bytes that its core wrote before."""
    tasks = TASKS[:3] + tuple(replace(task, index=3) for task in TASKS[4:])
    found = verify_aicore(plan(tasks=tasks))
    assert (found.conflicting_pairs, found.cross_core_pairs) == (4, 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cube": [Run(0)]}, "signalled as often"),
        ({"vector": [Await(0, 1), Run(2), Run(1)]}, "global order"),
        ({"service": ((AwaitCount(CUBE, 1),),)}, "nobody notifies so often"),
        ({"copies": (Copies(1, ((1, 2), (2, 0)), 0, 1), Copies(1, ((1, 0),), 0, 1))}, "not computed for it"),
        ({"vector": [Run(1), Await(0, 1), Run(2)]}, "race"),
        ({"cube": [Await(1, 0), Run(0), Signal(0), Signal(1)], "vector": [Await(0, 1), Signal(1), Await(1, 1), Run(1),
          Run(2)], "events": [(GROUP, CUBE, 0), (ALL, None, 1)]}, "deadlock"),
    ],
)  # fmt: skip
def test_each_check_is_asked(changes: dict[str, Any], says: str) -> None:
    wrong, certificate = check_aicore_plan(plan(**changes))
    assert certificate is None
    assert any(says in violation.message for violation in wrong)
    with pytest.raises(VerificationError, match=says):
        verify_aicore(plan(**changes))


def test_counts_and_races_are_told_together() -> None:
    signals = [Signal(n) for n in range(3)]
    made = plan(
        cube=[*signals, Run(0)],
        vector=[*(Await(n, 1) for n in range(3)), Run(1), Run(2)],
        events=[(GROUP, CUBE, 0)] * 3,
    )
    messages = [violation.message for violation in check_aicore_plan(made)[0]]
    assert messages[0] == "a count can exceed its limit"
    assert all(message.startswith("race") for message in messages[1:])
    assert len(messages) == 3


def test_units_are_told_to_all_checks() -> None:
    with pytest.raises(VerificationError, match="units are left out or invented; expected 3; found 2"):
        verify_aicore(plan(), {0: 3})
    copies = (Copies(1, ((1, 2),), 8, 2),)
    assert check_aicore_plan(plan(copies=copies))[1] is not None
    with pytest.raises(VerificationError, match="units are invented"):
        verify_aicore(plan(copies=copies), {1: 1})


def test_accesses_of_the_same_tasks_may_be_kept() -> None:
    """Those that are given are the ones that are looked at."""
    accesses = Accesses(TASKS)
    late = {"vector": [Run(1), Await(0, 1), Run(2)]}
    wrong, _ = check_aicore_plan(plan(**late), None, accesses)
    assert len(wrong) == 2
    others = Accesses(TASKS[4:])
    assert check_aicore_plan(plan(**late), None, others)[0] == []
