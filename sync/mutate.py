"""Plans made wrong on purpose: the verifier must reject every one of them.

Each mutant differs from a minimal plan by one weakened piece of synchronisation. Since the planner keeps no wait that
others imply, none of these is harmless: a mutant that passes means that the verifier is blind or that the planner
left a wait that nobody needs. Tests count both.
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
            where = f"core {core}, step {at}"
            if isinstance(step, Wait):
                yield Mutant(f"{where}: {step} removed", _with(plan, core, _without(program, at)))
                yield Mutant(
                    f"{where}: {step} moved behind its body", _with(plan, core, _moved_behind_body(program, at))
                )
                lower = replace(step, count=step.count - 1)
                yield Mutant(f"{where}: {step} lowered by one", _with(plan, core, _replaced(program, at, lower)))
                high = replace(step, count=plan.sets[step.producer] + 1)
                yield Mutant(f"{where}: {step} raised out of reach", _with(plan, core, _replaced(program, at, high)))
            elif isinstance(step, Set):
                yield Mutant(
                    f"{where}: {step} in front of its body", _with(plan, core, _swapped_with_body(program, at))
                )
                yield Mutant(f"{where}: {step} removed, the rest renumbered", _without_set(plan, core, step.count))
                yield Mutant(f"{where}: {step} removed", _with(plan, core, _without(program, at)))
            else:
                yield Mutant(f"{where}: {step} never runs", _with(plan, core, _without(program, at)))


def _with(plan: Plan, core: int, program: Sequence[Step]) -> Plan:
    programs = list(plan.programs)
    programs[core] = tuple(program)
    return replace(plan, programs=tuple(programs))


def _without(program: Sequence[Step], at: int) -> list[Step]:
    return [*program[:at], *program[at + 1 :]]


def _replaced(program: Sequence[Step], at: int, step: Step) -> list[Step]:
    return [*program[:at], step, *program[at + 1 :]]


def _moved_behind_body(program: Sequence[Step], at: int) -> list[Step]:
    body = next(i for i in range(at, len(program)) if isinstance(program[i], TaskStep))
    return [*program[:at], *program[at + 1 : body + 1], program[at], *program[body + 1 :]]


def _swapped_with_body(program: Sequence[Step], at: int) -> list[Step]:
    body = next(i for i in range(at, -1, -1) if isinstance(program[i], TaskStep))
    return [*program[:body], program[at], *program[body:at], *program[at + 1 :]]


def _without_set(plan: Plan, core: int, count: int) -> Plan:
    """Core's `count`-th set is gone; those behind it, and the waits for them, count one less. Waits for it settle for
    the one before."""

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
