"""Measured times of kernels, by problem, kernel and device: what outranks every cost model.

Model: a JSON file apart from manifests and rows. An entry is a median with its number of samples. Merging two databases
pools the entries: the one with more samples stands, on a tie the lower time, so that merging is commutative,
associative and idempotent.

Invariant: times only. Workspace and code size are properties of rows and never come from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from superkernel.core.errors import FileFormatError, InputError
from superkernel.registry.canonical import digest, read_json, write_json
from superkernel.registry.records import Platform
from superkernel.target.base import identity_of

SCHEMA = 1


class Timing(NamedTuple):
    """Median of so many samples."""

    median_ns: float
    samples: int


class TimingKey(NamedTuple):
    """`problem`: Requirement.problem_key; `kernel`: the row's id; `device`: TimingDatabase.device_of."""

    problem: str
    kernel: str
    device: str


@dataclass
class TimingDatabase:
    """Times in memory; `load` and `save` move them from and to a file."""

    entries: dict[TimingKey, Timing] = field(default_factory=dict)

    @staticmethod
    def device_of(platform: Platform) -> str:
        """What identifies a device: target triple, tier, features and, of a CPU, cache sizes."""
        target = platform.target
        return digest([*identity_of(target), list(target.timing_key()), platform.device, platform.core_type])[:16]

    def lookup(self, problem: str, kernel: str, device: str) -> float | None:
        """The median in ns, or None where it was never measured."""
        found = self.entries.get(TimingKey(problem, kernel, device))
        return None if found is None else found.median_ns

    def record(self, key: TimingKey, samples_ns: list[float]) -> Timing:
        """Replace the entry by the median of new samples. Raises InputError on none, or on a sample that is no time."""
        if not samples_ns or not all(isfinite(s) and s > 0 for s in samples_ns):
            raise InputError("not samples of a time", expected="positive finite numbers", found=repr(samples_ns)[:80])
        timing = Timing(float(median(samples_ns)), len(samples_ns))
        self.entries[key] = timing
        return timing

    def merged(self, other: TimingDatabase) -> TimingDatabase:
        """The entries of both; on a clash more samples win, then the lower time."""
        entries = dict(self.entries)
        for key, timing in other.entries.items():
            mine = entries.get(key)
            entries[key] = timing if mine is None else min(mine, timing, key=lambda t: (-t.samples, t.median_ns))
        return TimingDatabase(entries)

    def to_json(self) -> dict[str, Any]:
        """Plain data, sorted."""
        rows = [[*key, timing.median_ns, timing.samples] for key, timing in sorted(self.entries.items())]
        return {"schema": SCHEMA, "kind": "timings", "entries": rows}

    @staticmethod
    def from_json(data: Mapping[str, Any], location: str = "") -> TimingDatabase:
        """Inverse of `to_json`. Raises FileFormatError."""
        if data.get("kind") != "timings" or data.get("schema") != SCHEMA:
            found = f"{data.get('kind')!r} of schema {data.get('schema')!r}"
            raise FileFormatError("not a timing database", location=location, expected=f"schema {SCHEMA}", found=found)
        try:
            entries = {
                TimingKey(str(p), str(k), str(d)): Timing(float(ns), int(n)) for p, k, d, ns, n in data["entries"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError("a damaged timing database", location=location, found=str(error)) from error
        return TimingDatabase(entries)

    @staticmethod
    def load(path: Path) -> TimingDatabase:
        """The database in a file; empty where there is no file."""
        if not path.exists():
            return TimingDatabase()
        return TimingDatabase.from_json(read_json(path, "timing database"), f"file {str(path)!r}")

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        write_json(path, self.to_json())
