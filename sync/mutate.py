"""Plans made wrong on purpose: the verifier must reject every one of them.

Each of `mutants` differs from a minimal plan by one weakened piece of synchronisation. Since the planner keeps no wait
that others imply, none is harmless, but for a set that is left out where the next one serves as well: a mutant that
passes means that the verifier is blind or that the planner left a wait that nobody needs. Tests count both. Of
`rearranged` ones, and of mutants of other plans, the search of their executions says which are broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from superkernel.sync.plan import Plan, Set, Step, TaskStep, Wait


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken plan and what was done to it."""

    what: str
    plan: Plan


def mutants(plan: Plan) -> Iterator[Mutant]:
    """Every mutant of a plan that was made with sync="minimal"."""
    for core, program in enumerate(plan.programs):
        for at, step in enumerate(program):
            where = f"core {core}, step {at}: {step}"
            for what, steps in _changed(plan, program, at):
                programs = (*plan.programs[:core], tuple(steps), *plan.programs[core + 1 :])
                yield Mutant(f"{where} {what}", replace(plan, programs=programs))
            if isinstance(step, Set):
                yield Mutant(f"{where} removed, the rest renumbered", without_set(plan, core, step.count))


def _changed(plan: Plan, program: Sequence[Step], at: int) -> Iterator[tuple[str, list[Step]]]:
    """A program with one step changed, and how."""
    before, step, after = program[:at], program[at], program[at + 1 :]
    if isinstance(step, TaskStep):
        yield "never runs", [*before, *after]
        return
    yield "removed", [*before, *after]
    if isinstance(step, Wait):
        body = next((i + 1 for i, other in enumerate(after) if isinstance(other, TaskStep)), len(after))
        yield "moved behind its body", [*before, *after[:body], step, *after[body:]]
        if step.count > 1:  # else as if it were removed
            yield "lowered by one", [*before, replace(step, count=step.count - 1), *after]
        yield "raised out of reach", [*before, replace(step, count=plan.sets[step.producer] + 1), *after]
    else:
        body = max((i for i, other in enumerate(before) if isinstance(other, TaskStep)), default=0)
        yield "in front of its body", [*before[:body], step, *before[body:], *after]


def without_set(plan: Plan, core: int, count: int) -> Plan:
    """The plan without core's `count`-th set; those behind it, and the waits for them, count one less. Waits for
    it settle for the one before."""

    def changed(owner: int) -> Callable[[Step], list[Step]]:
        def change(step: Step) -> list[Step]:
            if isinstance(step, Set) and owner == core:
                return [] if step.count == count else [Set(step.count - (step.count > count))]
            if isinstance(step, Wait) and step.producer == core and step.count >= count:
                return [replace(step, count=step.count - 1)] if step.count > 1 else []
            return [step]

        return change

    programs = tuple(tuple(s for step in p for s in changed(c)(step)) for c, p in enumerate(plan.programs))
    sets = tuple(n - (c == core) for c, n in enumerate(plan.sets))
    return replace(plan, programs=programs, sets=sets)


def rearranged(plan: Plan) -> Iterator[Mutant]:
    """The plan with its synchronisation rearranged: a wait or a set a step earlier or later, a wait for one more, or
    for another core. Some of these break the plan, others do no harm."""
    for core, program in enumerate(plan.programs):
        for at, step in enumerate(program):
            where = f"core {core}, step {at}: {step}"
            after = program[at + 1 : at + 2]
            changed: list[tuple[str, tuple[Step, ...]]] = []
            if after and not (type(step) is type(after[0]) and isinstance(step, (TaskStep, Set))):
                changed.append((f"behind {after[0]}", (*after, step, *program[at + 2 :])))
            for other in _other_waits(plan, core, step) if isinstance(step, Wait) else ():
                changed.append((f"changed to {other}", (other, *program[at + 1 :])))
            for what, steps in changed:
                programs = (*plan.programs[:core], (*program[:at], *steps), *plan.programs[core + 1 :])
                yield Mutant(f"{where} {what}", replace(plan, programs=programs))


def _other_waits(plan: Plan, core: int, wait: Wait) -> Iterator[Wait]:
    if wait.count < plan.sets[wait.producer]:
        yield replace(wait, count=wait.count + 1)
    other = next((c for c in range(plan.cores) if c not in (core, wait.producer) and plan.sets[c]), None)
    if other is not None:
        yield replace(wait, producer=other, count=min(wait.count, plan.sets[other]))
