"""What CPU this is, asked of LLVM (of its features, not its name: under a hypervisor the name can be wrong)."""

from __future__ import annotations

import os
from functools import cache

import llvmlite.binding as llvm

from superkernel.codegen.llvm import initialize_llvm
from superkernel.core.errors import InputError, MachineError
from superkernel.target.cpu import AVX2, AVX512, TIERS, CpuTarget, cpu_target


def detect_cpu(tier: str | None = None) -> CpuTarget:
    """The machine at hand, limited to `tier` (default: the environment's SK_CPU, else the best it has). Raises
    InputError on an unknown tier, MachineError where the machine lacks it."""
    return _detect(tier or os.environ.get("SK_CPU", ""))


@cache
def _detect(wanted: str) -> CpuTarget:
    initialize_llvm()
    available = {name for name, on in llvm.get_host_cpu_features().items() if on}
    if wanted and wanted not in TIERS:
        raise InputError("unknown CPU tier", location="SK_CPU", expected=", ".join(TIERS), found=wanted)
    best = "avx512" if available.issuperset(AVX2 + AVX512) else "avx2" if available.issuperset(AVX2) else "plain"
    if wanted and TIERS.index(wanted) < TIERS.index(best):
        raise MachineError(f"this CPU has no {wanted}", location="SK_CPU", expected=f"{best} or below", found=wanted)
    return cpu_target(llvm.get_process_triple(), wanted or best, available)
