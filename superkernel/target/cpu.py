"""The host CPU as a compilation target: features, vector width, cache sizes, and the numbers the cost model needs.

Plain data: `superkernel.codegen.host.features.detect_cpu()` asks LLVM what the machine at hand has and calls
`cpu_target`. Every number has a default that is only a starting point for the cost model; `make bench` prints
measured ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from superkernel.core.dtypes import DType
from superkernel.target.base import Target

TIERS = ("avx512", "avx2", "plain")
THREADS_MAX = 64
"""Workers of one kernel, at most."""

AVX2 = ("avx2", "fma", "f16c", "avx", "bmi", "bmi2", "sse4.2", "popcnt", "lzcnt", "movbe")
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_OPTIONAL = ("avx512vnni", "avx512bf16", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "avx512ifma")


@dataclass(frozen=True)
class CpuTarget(Target):
    """What code is generated for. `features` is the sorted LLVM feature string."""

    kind: ClassVar[str] = "cpu"
    image_layouts: ClassVar[tuple[str, ...]] = ("row_major", "channels_last")

    triple: str
    tier: str  # "avx512", "avx2", "plain"
    features: str
    vector_bytes: int  # widest useful vector register
    vector_registers: int
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    l3_bytes: int = 32 * 1024 * 1024
    flops_per_ns: float = 100.0  # f32 multiply-add peak of one core, 2 flops each
    l2_bytes_per_ns: float = 80.0
    l3_bytes_per_ns: float = 60.0
    dram_bytes_per_ns: float = 24.0
    constants_bytes: int = 0  # while tilings are chosen: constants that a launch of the program reads
    handover_ns: float = 100.0  # one flag from one core to another, producer's store to consumer's exit from the wait

    def lanes(self, dtype: DType) -> int:
        """Elements of a full vector register."""
        return max(1, self.vector_bytes // dtype.itemsize)

    def has(self, feature: str) -> bool:
        """True where code may use the LLVM feature, e.g. "avx512vnni"."""
        return f"+{feature}" in self.features.split(",")

    def identity(self) -> tuple[str, str, str]:
        return self.triple, self.tier, self.features

    def extensions(self) -> frozenset[str]:
        return frozenset(name[1:] for name in self.features.split(",") if name.startswith("+"))

    def timing_key(self) -> tuple[int, ...]:
        return self.l1_bytes, self.l2_bytes, self.l3_bytes

    def facts(self) -> Mapping[str, Any]:
        return {"cpu.tier": self.tier, "cpu.features": self.extensions()}


def cpu_target(triple: str, tier: str, available: Collection[str]) -> CpuTarget:
    """The target of a tier on a machine with the `available` LLVM features."""
    names: tuple[str, ...] = ()
    if tier != "plain":
        names = AVX2
    if tier == "avx512":
        names += AVX512 + tuple(n for n in _OPTIONAL if n in available)
    x86 = triple.startswith("x86_64")
    features = ",".join(sorted("+" + n for n in names))
    width, registers = {"avx512": (64, 32), "avx2": (32, 16), "plain": (16, 16 if x86 else 32)}[tier]
    l1, l2, l3 = (_cache_bytes(level) for level in (1, 2, 3))
    return CpuTarget(
        triple=triple,
        tier=tier,
        features=features,
        vector_bytes=width,
        vector_registers=registers,
        l1_bytes=l1 or 32 * 1024,
        l2_bytes=l2 or 1024 * 1024,
        l3_bytes=l3 or 16 * 1024 * 1024,
        flops_per_ns={"avx512": 110.0, "avx2": 110.0, "plain": 25.0}[tier],
    )


def _cache_bytes(level: int) -> int:
    """Size of the data cache of a level of CPU 0, 0 where the system does not tell."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level_text, kind, text = ((index / name).read_text("ascii").strip() for name in ("level", "type", "size"))
            if int(level_text) == level and kind != "Instruction":
                return int(text[:-1]) * {"K": 1024, "M": 1024**2}[text[-1]]
        except (OSError, ValueError, KeyError):
            continue
    return 0
