"""Medians with intervals, and ratios of what was measured side by side.

Model: a measurement is a list of slices, each a list of call times; slice i of every runner was measured in round i.
Machine speed drifts between rounds, so runners are compared by the ratio of their slice medians within a round.

Intervals are distribution-free (order statistics, 95 % by the binomial): the sample's ranks between which the true
median lies. Below 6 samples no such pair of ranks exists and the interval is the whole range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % interval."""

    median: float
    low: float
    high: float

    def overlaps(self, other: Estimate) -> bool:
        return self.low <= other.high and other.low <= self.high


def interval_rank(count: int) -> int:
    """k (from 0) such that the k-th smallest and k-th largest of `count` samples enclose the median in 95 %."""
    total, rank = 0.0, 0
    for k in range(count // 2):
        total += math.comb(count, k) / 2.0**count
        if 2 * total > 0.05:
            break
        rank = k
    return rank


def estimate(samples: Sequence[float]) -> Estimate:
    """Of at least one sample."""
    ordered = np.sort(np.asarray(samples, float))
    rank = interval_rank(min(len(ordered), 1000))  # the exact rank up to 1000, where powers of 2 still fit
    if len(ordered) > 1000:
        rank = int(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered)))
    return Estimate(float(np.median(ordered)), float(ordered[rank]), float(ordered[-1 - rank]))


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Median of the ratios round by round."""
    return estimate([a / b for a, b in zip(numerators, denominators, strict=True)])


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one positive value."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(slices: Sequence[Sequence[float]]) -> dict[str, object]:
    """What is kept of a runner's samples, in ns: per slice its median, and over all samples median, p99, least."""
    everything = np.concatenate([np.asarray(s, float) for s in slices])
    medians = [float(np.median(s)) for s in slices]
    middle = estimate(medians)
    return {
        "samples": len(everything),
        "median_ns": middle.median,
        "low_ns": middle.low,
        "high_ns": middle.high,
        "p99_ns": float(np.percentile(everything, 99)),
        "least_ns": float(everything.min()),
        "slice_medians_ns": medians,
        "slice_samples": [len(s) for s in slices],
    }
