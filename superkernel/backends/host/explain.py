"""Why a node runs as it does on the host: kernel choice, grouping, placement, waits, precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.computed_in import precision_text
from superkernel.runtime.decisions import Decisions, common, subop_index


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Decisions):
    """The decisions about a sub-operator on the host. `waits`: each with the conflict that needs it."""

    waits: tuple[str, ...]
    prefetch: str = ""
    precision: str = ""

    def _lines(self) -> Iterator[str]:
        yield f"boundary: {self.form}, about {self.cost_ns:.0f} ns: {self.reason}"
        yield from (f"  instead: {form}, about {cost:.0f} ns" for form, cost in self.alternatives)
        yield from (f"  {w}" for w in self.waits)
        yield from [f"constants: {self.prefetch}"] if self.prefetch else []
        yield from [f"precision: {self.precision}"] if self.precision else []


def explain(compiled: HostCompiled, node: str | int) -> Explanation:
    """See `Kernel.explain`. Raises InputError on a node that no sub-operator computes."""
    schedule, index = compiled.schedule, subop_index(compiled, node)
    sub, tiling = schedule.subops[index], schedule.tilings[index]
    found = common(compiled, index)
    return Explanation(
        **found,
        placement=f"{tiling}" + (f"; {schedule.notes[index]}" if schedule.notes else ""),
        tasks=tuple(f"core {t.core}: units {t.begin}..{t.end}" for t in schedule.tasks if t.subop == index),
        waits=tuple(
            f"core {r.core} waits for set {r.wait.count} of core {r.wait.producer}: {r.witness}"
            + (f" (orders {r.conflicts} conflicts)" if r.conflicts > 1 else "")
            for r in compiled.plan.reasons
            if r.wait.subop == index
        ),
        prefetch=_prefetch_text(compiled, index),
        precision=precision_text(compiled.options.precision, sub, tiling, found["selection"]),
    )


def _prefetch_text(compiled: HostCompiled, subop: int) -> str:
    """What of a sub-operator's constants its workers fetch while they wait ahead of it."""
    from superkernel.codegen.host.image import prefetched

    options, plan = compiled.options, compiled.plan
    waiting = {r.core for r in plan.reasons if r.wait.subop == subop}
    sizes = {t.core: prefetched(plan, t.index)[1] for t in plan.tasks if t.subop == subop}
    if not any(sizes.values()):
        return ""
    if not options.starts_early or options.weight_strength == "none":
        return "not prefetched: off"
    found = [f"core {core} {size} bytes" for core, size in sizes.items() if core in waiting and size]
    return f"prefetched while waiting: {', '.join(found)}" if found else "not prefetched: nobody waits ahead of it"
