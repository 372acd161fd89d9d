"""What CPU this is, asked of LLVM (of its features, not its name: under a hypervisor the name can be wrong)."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import llvmlite

from superkernel.codegen.cache import ObjectCache
from superkernel.core.errors import InputError, MachineError
from superkernel.core.version import __version__
from superkernel.machine import kept_timings, machine_profile, may_use_tiles
from superkernel.target.cpu import AVX2, AVX512, EMULATED_TILES, TIERS, TILES, CpuTarget, cpu_target


def detect_cpu(tier: str | None = None) -> CpuTarget:
    """The machine at hand, limited to `tier` (default: the environment's SK_CPU, else the best it has); with
    `+emulated-tiles` behind it, AMX is emulated. Raises InputError on an unknown tier, MachineError where the machine
    lacks it."""
    return _detect(tier or os.environ.get("SK_CPU", ""))


def forget_cpu() -> None:
    """What `detect_cpu` knows of the machine is read again, after something new was measured."""
    machine_profile.cache_clear()
    kept_timings.cache_clear()
    _detect.cache_clear()


def keep_cpu(cpu: CpuTarget, objects: ObjectCache) -> None:
    """Leave in a cache what LLVM said of the CPU at hand, if it was asked."""
    if _detect.cache_info().currsize and objects.get(_key()) is None and (record := told(cpu)):
        objects.put(_key(), json.dumps(record).encode())


def kept_cpu(objects: ObjectCache) -> CpuTarget | None:
    """The CPU at hand, as another process left it in a cache."""
    data = objects.get(_key()) if _mark() else None
    try:
        return None if data is None else recalled(json.loads(data))
    except (ValueError, TypeError, KeyError):
        return None


def _key() -> str:
    return f"cpu {__version__} {llvmlite.__version__} {_mark()}"


def told(cpu: CpuTarget) -> dict[str, Any]:
    """What `recalled` takes: what code for the CPU at hand is made for, as plain data; nothing of another one."""
    if not _mark() or cpu.identity() != detect_cpu().identity():
        return {}
    return {"mark": _mark(), "triple": cpu.triple, "tier": cpu.tier, "features": cpu.features}


def recalled(told: Mapping[str, Any]) -> CpuTarget | None:
    """The CPU at hand, where it was told on its like: LLVM, which takes a hundred times as long to import and ask,
    would say the same. Else None. Raises TypeError on what nobody told."""
    fields = dict(told)
    if fields.pop("mark", "") != _mark() or not _mark():
        return None
    triple, tier, features = (str(fields.pop(name)) for name in ("triple", "tier", "features"))
    found = cpu_target(triple, tier, features.replace("+", "").split(","), machine_profile(), kept_timings())
    return found if found.emulates_tiles or not found.has("amx-tile") or may_use_tiles() else None


def _mark() -> str:
    """A digest of what the system says of the CPU, and of the tier that the environment wants; "" where it is mute."""
    return _mark_of(os.environ.get("SK_CPU", ""))


@cache
def _mark_of(wanted: str) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read(1 << 14).split("\n\n")[0]
    except OSError:
        return ""
    rows = re.findall(r"^(?:vendor|cpu family|model|stepping|flags|CPU|Features)[^:]*:.*$", first, re.MULTILINE)
    text = "\n".join([*rows, *os.uname(), wanted])
    return hashlib.sha256(text.encode()).hexdigest() if rows else ""


@cache
def _detect(text: str) -> CpuTarget:
    from superkernel.codegen.llvm import initialize_llvm
    from superkernel.codegen.llvm_library import llvm

    initialize_llvm()
    available = {name for name, on in llvm.get_host_cpu_features().items() if on}
    wanted, plus, extra = text.partition("+")
    if (wanted and wanted not in TIERS) or (plus and (extra != EMULATED_TILES or wanted == "plain")):
        expected = f"{', '.join(TIERS)}, but of the last with +{EMULATED_TILES} behind it"
        raise InputError("unknown CPU tier", location="SK_CPU", expected=expected, found=text)
    best = "avx512" if available.issuperset(AVX2 + AVX512) else "avx2" if available.issuperset(AVX2) else "plain"
    if wanted and TIERS.index(wanted) < TIERS.index(best):
        raise MachineError(f"this CPU has no {wanted}", location="SK_CPU", expected=f"{best} or below", found=wanted)
    if "amx-tile" in available and not (extra or may_use_tiles()):
        available.difference_update(TILES)
    return cpu_target(llvm.get_process_triple(), wanted or best, {*available, extra}, machine_profile(), kept_timings())
