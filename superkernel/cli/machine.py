"""`superkernel machine`: the profile of the machine at hand, and files of it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from superkernel.core.files import file_name, replacing
from superkernel.target.machine import MachineProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--save", metavar="FILE", help="write the profile to a file that --target takes (.json)")
    parser.add_argument("--again", action="store_true", help="measure anew, and keep that")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The profile as data and as text."""
    from superkernel.machine import has_profile, machine_profile, measured_again

    start = time.perf_counter()
    found = machine_profile() if has_profile() and not args.again else measured_again()
    took = time.perf_counter() - start
    if args.save:
        with replacing(file_name(args.save), "the profile") as file:
            file.write(found.text().encode())
    return found.to_json(), f"{_text(found)}\nin {took:.2f} s"


def _text(found: MachineProfile) -> str:
    """A page for people."""
    rates = {
        "f32, AVX-512": found.f32_avx512,
        "f32, AVX2": found.f32_avx2,
        "f32, baseline": found.f32_plain,
        "bf16 dot products": found.bf16_dot,
        "int8 dot products": found.int8_dot,
        "bf16 tiles": found.bf16_tiles,
        "int8 tiles": found.int8_tiles,
    }
    sizes = ", ".join(f"{name} {size >> 10} KB" for name, size in _sizes(found))
    groups = {"cores": found.core_of, "clusters": found.cluster_of, "memory nodes": found.node_of}
    lines = [
        found.cpu,
        f"caches: {sizes}",
        "CPUs share: " + ", ".join(f"{len({*of})} {name}" for name, of in groups.items()),
        "operations per ns of one core: " + ", ".join(f"{name} {rate or 'none'}" for name, rate in rates.items()),
        f"reads of one core, bytes per ns: L1 {found.l1_bytes_per_ns}, L2 {found.l2_bytes_per_ns}",
        f"reads of {_row(found.readers)} cores together, bytes per ns:",
        f"  L3, each its own {_row(found.l3_own)}, all the same {_row(found.l3_same)}",
        f"  memory, each its own {_row(found.memory_own)}, all the same {_row(found.memory_same)}",
        f"hand-over of a flag: {_spread(found)}; of a line of data: {found.line_ns} ns",
        f"waking {_row(found.woken)} sleeping workers: {_row(found.wake_ns)} ns",
    ]
    if found.code_line_ns:
        lines.append(f"a line of code from L1, L2, behind that: {_row(found.code_line_ns)} ns")
    return "\n".join([*lines, f"disturbed: {found.disturbed:.0%} of the trials"])


def _sizes(found: MachineProfile) -> tuple[tuple[str, int], ...]:
    return ("L1", found.l1_bytes), ("L2", found.l2_bytes), ("L3", found.l3_bytes)


def _row(values: Sequence[float]) -> str:
    return " / ".join(f"{value:g}" for value in values)


def _spread(found: MachineProfile) -> str:
    """Least, median and most over all pairs."""
    pairs = [ns for i, row in enumerate(found.handover_ns) for ns in row[:i]]
    return f"{min(pairs):g} / {found.typical_handover_ns():g} / {max(pairs):g} ns" if pairs else "there is one CPU"
