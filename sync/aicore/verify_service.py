"""The part of the verifier that looks at the service hart's programs. It checks:

 A8  in each launch, notifications of a type are counted from 1, and the service hart awaits each of them; every count
     that it awaits is reached in the same launch (else it never ends), and its steps await no count below an earlier
     one of the type; a prefetch stands in the launch of the sub-operator that it is for, is of constants that this one
     reads, and does not wait for a point behind it.

Cores never wait for the service hart, so that it can add no cycle to the waits among them: no step of a core's program
names it.

Architecture invariant: imports plain data types only, nothing of what makes the programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from superkernel.core.errors import Violation
from superkernel.scheduler.schedule import Space
from superkernel.sync.aicore.plan import AicorePlan, AwaitCount, HartKind, LaunchEnd, Notify, Pause, Prefetch, Run

LINE_BYTES = 512  # what a prefetch may be rounded to at either end


@dataclass
class _Progress:
    """What the cores' programs say: `behind[launch, type]` has, per notification, the last sub-operator of that type
    ahead of it (-1: none in the launch); `launch_of` a sub-operator's launch."""

    behind: dict[tuple[int, HartKind], list[int]] = field(default_factory=dict)
    launch_of: dict[int, int] = field(default_factory=dict)
    launches: int = 1


def check_service(plan: AicorePlan) -> Iterator[Violation]:
    """A8, see the module docstring."""
    progress = _Progress()
    for kind in plan.programs:
        yield from _read(plan, kind, progress)
    if len(plan.service) > progress.launches:
        yield Violation("service programs without a launch", "service", str(progress.launches), str(len(plan.service)))
    for launch in range(len(plan.service)):
        yield from _check(plan, launch, progress)
    yield from _unawaited(plan, progress)


def _read(plan: AicorePlan, kind: HartKind, progress: _Progress) -> Iterator[Violation]:
    launch = counted = 0
    last = -1
    for step in plan.programs[kind]:
        if isinstance(step, Notify):
            counted += 1
            progress.behind.setdefault((launch, kind), []).append(last)
            if step.count != counted:
                where = f"program {kind.value}, launch {launch}"
                yield Violation("notifications are not counted from 1", where, str(counted), str(step.count))
        elif isinstance(step, Run):
            progress.launch_of[step.subop] = launch
            last = step.subop
        elif isinstance(step, (Pause, LaunchEnd)):
            launch, counted, last = launch + 1, 0, -1
    progress.launches = max(progress.launches, launch + 1)


def _check(plan: AicorePlan, launch: int, progress: _Progress) -> Iterator[Violation]:
    reached = -1  # the cores are behind this sub-operator, or further
    last: dict[HartKind, int] = {}
    for number, step in enumerate(plan.service[launch]):
        where = f"service of launch {launch}, step {number}: {step}"
        if isinstance(step, AwaitCount):
            behind = progress.behind.get((launch, step.kind), [])
            if not 1 <= step.count <= len(behind):
                yield Violation("deadlock: nobody notifies so often", where, f"1 to {len(behind)}", str(step.count))
                continue
            if step.count < last.get(step.kind, 0):
                yield Violation("awaits what it has awaited", where, f"at least {last[step.kind]}", str(step.count))
            last[step.kind] = step.count
            reached = max(reached, behind[step.count - 1])
        else:
            if progress.launch_of.get(step.subop) != launch:
                found = f"launch {progress.launch_of.get(step.subop)}"
                yield Violation("a prefetch for another launch", where, f"launch {launch}", found)
            if reached >= step.subop:
                yield Violation("a prefetch waits until its use is over", where, f"below {step.subop}", str(reached))
            if not _is_read(plan, step):
                yield Violation("a prefetch of what its sub-operator does not read", where, "its constants")


def _unawaited(plan: AicorePlan, progress: _Progress) -> Iterator[Violation]:
    """Notifications that nobody awaits: a wait is missing, without which prefetches come earlier than planned."""
    for (launch, kind), behind in progress.behind.items():
        service = plan.service[launch] if launch < len(plan.service) else ()
        observed = {step.count for step in service if isinstance(step, AwaitCount) and step.kind is kind}
        for count in sorted(set(range(1, len(behind) + 1)) - observed):
            where = f"service of launch {launch}, {kind.value} count {count}"
            yield Violation("a notification that nobody awaits", where, "an await of it", "none")


def _is_read(plan: AicorePlan, step: Prefetch) -> bool:
    """Whether the sub-operator reads in the first and in the last line of the range."""
    begin, end = step.offset, step.offset + step.nbytes
    first = last = False
    for task in plan.tasks:
        for access in task.accesses if task.subop == step.subop else ():
            if access.space is Space.CONSTANT:
                for region in access.regions:
                    first |= region.start < begin + LINE_BYTES and begin < region.stop
                    last |= region.start < end and end - LINE_BYTES < region.stop
    return begin >= 0 and step.nbytes > 0 and first and last
