"""What got faster or slower between two benchmark runs, beyond their intervals.

    python bench/compare.py BEFORE.json AFTER.json [--runner superkernel] [--fail-slower]

The machine may have been slower in one run than in the other. Times are therefore compared in two ways: as they are,
and relative to the rivals that both runs timed (the geometric mean of their times, which should not have changed). A
change counts where the intervals of the two medians are apart in both.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stats import Estimate, geometric_mean

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One workload of one runner: time after over time before, as it is and with the machine's drift taken out."""

    workload: str
    before_ns: float
    after_ns: float
    drift: float
    verdict: str  # faster, slower, same

    @property
    def ratio(self) -> float:
        return self.after_ns / self.before_ns

    def __str__(self) -> str:
        return (
            f"{self.workload:<24} {self.before_ns / 1e3:>11.2f} us -> {self.after_ns / 1e3:>11.2f} us  "
            f"x{self.ratio:.3f} (machine x{self.drift:.3f})  {self.verdict}"
        )


def _timed(results: Results) -> dict[str, Mapping[str, Any]]:
    """workload -> its runners that were timed."""
    return {
        w["name"]: {name: row for name, row in w["runners"].items() if "median_ns" in row}
        for w in results["workloads"]
        if "runners" in w
    }


def _estimate(row: Mapping[str, Any], factor: float = 1.0) -> Estimate:
    return Estimate(row["median_ns"] * factor, row["low_ns"] * factor, row["high_ns"] * factor)


Rows = Mapping[str, Mapping[str, Any]]  # runner -> its row


def _rival_ratios(before: Rows, after: Rows) -> list[float]:
    common = [name for name in before if name in after and not name.startswith("superkernel")]
    return [after[name]["median_ns"] / before[name]["median_ns"] for name in common]


def drift(before: Mapping[str, Rows], after: Mapping[str, Rows], workload: str) -> float:
    """How much slower the machine was in the second run: by the rivals that both timed on the workload, else by those
    on all workloads; 1 where there are none at all."""
    ratios = _rival_ratios(before[workload], after[workload])
    if not ratios:
        ratios = [r for name in before if name in after for r in _rival_ratios(before[name], after[name])]
    return geometric_mean(ratios) if ratios else 1.0


def compare(before: Results, after: Results, runner: str) -> list[Change]:
    """Changes on the workloads that both runs timed. Raises ValueError where the runs cannot be compared."""
    for results in (before, after):
        if results.get("schema") != "superkernel.bench/1":
            raise ValueError(f"not a benchmark result: schema {results.get('schema')!r}")
    if before["settings"]["threads"] != after["settings"]["threads"]:
        raise ValueError("the runs used different numbers of threads")
    first, second = _timed(before), _timed(after)
    changes = []
    for name, rows in first.items():
        if runner not in rows or runner not in second.get(name, {}):
            continue
        old, new, machine = rows[runner], second[name][runner], drift(first, second, name)
        verdict = "same"
        apart = not _estimate(old).overlaps(_estimate(new))
        if apart and not _estimate(old, machine).overlaps(_estimate(new)):
            ratio, adjusted = new["median_ns"] / old["median_ns"], new["median_ns"] / (old["median_ns"] * machine)
            if (ratio < 1) == (adjusted < 1):
                verdict = "faster" if ratio < 1 else "slower"
        changes.append(Change(name, old["median_ns"], new["median_ns"], machine, verdict))
    return changes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--runner", default="superkernel")
    parser.add_argument("--fail-slower", action="store_true", help="exit status 1 where anything got slower")
    args = parser.parse_args(arguments)
    before, after = (json.loads(path.read_text()) for path in (args.before, args.after))
    try:
        changes = compare(before, after, args.runner)
    except ValueError as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    if before["machine"] != after["machine"]:
        print("the machines differ: ratios may mean that alone", file=sys.stderr)
    for change in sorted(changes, key=lambda c: c.ratio):
        print(change)
    counts = {verdict: sum(c.verdict == verdict for c in changes) for verdict in ("faster", "slower", "same")}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if args.fail_slower and counts["slower"] else 0


if __name__ == "__main__":
    sys.exit(main())
