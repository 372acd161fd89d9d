"""What launches vary by: estimates with their 95 % intervals, each of the same statistic as its estimate.

Three of them. A *median* has order statistics as its interval (binomial, distribution-free). A *ratio* is the median of
the ratios within rounds, whose launches follow one another: what changes about the machine meanwhile meets both. A
*middle mean* is the mean over the launches in the middle half by their total: unlike medians, the middle means of the
parts of a launch add up to that of the total. Its interval is the percentile bootstrap (Efron 1979): launches are drawn
with replacement, and what is drawn goes through the same estimator, the choice of the middle half included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.display.difference import SAMPLES_MIN
from superkernel.display.units import format_ns

RESAMPLES = 500
WIDE = 1.5  # a ratio's interval whose ends are further apart says nothing of what lies within
ENDS = (0.025, 0.975)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class MedianInterval:
    """Median of samples with its 95 % interval, in ns."""

    median_ns: float
    low_ns: float
    high_ns: float
    samples: int

    @staticmethod
    def of(samples: NDArray[Any] | Sequence[float]) -> MedianInterval:
        """Of at least one sample."""
        return MedianInterval(*_median(samples))

    @property
    def told(self) -> bool:
        """Whether there are samples enough for an interval; else its ends are the range of what there is."""
        return self.samples >= SAMPLES_MIN

    def apart(self, other: MedianInterval) -> bool:
        """Whether the two differ beyond noise: both have enough samples, and their intervals are disjoint."""
        return self.told and other.told and (self.high_ns < other.low_ns or self.low_ns > other.high_ns)

    def __str__(self) -> str:
        """With the interval where there are samples enough for one."""
        found = format_ns(self.median_ns)
        return f"{found} [{format_ns(self.low_ns)}, {format_ns(self.high_ns)}]" if self.told else found


@dataclass(frozen=True)
class RatioInterval:
    """How many times as long one thing takes as another: the median over rounds with its 95 % interval."""

    median: float
    low: float
    high: float
    samples: int

    @staticmethod
    def of(longer: NDArray[Any] | Sequence[float], shorter: NDArray[Any] | Sequence[float]) -> RatioInterval:
        """Of times by round, at least one; both of a round were measured beside one another."""
        return RatioInterval(*_median(np.asarray(longer, float) / np.maximum(np.asarray(shorter, float), 1e-9)))

    @property
    def told(self) -> bool:
        """Whether one of the two takes longer beyond noise, by what the two places show that are printed."""
        return self.samples >= SAMPLES_MIN and not round(self.low, 2) <= 1 <= round(self.high, 2)

    def __str__(self) -> str:
        found = f"{self.median:.2f}x [{self.low:.2f}x, {self.high:.2f}x]"
        if self.samples < SAMPLES_MIN:
            return f"too few launches to tell, {self.median:.2f}x"
        if self.told:
            return found
        return f"too noisy to tell, {found}" if self.high > WIDE * self.low else f"no difference beyond noise, {found}"


def _median(samples: NDArray[Any] | Sequence[float]) -> tuple[float, float, float, int]:
    """Median, low, high, number. The interval's ranks: n/2 -+ 0.98 sqrt(n) (normal approximation of the binomial)."""
    ordered = np.sort(np.asarray(samples, float))
    count = len(ordered)
    half = 0.98 * count**0.5
    low = ordered[max(0, int(count / 2 - half))]
    high = ordered[min(count - 1, int(np.ceil(count / 2 + half)))]
    return float(np.median(ordered)), float(low), float(high), count


def middle_half(totals: NDArray[Any] | Sequence[float]) -> NDArray[np.int64]:
    """Which launches are in the middle half, by their total, in its order; at least one."""
    order = np.argsort(np.asarray(totals), kind="stable")
    quarter = len(order) // 4
    return order[quarter : len(order) - quarter]


def middle_means(values: Array, totals: NDArray[Any] | Sequence[float]) -> tuple[Array, Array, Array]:
    """The middle means of figures, [launches, figures], and the ends of their 95 % intervals, each [figures]. The same
    for the same launches: what is drawn depends on their number alone."""
    ordered = values[np.argsort(np.asarray(totals), kind="stable")]
    count = len(ordered)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    draws = _weights(np.concatenate([np.ones((1, count), np.int64), drawn])) @ ordered
    low, high = np.quantile(draws, ENDS, axis=0)  # row 0, the estimate, is a draw like any other
    return draws[0], np.minimum(low, draws[0]), np.maximum(high, draws[0])


def _weights(times: NDArray[np.int64]) -> Array:
    """What each launch counts for in a middle mean, [draws, launches], given how many times it was drawn; launches are
    in the order of their totals."""
    count = times.shape[1]
    quarter = count // 4
    ends = np.clip(np.cumsum(times, axis=1), quarter, count - quarter)
    weights: Array = np.diff(ends, axis=1, prepend=quarter) / (count - 2 * quarter)
    return weights
