"""Who waits for whom, and why: what is said of a launch that does not go on.

Model: each core that is in a wait names the set that it waits for, the sub-operator behind which that set stands, and
the conflict that the wait is there for. Whom it waits for may wait itself: the chain ends in a circle, or at a core
that does not wait, which is then the one to look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from superkernel.core.errors import Violation
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import Schedule
from superkernel.sync.plan import Hazard, Plan, Set, TaskStep, Witness


@dataclass(frozen=True)
class Waiting:
    """A core in a wait of the plan: for set `count` of core `producer`, which was at set `actual`. `late`: the core
    came there when the launch had been given up already."""

    core: int
    wait: int
    producer: int
    count: int
    actual: int
    late: bool = False

    @staticmethod
    def of(abort: Mapping[str, Any], sets: Sequence[int]) -> list[Waiting]:
        """What the runtime saw (`_core.Kernel.last_abort`); `sets`: of a launch, per core."""
        return [
            Waiting(
                row["core"],
                row["wait"],
                row["producer"],
                row["threshold"] - (before := abort["epoch"] * sets[row["producer"]]),
                row["actual"] - before,
                row["late"],
            )
            for row in abort["waits"]
        ]


def who_waits(message: str, waits: Sequence[Waiting], plan: Plan, schedule: Schedule) -> tuple[Violation, ...]:
    """The violations of a launch that does not go on: each core that waits, then where the chain of the first ends."""
    names = PlanWords(plan, schedule)
    stuck = {each.core: each for each in waits if not each.late}
    found = [names.waits(message if n == 0 else "waits as well", each) for n, each in enumerate(stuck.values())]
    if not stuck:
        return (Violation(message),)
    chain = [next(iter(stuck))]
    while (last := stuck[chain[-1]].producer) in stuck and last not in chain:
        chain.append(last)
    text = " waits for ".join(f"core {core}" for core in [*chain, last])
    if last in stuck:
        circle = [*chain[chain.index(last) :], last]
        text = " waits for ".join(f"core {core}" for core in circle)
        return (*found, Violation("deadlock: a circle of waits", f"cores {sorted(set(circle))}", found=text))
    end = stuck[chain[-1]]
    work = names.between(last, end.actual, end.count)
    return (*found, Violation("does not wait itself", f"core {last}", f"set {end.count}", f"{text}; {work}"))


class PlanWords:
    """Words for what is in a plan."""

    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        self.plan, self.schedule = plan, schedule

    def subop(self, task: int) -> str:
        """The sub-operator of a task."""
        sub = self.schedule.subops[self.plan.tasks[task].subop]
        return f"sub-operator {sub.index} ({sub.name!r})"

    def waits(self, message: str, each: Waiting) -> Violation:
        """A core that waits."""
        place, hint = f"core {each.core}", ""
        if 0 <= each.wait < len(self.plan.reasons):
            reason = self.plan.reasons[each.wait]
            sub = self.schedule.subops[reason.wait.subop]
            place += f", boundary {sub.index} ({sub.name!r})"
            hint = "" if reason.witness is None else self.why(reason.witness)
        producer = f"core {each.producer}"
        expected = f"{producer} at set {each.count}{self.behind(each.producer, each.count)}"
        return Violation(message, place, expected, f"{producer} at set {each.actual}", hint)

    def tasks(self, core: int, above: int, count: int) -> list[str]:
        """What a core runs between two of its sets."""
        steps = takewhile(lambda step: not isinstance(step, Set) or step.count < count, self.plan.programs[core])
        found: list[str] = []
        for step in steps:
            if isinstance(step, Set) and step.count <= above:
                found = []
            elif isinstance(step, TaskStep):
                found.append(self.subop(step.task))
        return found

    def behind(self, core: int, count: int) -> str:
        """After which sub-operator a set stands."""
        tasks = self.tasks(core, 0, count)
        return f", behind {tasks[-1]}" if tasks else ""

    def between(self, core: int, above: int, count: int) -> str:
        """What a core has not got done."""
        return f"behind its set {above} stands {', '.join(self.tasks(core, above, count)) or 'nothing'}"

    def why(self, witness: Witness) -> str:
        """The conflict that a wait is for."""
        if witness.hazard is Hazard.BARRIER:
            return str(witness.hazard.value)
        earlier = next(self.values(witness.producer, witness.place, witness.earlier), witness.place)
        later = next(self.values(witness.consumer, witness.place, witness.later), witness.place)
        where = "" if earlier == later else f", which lies where {earlier!r} does"
        return f"{witness.hazard.value} of {later!r}{where}: {self.subop(witness.producer)} comes first"

    def why_waits(self, wait: int) -> str:
        """For whom and for which tensor a wait is, as a sentence."""
        reason = self.plan.reasons[wait]
        producer = f"core {reason.wait.producer}"
        if reason.witness is None or reason.witness.hazard is Hazard.BARRIER:
            return f"core {reason.core} waits for {producer}{self.behind(reason.wait.producer, reason.wait.count)}"
        return f"core {reason.core} waits for {producer}: {self.why(reason.witness)}"

    def values(self, task: int, place: str, region: Region) -> Iterator[str]:
        """The tensors of a task that have bytes in a region."""
        index = self.plan.tasks[task].subop
        sub = self.schedule.subops[index]
        for value, operand, address in zip(sub.values, sub.body.operands, self.schedule.addresses[index], strict=True):
            inside = address.offset < region.stop and region.start < address.offset + operand.type.nbytes
            if inside and f"{address.space.value}{address.slot}" == place:
                yield value
