"""Which options of a compilation change nothing, so that nobody believes in one that does not.

Model: an option that a target cannot have and that would change results or promises is refused (`api.check_options`).
One that is only about how a target works is accepted, so that one set of options serves several targets, and is named
here, in `summary()` and by `explain`, where it differs from its default. So are kernels that are pinned but compute
nothing, and a reduced precision that nothing is computed in: whether there is a place for them depends on the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from superkernel.core.options import Options

if TYPE_CHECKING:
    from superkernel.compilation.choice import KernelChooser
    from superkernel.registry.explanation import Candidate
    from superkernel.scheduler.schedule import Schedule

ON_HOST: Final[Mapping[str, str]] = {
    "func_align": "functions lie as LLVM aligns them",
    "preload": "a CPU fetches code by itself",
    "split": "cores have their own caches of code, all of it",
    "launches": "there is one entry, always",
    "locality": "cores have no groups",
    "scopes": "there is one entry, always",
    "strict_scope": "a fallback does not split the kernel",
}
"""Option -> why it has no effect."""
ON_ACCELERATOR: Final[Mapping[str, str]] = {
    "watchdog_ms": "the simulator finds deadlocks by itself, and the emulator has a watchdog of its own",
    "cost_placement": "sub-operators are always placed by estimate",
}


def without_effect(options: Options, *, host: bool) -> tuple[str, ...]:
    """The options given that change nothing: "name=value: why", in alphabetical order."""
    reasons = ON_HOST if host else ON_ACCELERATOR
    default = {f.name: getattr(Options(), f.name) for f in dataclasses.fields(Options)}
    return tuple(
        f"{name}={getattr(options, name)!r} has no effect on {'the host' if host else 'an accelerator'}: {why}"
        for name, why in sorted(reasons.items())
        if getattr(options, name) != default[name]
    )


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
    return (*without_effect(options, host=host), *pins, *(_idle_precision(options, schedule) if host else ()))


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
    from superkernel.backends.host.computed_in import is_narrow

    if any(map(is_narrow, schedule.tilings)):
        return ()
    return (
        f"precision={asked!r} has no effect on this graph: no product is computed in it (`explain` of one says why)",
    )
