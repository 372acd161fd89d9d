"""The host CPU as a compilation target: features, vector width, cache sizes, and the numbers the cost model needs.

Plain data: `superkernel.codegen.host.features.detect_cpu()` asks LLVM what the machine at hand has and calls
`cpu_target` with the machine's profile (`target/machine.py`), from which all numbers are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from superkernel.core.dtypes import DType
from superkernel.target.base import Target
from superkernel.target.machine import DEFAULT, MachineProfile
from superkernel.target.timings import NO_TIMINGS, Timings, timing_key

TIERS = ("avx512", "avx2", "plain")
THREADS_MAX = 64
"""Workers of one kernel, at most."""

AVX2 = ("avx2", "fma", "f16c", "avx", "bmi", "bmi2", "sse4.2", "popcnt", "lzcnt", "movbe")
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
TILES = ("amx-tile", "amx-bf16", "amx-int8")
EMULATED_TILES = "emulated-tiles"
"""No feature of a CPU: code for tiles is lowered to vectors that do the same, on any CPU with FMA."""
_OPTIONAL = ("avx512vnni", "avx512bf16", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "avx512ifma")
_ARM_OPTIONAL = ("dotprod",)
_FEW_REGISTERS = 8


@dataclass(frozen=True)
class CpuTarget(Target):
    """What code is generated for. `features` is LLVM's sorted feature string, with `EMULATED_TILES` where tiles are."""

    kind: ClassVar[str] = "cpu"
    image_layouts: ClassVar[tuple[str, ...]] = ("row_major", "channels_last")
    image_ranks: ClassVar[tuple[int, ...]] = (3, 4, 5)
    computes_integers: ClassVar[bool] = True
    begins_inside: ClassVar[bool] = True

    triple: str
    tier: str  # "avx512", "avx2", "plain"
    features: str
    vector_bytes: int  # widest useful vector register
    vector_registers: int
    l1_bytes: int = DEFAULT.l1_bytes
    l2_bytes: int = DEFAULT.l2_bytes
    l3_bytes: int = DEFAULT.l3_bytes
    flops_per_ns: float = 100.0  # f32 multiply-add peak of one core, 2 flops each
    bf16_dots: float = 1.0  # dot products per f32 multiply-add, both of whole vectors
    int8_dots: float = 1.0
    bf16_tiles: float = 1.0  # products of tiles, of the 16 or 32 multiply-adds that one f32 multiply-add takes at best
    int8_tiles: float = 1.0
    # Bytes that a core reads per ns, while as many read as `reading` says: of its own, and of what all of them read.
    l2_bytes_per_ns: float = DEFAULT.l2_bytes_per_ns
    l3_bytes_per_ns: float = DEFAULT.l3_own[0]
    dram_bytes_per_ns: float = DEFAULT.memory_own[0]
    l3_same_bytes_per_ns: float = DEFAULT.l3_same[0]
    dram_same_bytes_per_ns: float = DEFAULT.memory_same[0]
    constants_bytes: int = 0  # while tilings are chosen: constants that a launch of the program reads...
    cores: int = 1  # ...and the cores that may share its work
    readers: int = 1  # cores that read at once
    handover_ns: float = 100.0  # one flag from one core to another, producer's store to consumer's exit from the wait
    line_ns: float = DEFAULT.line_ns  # one cache line of data from another core's cache, one of many
    profile: MachineProfile = DEFAULT
    timings: Timings = NO_TIMINGS  # what `superkernel tune` measured

    def reading(self, cores: int) -> CpuTarget:
        """As it is for each of so many cores at once, which share the third-level cache and the memory."""
        if cores == 1:
            return self
        of = self.profile.reading
        return replace(
            self,
            readers=cores,
            l3_bytes_per_ns=of("l3_own", cores),
            dram_bytes_per_ns=of("memory_own", cores),
            l3_same_bytes_per_ns=of("l3_same", cores),
            dram_same_bytes_per_ns=of("memory_same", cores),
        )

    def handovers_ns(self, cores: int) -> list[list[float]]:
        """`handover_ns` from each of so many workers to each; of those that the profile does not know, the typical."""
        known = self.profile.handover_ns
        return [
            [known[i][j] if max(i, j) < len(known) else self.handover_ns for j in range(cores)] for i in range(cores)
        ]

    def constants_from(self, nbytes: int) -> str:
        """The nearest memory that holds so many bytes of constants, or all that a launch reads."""
        streamed = max(nbytes, self.constants_bytes)
        return "l2" if streamed <= self.l2_bytes else "l3" if streamed <= self.l3_bytes else "memory"

    def measured_ns(self, code: Callable[[], str], constants_bytes: int) -> float | None:
        ns = self.timings.ns
        return ns.get(timing_key(code(), self.constants_from(constants_bytes))) if ns else None

    def lanes(self, dtype: DType) -> int:
        """Elements of a full vector register."""
        return max(1, self.vector_bytes // dtype.itemsize)

    @property
    def register_tier(self) -> str:
        """The key of what register tiles are cut by: the tier, or "small", where 8 vectors hold sums and operands."""
        return "small" if self.vector_registers <= _FEW_REGISTERS else self.tier

    def has(self, feature: str) -> bool:
        """True where code may use the LLVM feature, e.g. "avx512vnni"."""
        return f"+{feature}" in self.features.split(",")

    def dots_of(self, feature: str) -> float:
        """Dot products of an LLVM feature per f32 multiply-add, both of whole vectors; of tiles, see `bf16_tiles`."""
        dots = {
            "avx512bf16": self.bf16_dots,
            "avx512vnni": self.int8_dots,
            "dotprod": self.int8_dots,
            "mve": self.int8_dots,
            "amx-bf16": self.bf16_tiles,
            "amx-int8": self.int8_tiles,
        }
        return dots.get(feature, 1.0)

    @property
    def emulates_tiles(self) -> bool:
        """Whether instructions on tiles are emulated."""
        return self.has(EMULATED_TILES)

    def emulating_tiles(self) -> CpuTarget:
        """The same CPU with its tiles, if it has any, emulated."""
        if not self.has(TILES[0]) or self.emulates_tiles:
            return self
        return replace(self, features=",".join(sorted([*self.features.split(","), "+" + EMULATED_TILES])))

    def identity(self) -> tuple[str, str, str]:
        return self.triple, self.tier, self.features

    def regions(self) -> Mapping[str, int]:
        return self.profile.regions()

    def extensions(self) -> frozenset[str]:
        return frozenset(name[1:] for name in self.features.split(",") if name.startswith("+"))

    def facts(self) -> Mapping[str, Any]:
        return {"cpu.tier": self.tier, "cpu.features": self.extensions()}


def cpu_target(
    triple: str,
    tier: str,
    available: Collection[str],
    profile: MachineProfile = DEFAULT,
    timings: Timings = NO_TIMINGS,
) -> CpuTarget:
    """The target of a tier on a machine with the `available` LLVM features; `EMULATED_TILES` among them: with tiles,
    but on the plain tier, which has no FMA."""
    names: tuple[str, ...] = ()
    if tier != "plain":
        names = AVX2
    if tier == "avx512":
        names += AVX512 + tuple(n for n in _OPTIONAL if n in available)
    if EMULATED_TILES in available and tier != "plain":
        names += (*TILES, EMULATED_TILES)
    elif tier == "avx512" and {"avx512bf16", *TILES}.issubset(available):  # rows become bf16 by AVX-512
        names += TILES
    x86 = triple.startswith("x86_64")
    if triple.startswith(("aarch64", "arm64")):
        names += tuple(n for n in _ARM_OPTIONAL if n in available)
    features = ",".join(sorted("+" + n for n in names))
    width, registers = {"avx512": (64, 32), "avx2": (32, 16), "plain": (16, 16 if x86 else 32)}[tier]
    flops = {"avx512": profile.f32_avx512, "avx2": profile.f32_avx2}.get(tier) or profile.f32_plain
    return CpuTarget(
        triple=triple,
        tier=tier,
        features=features,
        vector_bytes=width,
        vector_registers=registers,
        l1_bytes=profile.l1_bytes,
        l2_bytes=profile.l2_bytes,
        l3_bytes=profile.l3_bytes,
        flops_per_ns=flops,
        bf16_dots=(profile.bf16_dot or 2 * flops) / (2 * flops),
        int8_dots=(profile.int8_dot or 4 * flops) / (4 * flops),
        bf16_tiles=(profile.bf16_tiles or 16 * flops) / (16 * flops),
        int8_tiles=(profile.int8_tiles or 32 * flops) / (32 * flops),
        l2_bytes_per_ns=profile.l2_bytes_per_ns,
        l3_bytes_per_ns=profile.reading("l3_own", 1),
        dram_bytes_per_ns=profile.reading("memory_own", 1),
        l3_same_bytes_per_ns=profile.reading("l3_same", 1),
        dram_same_bytes_per_ns=profile.reading("memory_same", 1),
        handover_ns=profile.typical_handover_ns(),
        line_ns=profile.line_ns,
        profile=profile,
        timings=timings,
    )


def profiled(cpu: CpuTarget, profile: MachineProfile) -> CpuTarget:
    """The same instruction set on a machine with another profile, of which no kernel's time is known."""
    return cpu_target(cpu.triple, cpu.tier, cpu.extensions(), profile)
