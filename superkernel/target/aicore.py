"""The accelerator as data: `AicoreTarget`, its derived figures, and `load_target`.

Model: a target is a name and fifteen frozen sections (`sections.py`) whose values come from a preset or a user's file,
never from code. Each value remembers where it is from ("published", "default", or "user" for what a user's file sets);
uncertain ones have a sensitivity range for `sweep`. Times are kept in the unit of their source: what the accelerator
counts is integer cycles, made by the methods here and nowhere else, rounded up, so that every user of a figure gets the
same integer.

Invariant: a target that exists is legal: all entry points (`load_target`, `parse_target`, `replaced`) check every field
and every relation between fields, and report all violations at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from superkernel.core.dtypes import DType
from superkernel.target import reading, sections
from superkernel.target.base import Target
from superkernel.target.schema import Value
from superkernel.target.sections import SECTIONS, all_fields

TRIPLE = "riscv64-unknown-none-elf"
"""The control units' architecture, as LLVM names it."""


@dataclass(frozen=True, kw_only=True)
class AicoreTarget(Target):
    """A whole description. `origins` and `sensitivity` are sorted pairs by field path; use `origin` and `range_of`."""

    name: str
    description: str
    device: sections.DeviceSection
    memory: sections.Memory
    control: sections.Control
    icache: sections.InstructionCache
    l2: sections.L2Cache
    hbm: sections.Hbm
    rates: sections.Rates
    dma: sections.Dma
    cube: sections.Cube
    vector: sections.Vector
    queue: sections.Queue
    sync: sections.Sync
    dispatch: sections.Dispatch
    sdma: sections.Sdma
    map: sections.AddressMap
    origins: tuple[tuple[str, str], ...]
    sensitivity: tuple[tuple[str, float, float], ...]

    kind: ClassVar[str] = "aicore"
    core_types: ClassVar[bool] = True
    separates_scopes: ClassVar[bool] = True
    image_layouts: ClassVar[tuple[str, ...]] = ("channels_last",)
    computes_integers: ClassVar[bool] = True
    signed_integers: ClassVar[bool] = True
    tables_beside: ClassVar[bool] = True

    def identity(self) -> tuple[str, str, str]:
        """The control units' architecture, the name, and a digest of the whole description."""
        return TRIPLE, self.name, sha256(self.text().encode()).hexdigest()[:16]

    def facts(self) -> Mapping[str, Any]:
        """What clauses of kernels demand: steps of the matrix engine, shape of a group, aicpu harts."""
        cube = self.cube
        depths = {DType.F32: cube.k_f32, DType.F16: cube.k_f16, DType.BF16: cube.k_f16, DType.I8: cube.k_i8}
        return {
            "aicore.cube_step": (cube.m, cube.n),
            "aicore.group": (self.device.cube_cores_per_group, self.device.vector_cores_per_group),
            "aicore.cube_depths": tuple(depths.items()),
            "aicore.aicpu_harts": int(self.device.aicpu_harts),
        }

    def __repr__(self) -> str:
        """One line; `text()` has all fields."""
        return f"<superkernel target {self.name!r}: {self.description}>"

    def value(self, path: str) -> Value:
        """The value of "section.field"; KeyError where there is none."""
        if path not in all_fields():
            raise KeyError(path)
        section, name = path.split(".")
        value: Value = getattr(getattr(self, section), name)
        return value

    def origin(self, path: str) -> str:
        """Where a value is from: "published", "default" or "user"."""
        return dict(self.origins)[path]

    def range_of(self, path: str) -> tuple[float, float] | None:
        """The sensitivity range of an uncertain field, None of others."""
        return next(((low, high) for name, low, high in self.sensitivity if name == path), None)

    def replaced(self, values: Mapping[str, Value]) -> AicoreTarget:
        """The target with other values of some fields, as a user's file would set them. Raises FileFormatError."""
        return _made(reading.replace(self._described(), values))

    def sweep(self, path: str, points: int = 5) -> list[AicoreTarget]:
        """Targets over a field's sensitivity range, both ends included, spaced evenly in the logarithm where low > 0.

        Whole numbers are rounded and repeated ones left out. KeyError for a field without a range.
        """
        found = self.range_of(path)
        if found is None or points < 2:
            raise KeyError(path)
        low, high = found
        steps = [i / (points - 1) for i in range(points)]
        values = [low * (high / low) ** s if low > 0 else low + (high - low) * s for s in steps]
        values[0], values[-1] = low, high
        spec = all_fields()[path]
        if spec.element is int:
            values = sorted({_fitting(round(v), spec.quantity.power_of_two) for v in values})
        return [self.replaced({path: v}) for v in values]

    # Cores. Global numbers: cube cores first, then vector cores; those of group g stand next to one another.

    @property
    def cores(self) -> int:
        """Cube and vector cores together."""
        return self.device.cube_cores + self.device.vector_cores

    def is_cube(self, core: int) -> bool:
        """Whether a core's number is a cube core's; they come first."""
        return core < self.device.cube_cores

    def group_of(self, core: int) -> int:
        """The group of a global core number."""
        if self.is_cube(core):
            return core // self.device.cube_cores_per_group
        return (core - self.device.cube_cores) // self.device.vector_cores_per_group

    # Time.

    def cycles(self, time_ns: float) -> int:
        """Cycles of a time: ceil(time_ns x clock_mhz / 1000)."""
        exact = time_ns * self.device.clock_mhz
        return math.ceil(exact / 1000) if not isinstance(exact, int) else -(-exact // 1000)

    def nanoseconds(self, cycles: int) -> float:
        """Time of cycles: cycles x 1000 / clock_mhz."""
        return cycles * 1000 / self.device.clock_mhz

    def flag_cycles(self, mode: str) -> int:
        """From the last signal of an event until waits for it end. `mode`: of `cross_set`, or `notify` for a word in
        memory that setters add to. What reaches both types of cores goes from core to core of a type, then within each
        group."""
        sync = self.sync
        wide, near = self.cycles(sync.core_full_ns), self.cycles(sync.group_ns)
        return {
            "type": wide, "group": near, "pair": near, "all": wide + near, "across": wide + near,
            "mask": self.cycles(sync.point_to_point_ns),
            "notify": self.cycles(sync.memory_flag_ns) + self.cycles(sync.atomic_ns),
        }[mode]  # fmt: skip

    def bytes_per_cycle(self, rate_gb_per_s: float) -> float:
        """rate_gb_per_s x 1000 / clock_mhz (GB = 10^9 bytes), without `rates.scale`."""
        return rate_gb_per_s * 1000 / self.device.clock_mhz

    def mb_per_s(self, path: str) -> int:
        """A rate as whole MB/s (10^6), what cycle counts are made from; `rates.*` times `rates.scale`."""
        return self._mb_per_s[path]

    @cached_property
    def _mb_per_s(self) -> dict[str, int]:
        """By path. Estimates ask for few rates, and for each of them hundreds of thousands of times."""
        found = {}
        for path in all_fields():
            rate = self.value(path)
            if isinstance(rate, float) and path.endswith("gb_per_s"):
                factor = self.rates.scale if path.startswith("rates.") else 1.0
                found[path] = max(1, round(rate * factor * 1000))
        return found

    def transfer_cycles(self, path: str, size_bytes: int) -> int:
        """Cycles of a transfer at a rate, without start-up: ceil(size_bytes x clock_mhz / mb_per_s)."""
        return -(-size_bytes * self.device.clock_mhz // self.mb_per_s(path))

    def global_transfer_cycles(self, path: str, size_bytes: int, address: int) -> int:
        """`transfer_cycles`, longer by 100 / (100 - dma.unaligned_loss_percent) off dma.aligned_bytes, rounded up.

        The percentage counts in whole tenths, so that the result is exact integer arithmetic.
        """
        cycles = self.transfer_cycles(path, size_bytes)
        if address % self.dma.aligned_bytes == 0:
            return cycles
        return -(-cycles * 1000 // (1000 - round(self.dma.unaligned_loss_percent * 10)))

    def missed_cycles(self, beats: int, missed_bytes: int, sharers: float = 1.0, at_once: float = 1.0) -> int:
        """Data cycles of a read that takes `beats` from L2, where L2 lacks so many bytes of the lines that it touches.

        A core brings `hbm.core_bytes_per_cycle`. Of `sharers` that ask for the same lines at a time, the first brings
        all until it is late by as much as requests run ahead, `dma.startup_cycles`; from then on they take turns.
        `at_once` such reads, of different lines, have HBM's rate together. The last line takes `hbm.latency_ns`.
        """
        alone = missed_bytes // self.hbm.core_bytes_per_cycle
        shared = max(beats, int(alone / sharers)) + self.dma.startup_cycles
        together = int(missed_bytes * at_once / self.bytes_per_cycle(self.hbm_gb_per_s))
        return max(beats, together, min(alone, shared)) + self.cycles(self.hbm.latency_ns)

    def move_cycles(self, path: str, rows: int, row_bytes: int, address: int = 0) -> int:
        """Cycles of a command that moves rows to or from global memory: `startup_of` the path,
        `global_transfer_cycles`, and dma.row_cycles for each row but the first."""
        beats = self.global_transfer_cycles(path, rows * row_bytes, address)
        return self.startup_of(path) + beats + (rows - 1) * self.dma.row_cycles

    def startup_of(self, path: str) -> int:
        """Start-up of a command on a path to or from global memory: stores wait for no answer."""
        stores = path.endswith("_to_gm_gb_per_s")
        return int(self.dma.store_startup_cycles if stores else self.dma.startup_cycles)

    # Device figures.

    @property
    def l2_bank_line_cycles(self) -> int:
        """Cycles a bank is busy with one line: ceil(line_bytes x banks / aggregate bytes per cycle)."""
        return -(-self.l2.line_bytes * self.l2.banks * self.device.clock_mhz // self.mb_per_s("l2.aggregate_gb_per_s"))

    @property
    def hbm_gb_per_s(self) -> float:
        """What HBM gives: hbm.rate_gb_per_s without hbm.loss_percent."""
        return self.hbm.rate_gb_per_s * (100 - self.hbm.loss_percent) / 100

    @property
    def hbm_channel_line_cycles(self) -> int:
        """Cycles a channel is busy with one L2 line: ceil(line_bytes x channels / `hbm_gb_per_s` per cycle)."""
        scaled = self.l2.line_bytes * self.hbm.channels * self.device.clock_mhz
        return -(-scaled // max(1, round(self.hbm_gb_per_s * 1000)))

    @property
    def l2_room_bytes(self) -> int:
        """Bytes that L2 has room for: l2.usable_percent of l2.capacity_bytes, whole lines."""
        lines = int(self.l2.capacity_bytes) * self.l2.usable_percent // 100 // self.l2.line_bytes
        return lines * self.l2.line_bytes

    @property
    def icache_fill_cycles(self) -> int:
        """Cycles of filling one instruction-cache line: ceil(line_bytes / fill_bytes_per_cycle)."""
        return -(-self.icache.line_bytes // self.icache.fill_bytes_per_cycle)

    def cube_flops_per_ns(self, depth: int) -> float:
        """Peak of all cube cores at a depth per step (k_f16, ...): 2 x m x n x depth x cube_cores x clock."""
        return 2 * self.cube.m * self.cube.n * depth * self.device.cube_cores * self.device.clock_mhz / 1000

    def vector_ops_per_ns(self, lanes: int) -> float:
        """Peak of all vector cores: lanes x vector_cores x clock_mhz / 1000, one operation per lane and cycle."""
        return lanes * self.device.vector_cores * self.device.clock_mhz / 1000

    def text(self) -> str:
        """The description as TOML; `parse_target` of it gives an equal target."""
        return reading.to_toml(self._described())

    def _described(self) -> reading.Description:
        ranges = {path: (low, high) for path, low, high in self.sensitivity}
        values = {path: self.value(path) for path in all_fields()}
        return reading.Description(self.name, self.description, values, dict(self.origins), ranges)


def _fitting(value: int, power_of_two: bool) -> int:
    """`value`, or the nearest power of two in the logarithm."""
    return 1 << round(math.log2(value)) if power_of_two and value > 0 else value


def _made(found: reading.Description) -> AicoreTarget:
    parts: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        own = {s.name: found.values[s.path] for s in all_fields().values() if s.section == section}
        parts[section] = kind(**own)
    return AicoreTarget(
        name=found.name,
        description=found.description,
        origins=tuple(sorted(found.origins.items())),
        sensitivity=tuple(sorted((path, *ends) for path, ends in found.sensitivity.items())),
        **parts,
    )


def load_target(name_or_path: str | Path) -> AicoreTarget:
    """The target of a preset's name, always the same object, or of a TOML file. Raises FileFormatError, InputError for
    an unknown name."""
    known = isinstance(name_or_path, str) and name_or_path in preset_names()
    return _preset(str(name_or_path)) if known else _made(reading.load(name_or_path))


@cache
def _preset(name: str) -> AicoreTarget:
    """Read once: what is remembered of compilations holds its target."""
    return _made(reading.load(name))


def parse_target(text: str, *, origin: str = "text", folder: Path | None = None) -> AicoreTarget:
    """The target of a TOML text; `folder` is where a `base` that is a path is looked for. Raises FileFormatError."""
    return _made(reading.parse(text, origin=origin, folder=folder))


def preset_names() -> tuple[str, ...]:
    """The presets that are shipped."""
    return tuple(reading.presets())
