"""The host's verifier under test: families of plans, their mutants, and what makes a plan smaller."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from superkernel.analysis.random_plans import random_accesses, random_schedule, read, schedule_of, write
from superkernel.analysis.rates import PlanFamily, Subject
from superkernel.scheduler.schedule import Task
from superkernel.sync.executions import executions
from superkernel.sync.mutate import mutants, rearranged, without_set
from superkernel.sync.plan import Plan, Set, Step, TaskStep, Wait
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import check


def _rows(rng: random.Random) -> Plan:
    return plan_sync(random_schedule(rng.getrandbits(32), rng.randint(2, 4), rng.randint(3, 6)))


def _any_bytes(rng: random.Random) -> Plan:
    return plan_sync(random_accesses(rng.getrandbits(32)))


def _full(rng: random.Random) -> Plan:
    return plan_sync(random_schedule(rng.getrandbits(32), rng.randint(2, 3), rng.randint(3, 5)), sync="full")


def _many_cores(rng: random.Random) -> Plan:
    cores = rng.choice((8, 16, 32, 48))
    return plan_sync(random_schedule(rng.getrandbits(32), cores, rng.randint(3, 5), columns=cores))


def _streams(rng: random.Random) -> Plan:
    """Two chains on cores of their own, one written down behind the other or in turn, and somebody who reads both."""
    cores = rng.randint(1, 2)
    length = rng.randint(2, 3)
    chains = [(chain, at) for chain in range(2) for at in range(length)]
    if rng.random() < 0.5:
        chains.sort(key=lambda link: link[1])
    tasks: list[Task] = []
    for subop, (chain, at) in enumerate(chains):
        here, there = 256 * chain + 64 * (at % 2), 256 * chain + 64 * (1 - at % 2)
        for core in range(cores):
            part = 64 // cores
            whole = rng.random() < 0.4
            reads = () if at == 0 else (read(there, 64) if whole else read(there + part * core, part),)
            accesses = (*reads, write(here + part * core, part))
            tasks.append(Task(len(tasks), subop, chain * cores + core, core, core + 1, accesses))
    ends = [256 * chain + 64 * ((length - 1) % 2) for chain in range(2)]
    joined = (*(read(end, 64) for end in ends), write(512, 64))
    tasks.append(Task(len(tasks), len(chains), rng.randrange(2 * cores), 0, 1, joined))
    return plan_sync(schedule_of(2 * cores, tasks))


def _refusal(plan: Plan) -> str:
    wrong, certificate = check(plan)
    return wrong[0].message if certificate is None else ""


def _mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    plan = replace(plan, programs=tuple(map(tuple, plan.programs)))  # each step made once, and not for each mutant
    for mutant in (*mutants(plan), *rearranged(plan)):
        yield mutant.what, mutant.plan


def smaller(plan: Plan) -> Iterator[Plan]:
    """The plan without a core and all that it does, a sub-operator, a task, a wait, a set, or an access."""
    bare = replace(plan, reasons=(), boundaries=())
    for core in range(plan.cores):
        yield _without_core(_without_tasks(bare, {t.index for t in plan.tasks if t.core == core}), core)
    for subop in dict.fromkeys(t.subop for t in plan.tasks):
        yield _without_tasks(bare, {t.index for t in plan.tasks if t.subop == subop})
    for task in plan.tasks:
        yield _without_tasks(bare, {task.index})
    for core, program in enumerate(plan.programs):
        for at, step in enumerate(program):
            if isinstance(step, Wait):
                rows = (*plan.programs[:core], (*program[:at], *program[at + 1 :]), *plan.programs[core + 1 :])
                yield replace(bare, programs=rows)
            elif isinstance(step, Set):
                yield without_set(bare, core, step.count)
    for task in plan.tasks:
        for n in range(len(task.accesses)):
            fewer = replace(task, accesses=(*task.accesses[:n], *task.accesses[n + 1 :]))
            yield replace(bare, tasks=(*plan.tasks[: task.index], fewer, *plan.tasks[task.index + 1 :]))


def _without_tasks(plan: Plan, gone: Collection[int]) -> Plan:
    left = [t for t in plan.tasks if t.index not in gone]
    number = {t.index: n for n, t in enumerate(left)}
    tasks = tuple(replace(t, index=n) for n, t in enumerate(left))

    def kept(step: Step) -> Step | None:
        if isinstance(step, TaskStep):
            return TaskStep(number[step.task]) if step.task in number else None
        return step

    return replace(plan, tasks=tasks, programs=_mapped(plan, kept))


def _without_core(plan: Plan, gone: int) -> Plan:
    def kept(step: Step) -> Step | None:
        if isinstance(step, Wait):
            return None if step.producer == gone else replace(step, producer=step.producer - (step.producer > gone))
        return step

    fewer = replace(
        plan,
        tasks=tuple(replace(t, core=t.core - (t.core > gone)) for t in plan.tasks),
        programs=(*plan.programs[:gone], *plan.programs[gone + 1 :]),
        sets=(*plan.sets[:gone], *plan.sets[gone + 1 :]),
    )
    return replace(fewer, programs=_mapped(fewer, kept))


def _mapped(plan: Plan, change: Callable[[Step], Step | None]) -> tuple[tuple[Step, ...], ...]:
    return tuple(tuple(s for step in p if (s := change(step)) is not None) for p in plan.programs)


FAMILIES = (
    PlanFamily("rows", "parts of rows and columns in an arena that is reused, 2 to 4 cores", _rows),
    PlanFamily("any bytes", "accesses of any bytes, in any space, several tasks of a sub-operator", _any_bytes),
    PlanFamily("full", "a barrier between any two sub-operators", _full),
    PlanFamily("many cores", "8 to 48 cores", _many_cores),
    PlanFamily("streams", "two chains on cores of their own, joined at the end", _streams),
)
HOST: Subject[Plan] = Subject("host", FAMILIES, _refusal, executions, _mutants, smaller, str)
