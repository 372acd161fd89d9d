"""Which pinned kernels of a compilation compute nothing, so that nobody believes in one that does not.

What has no effect on a target, an option's declaration says; whether there is a place for a kernel is the graph's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superkernel.compilation.choice import KernelChooser
    from superkernel.core.options import Options
    from superkernel.registry.explanation import Candidate
    from superkernel.scheduler.schedule import Schedule


def idle_pins(options: Options, schedule: Schedule, chooser: Callable[[], KernelChooser]) -> tuple[str, ...]:
    """The pinned kernels that compute nothing of a schedule. `chooser`: the choice of its kernels, asked for where
    there are pins."""
    return tuple(
        f"pin={p!r} has no effect on this graph: {why}"
        for p in options.pin
        if (why := _idle_pin(schedule, chooser(), p))
    )


def _idle_pin(schedule: Schedule, chooser: KernelChooser, pattern: str) -> str:
    """Why no kernel of the pattern computes anything; "" where one does."""
    from superkernel.registry.predicates import matches_any

    found: list[tuple[int, str, Candidate]] = []
    for sub in schedule.subops:
        explanation = chooser.select(sub.body).explanation
        if sub.kernel == explanation.chosen.kernel and matches_any((pattern,), explanation.chosen.names):
            return ""
        if any(matches_any((pattern,), c.row.names) for c in explanation.eligible):
            return f"{explanation.chosen.kernel} is preferred for {sub.name!r}"
        rejected = (c for c in explanation.rejected if matches_any((pattern,), c.row.names))
        found += [(len(c.failures), sub.name, c) for c in rejected]
    if not found:
        return "it has no sub-operator of the kind"
    _, name, nearest = min(found, key=lambda each: each[0])
    return f"{nearest.row.kernel} does not fit {name!r}: {'; '.join(map(str, nearest.failures))}"
