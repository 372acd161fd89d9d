"""What a graph is compiled for: the host CPU or an accelerator."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from superkernel.target.aicore import AicoreTarget
from superkernel.target.cpu import CpuTarget

Target = CpuTarget | AicoreTarget

CPU_DEVICE = "cpu"
AICORE_DEVICE = "aicore"
AICORE_TRIPLE = "riscv64-unknown-none-elf"
"""The control units' architecture, as LLVM names it."""


def device_of(target: Target) -> str:
    """The kind of device."""
    return AICORE_DEVICE if isinstance(target, AicoreTarget) else CPU_DEVICE


@lru_cache(maxsize=64)
def identity_of(target: Target) -> tuple[str, str, str]:
    """Triple, tier and features: what two equal targets share in every process. An accelerator's tier is its name, its
    features a digest of the whole description."""
    if isinstance(target, AicoreTarget):
        return AICORE_TRIPLE, target.name, sha256(target.text().encode()).hexdigest()[:16]
    return target.triple, target.tier, target.features
