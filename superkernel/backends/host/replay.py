"""A profiled launch played again with one thing otherwise: what would help, and its critical path.

Model: steps take what they took. A wait ends where both its core has come to it and its producer has set, plus its pure
cost. Played as it was, this gives the launch's time again; with waits left out, or a sub-operator faster, it estimates
what that would save: cores would meet other caches then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from superkernel.sync.plan import Plan, Set, TaskStep, Wait


@dataclass(frozen=True)
class LaunchReplay:
    """A launch: `stamps` of each core in ns since the first of all."""

    plan: Plan
    stamps: Sequence[Sequence[float]]

    def time_ns(self, free: Collection[int] = (), factors: Mapping[int, float] | None = None) -> float:
        """From the first step to the last one's end, without the waits of these indices, and with the times of
        sub-operators multiplied."""
        return max((ends[-1] for ends in self._ends(frozenset(free), factors or {})), default=0.0)

    def _ends(self, free: Collection[int], factors: Mapping[int, float]) -> list[list[float]]:
        """When each core is done with each step; the first is its start."""
        ends = [[stamps[0]] for stamps in self.stamps]
        set_at: dict[tuple[int, int], float] = {}
        was_set = _sets(self.plan, self.stamps)
        going = True
        while going:
            going = False
            for core, program in enumerate(self.plan.programs):
                own = ends[core]
                while len(own) <= len(program):
                    i = len(own) - 1
                    step, took = program[i], self.stamps[core][i + 1] - self.stamps[core][i]
                    if isinstance(step, Wait):
                        place = (step.producer, step.count)
                        if step.index in free:
                            own.append(own[-1])
                        elif place in set_at:
                            late = min(max(was_set[place] - self.stamps[core][i], 0.0), took)
                            own.append(max(own[-1], set_at[place]) + took - late)
                        else:
                            break
                    else:
                        if isinstance(step, TaskStep):
                            took *= factors.get(self.plan.tasks[step.task].subop, 1.0)
                        own.append(own[-1] + took)
                        if isinstance(step, Set):
                            set_at[core, step.count] = own[-1]
                    going = True
        return ends

    def path(self) -> Iterator[tuple[int, float, float]]:
        """The chain of steps that the launch's time consists of, from its end backwards: cores, begins, ends in ns."""
        was_set = _sets(self.plan, self.stamps)
        where = {
            (core, step.count): i
            for core, program in enumerate(self.plan.programs)
            for i, step in enumerate(program)
            if isinstance(step, Set)
        }
        core = max(range(self.plan.cores), key=lambda c: self.stamps[c][-1])
        at, end = len(self.plan.programs[core]), self.stamps[core][-1]
        while True:
            while at > 0 and not self._leaves(core, at, was_set):
                at -= 1
            if at == 0:
                yield core, self.stamps[core][0], end
                return
            step = self.plan.programs[core][at - 1]
            assert isinstance(step, Wait)
            came = min(was_set[step.producer, step.count], self.stamps[core][at])
            yield core, came, end
            core, at, end = step.producer, where[step.producer, step.count] + 1, came

    def _leaves(self, core: int, i: int, was_set: Mapping[tuple[int, int], float]) -> bool:
        """Whether the path goes to another core ahead of a step."""
        step = self.plan.programs[core][i - 1]
        return isinstance(step, Wait) and was_set[step.producer, step.count] > self.stamps[core][i - 1]


def _sets(plan: Plan, stamps: Sequence[Sequence[float]]) -> dict[tuple[int, int], float]:
    """When each set was done, by core and count."""
    return {
        (core, step.count): stamps[core][i + 1]
        for core, program in enumerate(plan.programs)
        for i, step in enumerate(program)
        if isinstance(step, Set)
    }
