"""The accelerator's verifier under test: families of plans, their mutants, and what makes a plan smaller."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from superkernel.analysis.random_aicore import (
    AICPU,
    CUBE,
    PITCH,
    VECTOR,
    BufferOp,
    copied,
    random_ops,
    schedule_of,
    small_target,
)
from superkernel.analysis.rates import PlanFamily, Subject
from superkernel.core.tensor import Region
from superkernel.scheduler.families.aicore.base import AicoreKernelType
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.aicore.executions import executions
from superkernel.sync.aicore.mutate import edits, rearranged, service_rearranged, without_event
from superkernel.sync.aicore.plan import AicorePlan, AwaitCount, CoreKind, Notify, Prefetch, Run, ServiceStep, Step
from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.target.aicore import AicoreTarget

PAIR = AicoreKernelType.MIX_1_1
SMALL = (CUBE, VECTOR, VECTOR, PAIR)


def _plan(rng: random.Random, ops: Sequence[BufferOp], target: AicoreTarget, cuts: Collection[int] = ()) -> AicorePlan:
    level = rng.choice(("minimal", "minimal", "minimal", "type-range", "full"))
    early = rng.random() < 0.8
    return plan_aicore(schedule_of(ops, target), target, sync=level, early_start=early, cuts=cuts)


def _few_flags(rng: random.Random) -> AicorePlan:
    flags, limit = rng.randint(4, 10), rng.choice((1, 1, 2, 3))
    target = small_target(rng.choice((1, 1, 2)), flags_per_core=flags, flag_count_max=limit)
    return _plan(rng, random_ops(rng, rng.randint(2, 4), SMALL, 4), target)


def _many_flags(rng: random.Random) -> AicorePlan:
    return _plan(rng, random_ops(rng, rng.randint(2, 4), SMALL, 4), small_target(rng.choice((1, 1, 2))))


def _one_flag_twice(rng: random.Random) -> AicorePlan:
    """Producers of one type, and one that reads them by operands of its own: events of one family, taken by one
    kernel."""
    flags, limit = rng.choice((5, 7, 8)), rng.choice((2, 3, 15))
    target = small_target(2, flags_per_core=flags, flag_count_max=limit)
    count = rng.randint(2, 3)
    producer, consumer = rng.choice(((VECTOR, VECTOR), (VECTOR, CUBE), (CUBE, VECTOR), (VECTOR, PAIR)))
    ops = [BufferOp(producer, rng.choice((1, 2)), (), n) for n in range(count)]
    reads = [(n, True) for n in range(count)]
    rng.shuffle(reads)
    ops.append(BufferOp(consumer, 2, tuple(reads), 4))
    if rng.random() < 0.3:
        ops.append(BufferOp(producer, 2, ((4, True),), 0))
    return plan_aicore(schedule_of(ops, target), target)


def _many_cores(rng: random.Random) -> AicorePlan:
    target = small_target(2, rng.choice((2, 2, 4)), flags_per_core=rng.choice((5, 7, 16)))
    return _plan(rng, random_ops(rng, rng.randint(2, 5)), target)


def _streams(rng: random.Random) -> AicorePlan:
    """Two chains beside each other, one on the cube core and one on a vector core, or one on each vector core, in turn
    or one behind the other; at the end somebody reads both."""
    target = small_target(2, flags_per_core=rng.choice((5, 16)))
    kinds = rng.choice(((CUBE, VECTOR), (VECTOR, VECTOR)))
    links = [(chain, at) for chain in range(2) for at in range(2)]
    if rng.random() < 0.5:
        links.sort(key=lambda link: link[1])
    ops = []
    for chain, at in links:
        first = chain if kinds[chain] is kinds[1 - chain] else 0
        reads = ((2 * chain, rng.random() < 0.5),) if at else ()
        ops.append(BufferOp(kinds[chain], 1, reads, 2 * chain + at, first=first, slots=1))
    ops.append(BufferOp(rng.choice((CUBE, VECTOR)), 2, ((1, True), (3, True)), 4))
    return plan_aicore(schedule_of(ops, target), target, early_start=rng.random() < 0.8)


def _launches(rng: random.Random) -> AicorePlan:
    """A launch that is cut, and perhaps NumPy between two launches."""
    ops = random_ops(rng, rng.randint(3, 4), (CUBE, VECTOR), 4)
    at = rng.randrange(1, len(ops))
    if rng.random() < 0.4:
        ops[at] = replace(ops[at], kind=None)
    target = small_target(rng.choice((1, 2)), flags_per_core=rng.choice((5, 7, 16)), flag_count_max=rng.choice((1, 15)))
    return _plan(rng, ops, target, {at, rng.randrange(1, len(ops))})


def _tilings(rng: random.Random) -> AicorePlan:
    """An aicpu hart takes part: words in memory."""
    ops = random_ops(rng, rng.randint(2, 3), (CUBE, VECTOR), 4)
    at = rng.randrange(len(ops))
    ops[at] = replace(ops[at], kind=AICPU, units=1)
    target = small_target()
    return _plan(rng, ops, target)


def _barriers(rng: random.Random) -> AicorePlan:
    """Vector cores that meet inside a kernel, some of them without units."""
    ops = random_ops(rng, rng.randint(2, 3), (CUBE, VECTOR), 4)
    at = rng.randrange(len(ops))
    ops[at] = replace(ops[at], kind=VECTOR, units=rng.choice((1, 2)), barriers=rng.randint(1, 2))
    target = small_target(2)
    return _plan(rng, ops, target)


def _copies(rng: random.Random) -> AicorePlan:
    """Two groups compute a value each for itself."""
    target = small_target(rng.choice((1, 2)), 2, flags_per_core=rng.choice((5, 16)))
    ops = [
        BufferOp(VECTOR, 4, (), 0),
        BufferOp(VECTOR, 2, ((0, False),), 1),
        BufferOp(VECTOR, 2, ((1, rng.random() < 0.5),), 2),
    ]
    if rng.random() < 0.5:
        ops.append(BufferOp(VECTOR, 2, ((1, True), (2, False)), 3))
    return plan_aicore(copied(ops, target, 1), target, early_start=rng.random() < 0.8)


def _service(rng: random.Random) -> AicorePlan:
    """Prefetches of constants, some of them released by the cores."""
    ops = random_ops(rng, rng.randint(2, 3), (CUBE, VECTOR), 4)
    target = small_target()
    cuts = {rng.randrange(1, len(ops))} if rng.random() < 0.3 else set[int]()
    plan = plan_aicore(schedule_of(ops, target), target, cuts=cuts)
    tasks = tuple(_reading_constants(task) for task in plan.tasks)
    return _with_service(replace(plan, tasks=tasks), rng)


def _reading_constants(task: Task) -> Task:
    own = MemoryAccess(Space.CONSTANT, 0, False, (Region(task.subop * PITCH, PITCH),), 0)
    return replace(task, accesses=(*task.accesses, own))


def _with_service(plan: AicorePlan, rng: random.Random) -> AicorePlan:
    programs = dict(plan.programs)
    launch_of = plan.launch_of
    released: list[tuple[int, int, tuple[ServiceStep, ...]]] = []  # launch, the sub-operator behind which, what
    counted: dict[tuple[int, CoreKind], int] = {}
    for kind in CoreKind:
        steps: list[Step] = []
        for step in programs[kind]:
            steps.append(step)
            if not isinstance(step, Run):
                continue
            launch = launch_of[step.subop]
            behind = [s for s, its in launch_of.items() if its == launch and s > step.subop]
            if behind and rng.random() < 0.7:
                counted[launch, kind] = counted.get((launch, kind), 0) + 1
                steps.append(Notify(counted[launch, kind]))
                subop = rng.choice(behind)
                wait, fetch = AwaitCount(kind, counted[launch, kind]), Prefetch(subop, subop * PITCH, PITCH)
                released.append((launch, step.subop, (wait, fetch)))
        programs[kind] = tuple(steps)
    first = rng.choice(list(launch_of))
    released.append((launch_of[first], -1, (Prefetch(first, first * PITCH, PITCH),)))
    released.sort(key=lambda row: row[:2])
    service = (
        tuple(s for its, _, steps in released if its == at for s in steps) for at in range(len(plan.between) + 1)
    )
    return replace(plan, programs=programs, service=tuple(service))


def _refusal(plan: AicorePlan) -> str:
    wrong, certificate = check_aicore_plan(plan)
    return wrong[0].message if certificate is None else ""


def _mutants(plan: AicorePlan) -> Iterator[tuple[str, AicorePlan]]:
    yield from edits(plan)
    yield from rearranged(plan)
    yield from service_rearranged(plan)
    for event in plan.events:
        yield f"without {event}", without_event(plan, event.index)
    for copies in plan.copies:
        for task in plan.tasks:
            for n, access in enumerate(task.accesses):
                if (task.subop, access.operand) in copies.uses:
                    for what, regions in (
                        ("in the next copy", tuple(r.shifted(copies.stride) for r in access.regions)),
                        ("half of it", tuple(replace(r, length=r.length // 2) for r in access.regions)),
                    ):
                        other = replace(access, regions=regions)
                        accesses = (*task.accesses[:n], other, *task.accesses[n + 1 :])
                        yield f"{task}: {other}, {what}", _with_task(plan, replace(task, accesses=accesses))


def _with_task(plan: AicorePlan, task: Task) -> AicorePlan:
    return replace(plan, tasks=(*plan.tasks[: task.index], task, *plan.tasks[task.index + 1 :]))


def smaller(plan: AicorePlan) -> Iterator[AicorePlan]:
    """The plan without a sub-operator, an event, a part of a step, a task, or an access."""
    bare = replace(plan, boundaries=())
    for subop in dict.fromkeys(t.subop for t in plan.tasks):
        programs = {k: tuple(s for s in p if getattr(s, "subop", -1) != subop or not isinstance(s, Run))
                    for k, p in plan.programs.items()}  # fmt: skip
        yield _numbered(replace(bare, programs=programs), [t for t in plan.tasks if t.subop != subop])
    for event in plan.events:
        yield without_event(bare, event.index)
    for task in plan.tasks:
        yield _numbered(bare, [t for t in plan.tasks if t is not task])
    for _, fewer in edits(bare):
        yield fewer
    for task in plan.tasks:
        for n in range(len(task.accesses)):
            yield _with_task(bare, replace(task, accesses=(*task.accesses[:n], *task.accesses[n + 1 :])))


def _numbered(plan: AicorePlan, tasks: Sequence[Task]) -> AicorePlan:
    return replace(plan, tasks=tuple(replace(t, index=n) for n, t in enumerate(tasks)))


def _text(plan: AicorePlan) -> str:
    return "\n".join([*map(str, plan.tasks), str(plan)])


FAMILIES = (
    PlanFamily("few flags", "0 to 10 flags that count to 1 to 3", _few_flags),
    PlanFamily("many flags", "one group, all levels", _many_flags),
    PlanFamily("one flag twice", "operands of a kernel that wait for several events of one flag", _one_flag_twice),
    PlanFamily("many cores", "6 or 12 cores in 2 or 4 groups", _many_cores),
    PlanFamily("streams", "two chains beside each other, joined at the end", _streams),
    PlanFamily("launches", "launches that are cut, NumPy between them", _launches),
    PlanFamily("tilings", "an aicpu hart takes part, by words in memory", _tilings),
    PlanFamily("barriers", "cores that meet inside kernels", _barriers),
    PlanFamily("copies", "values that groups compute each for itself", _copies),
    PlanFamily("service", "prefetches by the service hart, released by the cores", _service),
)
AICORE: Subject[AicorePlan] = Subject("aicore", FAMILIES, _refusal, executions, _mutants, smaller, _text)
