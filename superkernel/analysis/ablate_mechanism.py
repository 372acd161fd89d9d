"""By what an optimisation gains on a model, or why it cannot: a sentence per step of an ablation, from two runs.

Model: each option works by one thing, and both runs say how much of it there was: waits and what could run during them,
instruction misses, cores that ask for one line, weights that come from HBM, launches. A step that gains nothing has
none of it, or has it where something else hides it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from superkernel.analysis.ablate_figures import Measured, ahead_cycles, constant_shares
from superkernel.backends.aicore.timeline import Activity, summed
from superkernel.core.counted import counted
from superkernel.sync.aicore.plan import Form


def mechanism(option: str, above: Measured, here: Measured) -> str:
    """What the option that differs between two runs worked on; empty where nothing is told of it."""
    told = _TOLD.get(option)
    return "" if told is None else told(above, here)


def _us(run: Measured, cycles: float) -> str:
    return f"{run.compiled.target.nanoseconds(1) * cycles / 1000:.2f} us"


def _part(run: Measured, activity: Activity) -> str:
    return _us(run, summed(run.splits)[activity])


def _forms(run: Measured) -> str:
    forms = Counter(b.form for b in run.compiled.plan.boundaries)
    return ", ".join(f"{forms[form]} {form.value}" for form in Form if forms[form] and form is not Form.NONE) or "none"


def _sync(above: Measured, here: Measured) -> str:
    pure = f"pure synchronisation {_part(above, Activity.PURE)} before, {_part(here, Activity.PURE)} now"
    return f"boundaries {_forms(above)} before, {_forms(here)} now; {pure}"


def _early_start(above: Measured, here: Measured) -> str:
    ahead = ahead_cycles(above.splits, constant_shares(here.compiled))
    rows = [item for split in above.splits for item in split.items()]
    waits = [(subop, row[Activity.PURE] + row[Activity.IMBALANCE]) for subop, row in rows]
    during = sum(min(wait, ahead[subop]) for subop, wait in waits)
    return (
        f"{_us(above, sum(wait for _, wait in waits))} of waits, during which {_us(above, during)} could run: weights, "
        "set-up and code ahead of an operand's first use"
    )


def _preload(above: Measured, here: Measured) -> str:
    return f"instruction misses {_part(above, Activity.MISSES)} before, {_part(here, Activity.MISSES)} now"


def _split(above: Measured, here: Measured) -> str:
    target = above.compiled.target
    cores = max(target.device.cube_cores, target.device.vector_cores)
    behind = (cores - 1) * int(target.icache.same_line_interval_cycles)
    return (
        f"fetches wait {_us(above, above.same_line)} for others of the same line, control units "
        f"{_part(above, Activity.MISSES)} for instructions: the last of {cores} cores is {_us(above, behind)} behind "
        f"once per wait, then they are apart; {counted(here.compiled.image.code.copies, 'copy')} of the code"
    )


def _weights(above: Measured, here: Measured) -> str:
    found = here.compiled.weights
    if not found.tasks:
        return found.reason
    return f"SDMA brings {found.nbytes / 1024:.0f} KiB into L2 for {counted(len(found.tasks), 'sub-operator')}"


def _launches(above: Measured, here: Measured) -> str:
    return f"{counted(above.launches, 'launch')} before, {here.launches} now"


def _streams(above: Measured, here: Measured) -> str:
    tried = ", ".join(f"{name} {cycles:.0f}" for name, cycles in here.compiled.schedule.arrangements)
    return f"estimated cycles: {tried}" if len(here.compiled.schedule.arrangements) > 1 else "nothing to arrange"


def _locality(above: Measured, here: Measured) -> str:
    return f"boundaries {_forms(above)} before, {_forms(here)} now"


_TOLD: Mapping[str, Callable[[Measured, Measured], str]] = {
    "sync": _sync,
    "early_start": _early_start,
    "preload": _preload,
    "split": _split,
    "weight_prefetch": _weights,
    "tiling": _launches,
    "streams": _streams,
    "locality": _locality,
}
