"""What a machine can do, measured: the values that the host's cost models go by, as a file.

Model: a profile is plain data. `superkernel.machine` measures one and keeps it; one of another machine can be compiled
against (`superkernel.compile(graph, target="big.json")`). Workers take CPUs in the order in which the profile counts
cores. Reads of a level that cores share are totals by number of cores that read at once, each its own bytes (`own`) or
all the same (`same`); between two measured numbers they are interpolated, beyond the last they grow no more.

Invariants: values are steps of 10 % (`rounded`), so that plans do not change with the noise of measuring; equal
profiles give equal plans. No result depends on a profile's rates but by which kernel computes it, the number of cores
never enters into that.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from superkernel.core.errors import FileFormatError, Violation, raise_all
from superkernel.core.files import text_of
from superkernel.core.json_text import parse_json

SCHEMA = 1
KIND = "machine"
STEP = 1.1
OPTIONAL = ("core", "tcm_bytes", "flash_bytes")
"""Fields that a file may leave out: of machines with the CPU at hand, whose memories are what a system gives."""
_MAY_LACK = ("f32_avx512", "f32_avx2", "bf16_dot", "int8_dot", "bf16_tiles", "int8_tiles")
_RATES = (*_MAY_LACK, "f32_plain", "l1_bytes_per_ns", "l2_bytes_per_ns")
_READS = ("l3_own", "l3_same", "memory_own", "memory_same")


@dataclass(frozen=True)
class MachineProfile:
    """Times in ns, rates per ns. docs/machine.md has the meaning of each field; the defaults stand where nothing was
    measured: a small machine, with a memory that two cores use up."""

    cpu: str = "not measured"
    identity: str = ""
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l3_bytes: int = 16 << 20
    core_of: tuple[int, ...] = (0,)
    cluster_of: tuple[int, ...] = (0,)
    node_of: tuple[int, ...] = (0,)
    f32_avx512: float | None = 100.0
    f32_avx2: float | None = 50.0
    f32_plain: float = 25.0
    bf16_dot: float | None = None
    int8_dot: float | None = None
    bf16_tiles: float | None = None
    int8_tiles: float | None = None
    l1_bytes_per_ns: float = 100.0
    l2_bytes_per_ns: float = 50.0
    readers: tuple[int, ...] = (1, 2, 4)
    l3_own: tuple[float, ...] = (25.0, 50.0, 100.0)
    l3_same: tuple[float, ...] = (25.0, 50.0, 100.0)
    memory_own: tuple[float, ...] = (12.0, 20.0, 25.0)
    memory_same: tuple[float, ...] = (12.0, 20.0, 25.0)
    handover_ns: tuple[tuple[float, ...], ...] = ()
    line_ns: float = 13.0
    woken: tuple[int, ...] = (1, 4, 16)
    wake_ns: tuple[float, ...] = (50e3, 80e3, 200e3)
    code_line_ns: tuple[float, ...] = ()
    disturbed: float = 0.0
    core: str | None = None
    tcm_bytes: int | None = None
    flash_bytes: int | None = None

    def regions(self) -> dict[str, int]:
        """Bytes of the memories that are no larger than what stands here, by name: `tcm`, which holds values, working
        memory and progress counters; `flash`, which holds packed constants and code."""
        sizes = {"tcm": self.tcm_bytes, "flash": self.flash_bytes}
        return {name: nbytes for name, nbytes in sizes.items() if nbytes is not None}

    def reading(self, level: str, cores: int) -> float:
        """Bytes per ns of each of so many cores at once; `level`: l3_own, l3_same, memory_own, memory_same."""
        return between(self.readers, getattr(self, level), cores) / cores

    def typical_handover_ns(self) -> float:
        """The median over pairs, one way; 100 where there is none."""
        pairs = sorted(ns for i, row in enumerate(self.handover_ns) for ns in row[:i])
        return pairs[len(pairs) // 2] if pairs else 100.0

    def waking_ns(self, workers: int) -> float:
        """Until so many sleeping workers are all awake."""
        return between(self.woken, self.wake_ns, workers)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` is the inverse."""
        rows = {name: value for name, value in asdict(self).items() if value is not None or name not in OPTIONAL}
        return {"kind": KIND, "schema": SCHEMA, **rows}

    def text(self) -> str:
        """As a file."""
        rows = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in self.to_json().items()]
        return "{\n" + ",\n".join(rows).replace("], [", "],\n  [") + "\n}\n"


DEFAULT = MachineProfile()
"""What is believed of a machine that nobody measured."""


def rounded(value: float) -> float:
    """The nearest power of STEP, to three digits; a measurement of 0 or less, or of no number, as 0."""
    if not value > 0 or not math.isfinite(value):
        return 0.0
    return float(f"{STEP ** round(math.log(value, STEP)):.3g}")


def between(counts: Sequence[int], values: Sequence[float], count: int) -> float:
    """The value at a count: linear between two, those at the ends beyond them."""
    at = bisect_left(counts, count)
    if at == len(counts) or counts[at] == count or at == 0:
        return values[min(at, len(counts) - 1)]
    low, high = counts[at - 1], counts[at]
    return values[at - 1] + (values[at] - values[at - 1]) * (count - low) / (high - low)


def raised_by(believed: MachineProfile, seen: MachineProfile) -> MachineProfile:
    """A belief, corrected by what was measured while others disturbed: who disturbs makes a machine slower, never
    faster, so it can do what was seen. What it has, and sizes and sharing, are what was seen."""
    faster: dict[str, Any] = {
        name: rate and max(rate, getattr(believed, name) or 0.0) for name in _RATES for rate in [getattr(seen, name)]
    }
    readers = tuple(sorted({*believed.readers, *seen.readers}))
    for name in _READS:
        tables = [(profile.readers, getattr(profile, name)) for profile in (believed, seen)]
        faster[name] = tuple(max(between(*table, n) for table in tables) for n in readers)
    typical = believed.typical_handover_ns()
    handover = believed.handover_ns or ((typical,) * len(seen.handover_ns),) * len(seen.handover_ns)
    woken = tuple(sorted({*believed.woken, *seen.woken}))
    return replace(
        seen,
        **faster,
        readers=readers,
        handover_ns=tuple(tuple(map(min, *rows)) for rows in zip(handover, seen.handover_ns, strict=True)),
        line_ns=min(believed.line_ns, seen.line_ns),
        woken=woken,
        wake_ns=tuple(min(believed.waking_ns(n), seen.waking_ns(n)) for n in woken),
    )


def load_profile(path: str | Path) -> MachineProfile:
    """The profile in a file. Raises FileFormatError with everything that is wrong with it."""
    where = f"file {str(path)!r}"
    try:
        data = parse_json(text_of(path))
    except (OSError, ValueError) as error:
        raise FileFormatError("cannot be read as a machine's profile", location=where, found=str(error)) from error
    return from_json(data, where)


def from_json(data: object, where: str = "profile") -> MachineProfile:
    """Inverse of `MachineProfile.to_json`; every field, of the `OPTIONAL` ones any, no others. Raises FileFormatError
    with all violations."""
    if not isinstance(data, Mapping) or data.get("kind") != KIND or data.get("schema") != SCHEMA:
        found = (
            f"kind {data.get('kind')!r}, schema {data.get('schema')!r}" if isinstance(data, Mapping) else "no object"
        )
        raise FileFormatError("not a machine's profile", location=where, expected=f"schema {SCHEMA}", found=found)
    kinds = get_type_hints(MachineProfile)
    wrong = [
        Violation("no such field", f"{where}, {name!r}") for name in data.keys() - kinds.keys() - {"kind", "schema"}
    ]
    values: dict[str, Any] = {}
    for field in fields(MachineProfile):
        name, kind = field.name, kinds[field.name]
        if name in OPTIONAL and name not in data:
            continue
        try:
            values[name] = _read(kind, data[name])
        except KeyError:
            wrong.append(Violation("missing", f"{where}, {name!r}"))
        except ValueError as error:
            wrong.append(Violation("not a value", f"{where}, {name!r}", str(error), repr(data[name])[:80]))
    raise_all(FileFormatError, wrong)
    made = MachineProfile(**values)
    raise_all(FileFormatError, [Violation(text, where) for text in _relations(made)])
    return made


def _read(kind: Any, value: Any) -> Any:
    """A value of a declared type. Raises ValueError with what is expected."""
    if isinstance(kind, UnionType):
        return None if value is None else _read(get_args(kind)[0], value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError("a list")
        return tuple(_read(get_args(kind)[0], item) for item in value)
    if kind is str:
        if not isinstance(value, str):
            raise ValueError("a text")
        return value
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise ValueError("a whole number" if kind is int else "a number")
    if not 0 <= value < math.inf:
        raise ValueError("a finite number, 0 or more")
    return kind(value)


def _relations(made: MachineProfile) -> list[str]:
    """What is wrong between fields."""
    cores = len(made.core_of)
    wrong = []
    if not cores or len(made.cluster_of) != cores or len(made.node_of) != cores:
        wrong.append("core_of, cluster_of, node_of: not one number per CPU each")
    if any(len(row) != len(made.handover_ns) for row in made.handover_ns) or len(made.handover_ns) not in (0, cores):
        wrong.append("handover_ns: not one row and one column per CPU")
    for counts, names in (("readers", _READS), ("woken", ("wake_ns",))):
        numbers = getattr(made, counts)
        if not numbers or sorted({*numbers}) != [*numbers] or numbers[0] < 1:
            wrong.append(f"{counts}: not ascending numbers from 1 on")
        wrong += [
            f"{name}: not one value per number of {counts}"
            for name in names
            if len(getattr(made, name)) != len(numbers)
        ]
    positive = ("f32_plain", "l1_bytes_per_ns", "l2_bytes_per_ns", "l1_bytes", "l2_bytes", "l3_bytes")
    wrong += [f"{name}: not above 0" for name in positive if not getattr(made, name)]
    wrong += [f"{name}: 0, where null says that the CPU has none" for name in _MAY_LACK if getattr(made, name) == 0]
    wrong += [f"{name}: not above 0" for name in _READS if not all(getattr(made, name))]
    return wrong
