"""Cores of microcontrollers as compilation targets: 32 bits, no operating system, two memories that end.

Model: such a target is a CPU target, with the host's kernels and cost models, and a core's name, which LLVM knows. Its
vectors are those of MVE; a core without MVE computes the same vectors in its scalar registers, and a kernel that is
written with MVE's own instructions says that it needs them (`features`). Which board a core sits on is a machine's
profile: a file with the field `core`, and `tcm_bytes` and `flash_bytes`. By its name alone a core has typical figures,
and as much memory as the architecture leaves to each: 512 MB of code, 512 MB of SRAM (Armv8-M Architecture Reference
Manual, B8.1, the system address map).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from superkernel.target.cpu import CpuTarget, cpu_target
from superkernel.target.machine import DEFAULT, MachineProfile

REGION_BYTES = 1 << 29
"""Of code, and of SRAM, in the address map."""
VECTOR_BYTES, VECTOR_REGISTERS = 16, 8
"""Of MVE; without it 32 scalar registers hold as much."""


@dataclass(frozen=True)
class Core:
    """A core, with its clock in GHz as boards have it, and multiply-adds per cycle: of f32, of bytes."""

    triple: str
    features: tuple[str, ...]
    ghz: float
    f32_macs: float
    int8_macs: float


_V8_1, _V8, _V7 = (f"thumbv{version}-none-unknown-eabihf" for version in ("8.1m.main", "8m.main", "7em"))
_HELIUM = ("dsp", "mve", "mve.fp")
CORES: Mapping[str, Core] = {
    "cortex-m55": Core(_V8_1, _HELIUM, 0.4, 2.0, 8.0),  # a vector of 128 bits takes two cycles
    "cortex-m85": Core(_V8_1, _HELIUM, 0.48, 2.0, 8.0),
    "cortex-m33": Core(_V8, ("dsp",), 0.16, 0.5, 1.0),
    "cortex-m7": Core(_V7, ("dsp",), 0.48, 1.0, 2.0),
    "cortex-m4": Core(_V7, ("dsp",), 0.17, 0.33, 1.0),
}
"""Cores by the names that LLVM, compilers and users have for them. Features are LLVM's words. Clocks and rates are
rough, measured on no board: they decide between kernels and nothing else, and a board's profile replaces them."""


@dataclass(frozen=True)
class MicrocontrollerTarget(CpuTarget):
    """See the module docstring."""

    kind: ClassVar[str] = "microcontroller"

    core: str = ""

    @property
    def kernel_kind(self) -> str:
        return CpuTarget.kind

    def identity(self) -> tuple[str, str, str]:
        return self.triple, self.core, self.features

    def regions(self) -> Mapping[str, int]:
        return {"tcm": REGION_BYTES, "flash": REGION_BYTES, **self.profile.regions()}


def typical_profile(core: str) -> MachineProfile:
    """What is believed of a core on a board that nobody described: 8 bytes per cycle from tightly coupled memory, a
    quarter of that from flash."""
    found = CORES[core]
    near, far = 8 * found.ghz, 2 * found.ghz
    return replace(
        DEFAULT,
        cpu=core,
        core=core,
        l1_bytes=16 << 10,
        l2_bytes=256 << 10,
        l3_bytes=256 << 10,
        f32_avx512=None,
        f32_avx2=None,
        f32_plain=2 * found.ghz * found.f32_macs,
        int8_dot=2 * found.ghz * found.int8_macs,
        l1_bytes_per_ns=near,
        l2_bytes_per_ns=near,
        readers=(1,),
        l3_own=(near,),
        l3_same=(near,),
        memory_own=(far,),
        memory_same=(far,),
    )


def microcontroller_target(profile: MachineProfile) -> MicrocontrollerTarget:
    """The target of a profile with a core. Raises KeyError on an unknown one."""
    name = profile.core or ""
    core = CORES[name]
    cpu = cpu_target(core.triple, "plain", (), profile)
    values: dict[str, Any] = {field.name: getattr(cpu, field.name) for field in fields(cpu)}
    values |= {
        "features": ",".join(f"+{feature}" for feature in core.features),
        "vector_bytes": VECTOR_BYTES,
        "vector_registers": VECTOR_REGISTERS,
    }
    return MicrocontrollerTarget(**values, core=name)
