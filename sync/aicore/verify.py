"""The independent verifier of accelerator plans: proves a plan free of races and deadlocks, or says what is wrong.

It reads tasks, events and the programs: the two of the cores, and that of the aicpu hart where there is one. It checks:

 A1  each sub-operator with tasks on a type of core is run exactly once by its program, in the global order; tasks
     stand on cores of types that run them; their units are covered without gap or overlap, but where groups compute
    what they read each for itself;
 A2  every event is signalled once by each type that sets it and awaited once by each type whose counts it grows;
 A3  at a type of cores a flag counts for events of one mode and one type of setters; a word in memory is one event's;
 A4  no deadlock: executing the programs with nothing but their signals and awaits, both reach their end;
 A5  every pair of overlapping accesses, at least one of them a write, is ordered by happens-before in the global
     order; on one core a read behind the core's own write needs a fence between them; tasks of one sub-operator on
     different cores conflict in its workspace only, and where they write what is divided among them at run time;
 A6  no count of a flag can exceed its limit, however far the setters run ahead;
 A7  no event is under way where a launch ends; inputs and constants are never written;
 A8  the service hart comes to the end of its programs, and prefetches what is used (`verify_service`);
 A9  where all cores of a type meet inside a kernel, cores without units of it come as often;
 A10 where groups compute a value each for itself, each reads what was computed into its own copy (`verify_copies`).

Happens-before: a signal publishes what its core has completed and learnt; an await propagates what the signals it needs
have published. A vector clock per core: up to which step of each other core's program. A wait inside a kernel
counts for the operand it stands at, and for everything behind the kernel. A flag carries no name: which signals a take
stands for follows from its number alone (`verify_replay` states the rule).

Not checked: that declared accesses are what the kernels do (the simulator checks every one), that a kernel orders its
own commands, and that what is partitioned at run time is disjoint (the simulator's race detection does both).

The checks stand beside this file: `verify_form` (A1 to A3, A7, A9), `verify_replay` (A4, A6, A7), `verify_order` (A5),
`verify_service` (A8), `verify_copies` (A10). The pairs of A5 come from `verify_pairs`, as on the host. Of a linked
program `verify_program` makes the plan that all this is asked of.

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superkernel.core.collection import paused
from superkernel.core.counted import counted
from superkernel.core.errors import VerificationError, Violation
from superkernel.sync.aicore.plan import AicorePlan
from superkernel.sync.aicore.verify_copies import check_copies
from superkernel.sync.aicore.verify_form import check_form
from superkernel.sync.aicore.verify_order import check_order
from superkernel.sync.aicore.verify_replay import Replay, check_counts
from superkernel.sync.aicore.verify_service import check_service
from superkernel.sync.verify import Emitted
from superkernel.sync.verify_pairs import Accesses


@dataclass(frozen=True, slots=True)
class AicoreCertificate:
    """What was proved, in numbers. `emitted`: of which program; None: of a plan."""

    tasks: int
    cores: int
    events: int
    awaits: int
    conflicting_pairs: int
    cross_core_pairs: int
    emitted: Emitted | None = None

    def __str__(self) -> str:
        text = (
            f"certificate: {counted(self.tasks, 'task')} on {counted(self.cores, 'core')}, "
            f"{counted(self.events, 'event')}, {counted(self.awaits, 'await')}; "
            f"{counted(self.conflicting_pairs, 'pair')} of accesses whose address ranges meet ({self.cross_core_pairs} "
            "across cores): none races; no deadlock; no flag above its limit"
        )
        if self.emitted is None:
            return text
        seen = self.emitted
        return (
            f"{text}\ncovers the program as linked: calls, signals and waits {seen.program[:16]}, addresses "
            f"{seen.addresses[:16]}, accesses {seen.accesses[:16]}, ELF file {seen.objects[:16]}\n"
            "does not cover: paths that only data take, the order of commands within a kernel and its workspace, "
            "the processor (docs/reliability.md)"
        )


def verify_aicore(plan: AicorePlan, units: Mapping[int, int] | None = None) -> AicoreCertificate:
    """Check A1 to A10. `units`: number of units by sub-operator. Raises VerificationError with every violation."""
    wrong, certificate = check_aicore_plan(plan, units)
    if certificate is None:
        raise VerificationError(violations=wrong)
    return certificate


@paused()
def check_aicore_plan(
    plan: AicorePlan, units: Mapping[int, int] | None = None, accesses: Accesses | None = None
) -> tuple[list[Violation], AicoreCertificate | None]:
    """As `verify_aicore`, but returns the violations. `accesses`: of the plan's tasks, kept from another plan."""
    wrong = [*check_form(plan, units or {}), *check_service(plan), *check_copies(plan, units or {})]
    if wrong:
        return wrong, None
    replay = Replay(plan)
    wrong = replay.run()
    if wrong:
        return wrong, None
    accesses = accesses or Accesses(plan.tasks)
    wrong = [*check_counts(plan, replay), *check_order(plan, replay, accesses)]
    if wrong:
        return wrong, None
    within_subop = accesses.count_overlaps(accesses.subop)
    pairs = accesses.count_overlaps() - within_subop
    within_core = accesses.count_overlaps(accesses.core) - accesses.count_overlaps(accesses.core, accesses.subop)
    sizes = (len(plan.tasks), plan.harts, len(plan.events), plan.waits)
    return [], AicoreCertificate(*sizes, pairs, pairs - within_core)
