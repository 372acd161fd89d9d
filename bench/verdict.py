"""Whether the results keep the targets: the table of misses at the end of a run and on the page.

Model: a workload is held to what can limit it. Its *kind* comes from the terms of its lower bound (`machine.py`):
*memory* where reading its bytes takes at least twice as long as its operations, *arithmetic* where it is the other way
round, *both* between; *dispatch* where the workload itself says that its operators are too small to be limited by
either. The targets are constants here, so that a run is judged by the same numbers as the last one.

- every kind: no slower than the best rival in f32, no slower with all threads than with one;
- memory: at most `BOUND_MAX` times the lower bound;
- arithmetic: at least `PEAK_MIN` of the FMA peak of its threads, and at least `SCALING_MIN` from one thread to two.

Beside the speedup stands that of the bound: what memory limits gains no more from a second core than its bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RIVAL_MIN = 1.0
BOUND_MAX = 1.3
PEAK_MIN = 0.75
SCALING_MIN = 1.8  # of two threads; of n threads the same share of n
SCALING_LEAST = 0.98  # 1, less what two equal programs differ by: a plan may put everything on one core
APART = 2.0  # how far apart two terms are where the greater one alone is the limit

HEAD = ["workload", "kind", "ours / bound", "share of peak", "1 -> n threads", "bound 1 -> n", "rival / ours", "misses"]


@dataclass(frozen=True)
class Verdict:
    """One workload's figures (None: not measured) and the targets that it misses."""

    workload: str
    kind: str
    of_bound: float
    of_peak: float | None
    scaling: float | None
    bound_scaling: float | None
    rival: float | None
    misses: tuple[str, ...]

    def cells(self) -> list[str]:
        """The row of the table."""
        figures = (self.of_peak, self.scaling, self.bound_scaling, self.rival)
        peak, scaling, bound, rival = ("-" if f is None else f"{f:.2f}" for f in figures)
        return [
            self.workload,
            self.kind,
            f"{self.of_bound:.2f}",
            peak,
            scaling,
            bound,
            rival,
            "; ".join(self.misses) or "none",
        ]


def kind_of(workload: Mapping[str, Any]) -> str:
    """What limits a workload, see the module docstring."""
    if workload["dispatch_bound"]:
        return "dispatch"
    terms = workload["limit"].get("terms_ns", {})
    memory, arithmetic = terms.get("bytes", 0.0), terms.get("flops", 0.0)
    if memory >= APART * arithmetic:
        return "memory"
    return "arithmetic" if arithmetic >= APART * memory else "both"


def judge(
    workload: Mapping[str, Any], limits: Mapping[str, Any], threads: int, scaling: float | None, rival: float | None
) -> Verdict:
    """The verdict on a workload on which ours was timed; `rival`: the best rival's time over ours."""
    limit, ours = workload["limit"], workload["runners"]["superkernel"]["median_ns"]
    kind, of_bound = kind_of(workload), ours / limit["ns"]
    flops = limit.get("flops")
    of_peak = flops / ours / (limits["fma_peak_gflops"] * threads) if flops is not None else None
    one_core_ns = limit.get("one_core_ns")
    bound_scaling = one_core_ns / limit["ns"] if one_core_ns is not None else None
    scaling_min = SCALING_MIN / 2 * threads if kind == "arithmetic" and threads > 1 else SCALING_LEAST
    misses = []
    if rival is not None and rival < RIVAL_MIN:
        misses.append(f"rival {rival:.2f} < {RIVAL_MIN:.2f}")
    if kind == "memory" and of_bound > BOUND_MAX:
        misses.append(f"bound {of_bound:.2f} > {BOUND_MAX:.2f}")
    if kind == "arithmetic" and of_peak is not None and of_peak < PEAK_MIN:
        misses.append(f"peak {of_peak:.2f} < {PEAK_MIN:.2f}")
    if scaling is not None and scaling < scaling_min:
        misses.append(f"scaling {scaling:.2f} < {scaling_min:.2f}")
    return Verdict(workload["name"], kind, of_bound, of_peak, scaling, bound_scaling, rival, tuple(misses))


def summary(verdicts: Sequence[Verdict]) -> str:
    """One line: how many keep all targets, and which do not."""
    bad = [f"{v.workload} ({'; '.join(v.misses)})" for v in verdicts if v.misses]
    kept = f"All targets kept on {len(verdicts) - len(bad)} of {len(verdicts)} workloads"
    return f"{kept}; missed: {', '.join(bad)}." if bad else f"{kept}."


READING = f"""\
*memory*: reading its bytes takes at least {APART:.0f} times as long as its operations; *arithmetic*: the other way
round; *both*: between; *dispatch*: its operators are too small for either to matter (*). Held to: no slower than the
best rival and than one thread; *memory* at most {BOUND_MAX} times the bound; *arithmetic* at least {PEAK_MIN:.0%} of
the FMA peak and {SCALING_MIN} times one thread's speed on two. *bound 1 -> n* is how much the lower bound itself gains
(-: not measured in that run). Operations are counted as the graph states them, so
Winograd's convolutions may be above the peak."""
