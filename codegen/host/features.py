"""What CPU this is, asked of LLVM (of its features, not its name: under a hypervisor the name can be wrong)."""

from __future__ import annotations

import os
from functools import cache

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from superkernel.core.errors import InputError, MachineError
from superkernel.target.cpu import AVX2, AVX512, TIERS, CpuTarget, cpu_target


@cache
def initialize_llvm() -> None:
    """Make LLVM's targets available; idempotent."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    _wait_for_llvm_before_forks()


def _wait_for_llvm_before_forks() -> None:
    """llvmlite holds one lock during every call into LLVM. A fork that happened meanwhile would leave the child with
    the lock taken by a thread that it has not, and with LLVM's own data half written; the first compilation there would
    wait for ever. So from now on a fork waits for the call that is under way: it takes the lock, and both sides give it
    back. Does nothing where llvmlite has no such lock."""
    lock = getattr(ffi.lib, "_lock", None)
    if lock is None:
        return

    def release() -> None:
        lock.__exit__(None, None, None)

    os.register_at_fork(before=lock.__enter__, after_in_parent=release, after_in_child=release)


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
