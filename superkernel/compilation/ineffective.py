"""Which options of a compilation change nothing, so that nobody believes in one that does not.

Model: what has no effect on a target, an option's declaration says. To that come kernels that are pinned but compute
nothing, and a reduced precision that nothing is computed in: whether there is a place for them depends on the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from superkernel.core.option import ACCELERATOR, HOST

if TYPE_CHECKING:
    from superkernel.compilation.choice import KernelChooser
    from superkernel.core.options import Options
    from superkernel.registry.explanation import Candidate
    from superkernel.scheduler.schedule import Schedule


def idle_options(
    options: Options, schedule: Schedule, chooser: Callable[[], KernelChooser], *, host: bool
) -> tuple[str, ...]:
    """The options of a compilation that change nothing: on its target, then for its graph. `chooser`: the choice of its
    kernels, asked for where a pin needs it."""
    pins = tuple(
        f"pin={p!r} has no effect on this graph: {why}"
        for p in options.pin
        if (why := _idle_pin(schedule, chooser(), p))
    )
    idle = options.without_effect(HOST if host else ACCELERATOR)
    return (*idle, *pins, *(_idle_precision(options, schedule) if host else ()))


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


def _idle_precision(options: Options, schedule: Schedule) -> tuple[str, ...]:
    """What is said where a reduced precision is allowed, and no kernel makes use of it."""
    asked = options.precision
    from superkernel.registry.rows_reduced import REDUCED

    if asked not in REDUCED:
        return ()
    from superkernel.backends.host.computed_in import is_reduced

    if any(map(is_reduced, schedule.tilings)):
        return ()
    return (
        f"precision={asked!r} has no effect on this graph: no product is computed in it (`explain` of one says why)",
    )
