"""Guards against change: what a model did under one version (`Snapshot`), held against what it does under another.

Model: a snapshot is plain data in a file: version, target, the kernel of every sub-operator with its reasons, memory,
the bits of the outputs on stated inputs, whether two runs gave the same, and the time of a launch with its 95 %
interval. `compare` tells two apart; a `SnapshotChange` is over a limit or merely said. What limits say is in `Limits`.

A slower launch is one where the intervals do not meet and the nearest ends are further apart than the limit: noise
makes no regression. Times of two machines say nothing: they are compared only where target and cores are the same.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.analysis.errors import relative_error
from superkernel.compilation.kernel_uses import KernelUses
from superkernel.core.dtypes import DType
from superkernel.core.errors import (
    FileFormatError,
    InputError,
    OutputChangedError,
    RegressionError,
    Violation,
    raise_all,
)
from superkernel.core.files import text_of, whole
from superkernel.core.json_text import parse_json
from superkernel.core.version import __version__
from superkernel.runtime.kernel import Kernel
from superkernel.target.base import identity_of

Array = NDArray[Any]

SCHEMA = "superkernel.snapshot/1"
MEMORY = ("workspace_bytes", "arena_bytes", "constant_bytes", "code_bytes")
_PROMISES = ("none", "run-to-run", "bitwise")
_ROLES = ("tuned", "generic", "reference")


@dataclass(frozen=True)
class Limits:
    """What may change. `ulps`, `tolerance` (of the largest magnitude): outputs that keep to either are the same enough;
    `slower`, `memory`: parts of 1 by which a launch may take longer, and memory grow; `kernels`: whether other kernels
    may be taken."""

    ulps: float = 0.0
    tolerance: float = 0.0
    slower: float = 0.05
    memory: float = 0.0
    kernels: bool = True

    def __post_init__(self) -> None:
        wrong = [
            Violation("not a limit", f"limit {name!r}", "a number >= 0", repr(getattr(self, name)))
            for name in ("ulps", "tolerance", "slower", "memory")
            if not getattr(self, name) >= 0
        ]
        raise_all(InputError, wrong)


@dataclass(frozen=True)
class SnapshotChange:
    """One difference. `kind`: environment, kernel, fallback, promise, output, memory or latency."""

    kind: str
    what: str
    before: str
    after: str
    over_limit: bool = False

    def __str__(self) -> str:
        return f"{'OVER LIMIT ' if self.over_limit else ''}{self.kind}: {self.what}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Canary:
    """All differences of two snapshots, those over a limit first."""

    changes: tuple[SnapshotChange, ...]

    @property
    def ok(self) -> bool:
        """Whether everything keeps to the limits."""
        return not any(change.over_limit for change in self.changes)

    def check(self) -> None:
        """Raises OutputChangedError where outputs or promises are over a limit, RegressionError where anything else
        is."""
        found = [change for change in self.changes if change.over_limit]
        wrong = [Violation(f"{c.kind} over its limit", c.what, c.before, c.after) for c in found]
        numeric = any(c.kind in ("output", "promise") for c in found)
        raise_all(OutputChangedError if numeric else RegressionError, wrong)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"ok": self.ok, "changes": [asdict(change) for change in self.changes]}

    def text(self) -> str:
        """A line per difference."""
        return "\n".join(map(str, self.changes)) or "no difference"


Snapshot = Mapping[str, Any]
"""Plain data of schema `SCHEMA`."""


def take(kernel: Kernel, inputs: Mapping[str, Array], rounds: int = 100) -> Snapshot:
    """What a kernel does on inputs: two runs from its states as they are, and a report of `rounds` rounds."""
    compiled = kernel._compiled
    runs = [copy.copy(kernel).run(inputs).outputs for _ in range(2)]
    report = kernel.report(inputs, rounds=rounds).to_json()
    summary = compiled.summary()
    sizes = [summary.get(name, 0) for name in MEMORY[1:]]
    return {
        "schema": SCHEMA,
        "package": __version__,
        "graph": compiled.graph.name,
        "target": [*identity_of(compiled.target), str(compiled.cores)],
        "options": repr(compiled.options),
        "inputs": {name: _digest(np.asarray(array)) for name, array in sorted(inputs.items())},
        "kernels": [asdict(use) for use in KernelUses(compiled)],
        "memory": dict(zip(MEMORY, (compiled.schedule.scratch_bytes, *sizes), strict=True)),
        "outputs": {name: _packed(array) for name, array in runs[0].items()},
        "repeatable": all(runs[0][name].tobytes() == runs[1][name].tobytes() for name in runs[0]),
        "launch": _launch(report),
    }


def _launch(report: Mapping[str, Any]) -> dict[str, float]:
    """Median and interval of a launch in ns; simulated times have no interval."""
    run = report.get("run")
    if run is not None:
        return {name: float(run[name]) for name in ("median_ns", "low_ns", "high_ns")}
    simulated_ns = (float(report["time_us"]) - float(report["numpy_us"])) * 1000
    return dict.fromkeys(("median_ns", "low_ns", "high_ns"), simulated_ns)


def _digest(array: Array) -> str:
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()).hexdigest()


def _packed(array: Array) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes())).decode("ascii")
    return {"dtype": DType.of(array.dtype).value, "shape": list(array.shape), "data": data}


def _unpacked(packed: Mapping[str, Any]) -> Array:
    kind = DType(packed["dtype"]).numpy
    found: Array = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), kind).reshape(packed["shape"])
    return found


def write(snapshot: Snapshot, path: str | PathLike[str]) -> None:
    """Replace the file atomically. Raises OSError."""
    with whole(Path(path)) as file:
        file.write((json.dumps(snapshot, indent=1, sort_keys=True) + "\n").encode())


def read(path: str | PathLike[str]) -> Snapshot:
    """A snapshot from its file. Raises InputError where there is none, FileFormatError on what is none."""
    where = f"file {str(path)!r}"
    try:
        data = parse_json(text_of(path))
        if data.get("schema") != SCHEMA:
            raise FileFormatError("not a snapshot", location=where, expected=SCHEMA, found=repr(data.get("schema")))
        missing = {"package", "target", "inputs", "kernels", "memory", "outputs", "repeatable", "launch"} - data.keys()
        if missing:
            raise FileFormatError("a damaged snapshot", location=where, found=f"no {', '.join(sorted(missing))}")
        for output in data["outputs"].values():
            _unpacked(output)
    except OSError as error:
        raise InputError("cannot read the snapshot", location=where, found=str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise FileFormatError("a damaged snapshot", location=where, found=repr(error)) from error
    found: Snapshot = data
    return found


def compare(old: Snapshot, new: Snapshot, limits: Limits | None = None) -> Canary:
    """What is different. Raises InputError where the two are of other inputs."""
    if old["inputs"] != new["inputs"]:
        hint = "take both with the same --inputs, or the same seed of --random-inputs"
        expected, found = (", ".join(f"{n} {d[:12]}" for n, d in one["inputs"].items()) for one in (old, new))
        raise InputError("snapshots of different inputs", expected=expected, found=found, hint=hint)
    limits = limits or Limits()
    changes = [
        *_environment(old, new), *_kernels(old, new, limits), *_outputs(old, new, limits),
        *_memory(old, new, limits), *_latency(old, new, limits),
    ]  # fmt: skip
    return Canary(tuple(sorted(changes, key=lambda change: not change.over_limit)))


def _environment(old: Snapshot, new: Snapshot) -> Iterator[SnapshotChange]:
    for name in ("package", "target", "options"):
        if old.get(name) != new.get(name):
            yield SnapshotChange("environment", name, str(old.get(name)), str(new.get(name)))


def _kernels(old: Snapshot, new: Snapshot, limits: Limits) -> Iterator[SnapshotChange]:
    """By the sub-operators' names. A role that is worse is a fallback, a promise that is less a change of its own."""
    before, after = ({use["name"]: use for use in one["kernels"]} for one in (old, new))
    for name in [*before, *(n for n in after if n not in before)]:
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            rows = [one["row"] if one else "no sub-operator" for one in (a, b)]
            yield SnapshotChange("kernel", name, rows[0], rows[1], not limits.kernels)
            a = a or {"role": "tuned", "determinism": "bitwise", "row": ""}
            b = b or a
        elif (a["row"], a["computed_in"]) != (b["row"], b["computed_in"]):
            texts = [f"{one['row']} in {one['computed_in']} ({one['why']})" for one in (a, b)]
            yield SnapshotChange("kernel", name, texts[0], texts[1], not limits.kernels)
        if _ROLES.index(b["role"]) > _ROLES.index(a["role"]):
            yield SnapshotChange("fallback", name, a["role"], f"{b['role']}: {b.get('fallback')}", over_limit=True)
        if _PROMISES.index(b["determinism"]) < _PROMISES.index(a["determinism"]):
            yield SnapshotChange("promise", name, a["determinism"], b["determinism"], over_limit=True)


def _outputs(old: Snapshot, new: Snapshot, limits: Limits) -> Iterator[SnapshotChange]:
    if old["repeatable"] and not new["repeatable"]:
        yield SnapshotChange("promise", "two runs", "the same bits", "other bits", over_limit=True)
    for name in dict.fromkeys([*old["outputs"], *new["outputs"]]):
        a, b = (one["outputs"].get(name) for one in (old, new))
        kinds = ["none" if one is None else f"{one['dtype']}{one['shape']}" for one in (a, b)]
        if a is None or b is None or kinds[0] != kinds[1]:
            yield SnapshotChange("output", name, kinds[0], kinds[1], over_limit=True)
            continue
        was, now = _unpacked(a), _unpacked(b)
        if was.tobytes() != now.tobytes():
            apart, relative = ulps_apart(was, now), relative_error(now, was, was)
            over = apart > limits.ulps and relative > limits.tolerance
            said = f"{int((was != now).sum())} of {was.size} elements, {apart:g} ulps, {relative:.3g} of the largest"
            yield SnapshotChange("output", name, "bits", said, over)


def ulps_apart(a: Array, b: Array) -> float:
    """The largest distance of elements in units of the last place; of integers their difference. Infinite where one is
    no number and the other is."""
    if not DType.of(a.dtype).is_float:
        return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    lost = np.isnan(wide_a) != np.isnan(wide_b)
    if lost.any():
        return float("inf")
    numbers = ~np.isnan(wide_a)
    p, q = _place(a)[numbers], _place(b)[numbers]
    across = np.abs(p.astype(np.float64) - q.astype(np.float64))  # of other signs an integer might not hold it
    return float(np.where((p < 0) == (q < 0), np.abs(p - q), across).max(initial=0.0))


def _place(array: Array) -> NDArray[np.int64]:
    """Numbers counted from zero, downwards where they are negative."""
    width = 8 * array.dtype.itemsize
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").astype(np.uint64)
    magnitude = (bits & np.uint64(2 ** (width - 1) - 1)).astype(np.int64)
    found: NDArray[np.int64] = np.where(bits >> np.uint64(width - 1) == 1, -magnitude, magnitude)
    return found


def _memory(old: Snapshot, new: Snapshot, limits: Limits) -> Iterator[SnapshotChange]:
    for name in MEMORY:
        a, b = int(old["memory"].get(name, 0)), int(new["memory"].get(name, 0))
        if a != b:
            yield SnapshotChange("memory", name, f"{a:,}", f"{b:,}", b > a * (1 + limits.memory))


def _latency(old: Snapshot, new: Snapshot, limits: Limits) -> Iterator[SnapshotChange]:
    a, b = old["launch"], new["launch"]
    if a["high_ns"] >= b["low_ns"] and b["high_ns"] >= a["low_ns"]:
        return  # the intervals meet: nothing is known to have changed
    same = old["target"] == new["target"]
    over = same and b["low_ns"] > a["high_ns"] * (1 + limits.slower)
    before, after = (f"{x['median_ns']:.0f} ns [{x['low_ns']:.0f}, {x['high_ns']:.0f}]" for x in (a, b))
    yield SnapshotChange("latency", "a launch" if same else "a launch on another target", before, after, over)
