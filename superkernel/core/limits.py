"""What the system lets this process use: CPUs it may keep busy, memory it may fill. Control groups limit both."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_PROCESS = Path("/proc/self")


def usable_cpus(process: Path = _PROCESS) -> int:
    """CPUs that the calling thread may run on, and no more than a quota of its control groups pays for, rounded down
    (a thread too many is put to sleep for the rest of each period, and all others wait for it); at least 1.

    process: where the system describes the process, as /proc/self does."""
    quotas = (_quota(group) for group in _groups(process, "cpu"))
    return max(1, min([len(os.sched_getaffinity(0)), *(int(cpus) for cpus in quotas if cpus is not None)]))


def usable_memory_bytes(process: Path = _PROCESS) -> int:
    """The machine's memory, and no more than a limit of the process's control groups or of its address space."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limits += [size for group in _groups(process, "memory") if (size := _memory_limit(group)) is not None]
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min(limits if space == resource.RLIM_INFINITY else [*limits, space])


def _groups(process: Path, controller: str) -> Iterator[Path]:
    """The directories of the control groups that the process is in and that `controller` may limit (cgroups(7):
    version 2 has one tree for all of them, version 1 trees of their own)."""
    try:
        mounts = _text(process / "mountinfo").splitlines()
        groups = [line.split(":", 2) for line in _text(process / "cgroup").splitlines()]
    except OSError:
        return
    for mount in mounts:
        fields, kind = (part.split() for part in mount.split(" - ", 1))
        root, place = fields[3], Path(fields[4])
        for _, controllers, path in groups:
            version2 = kind[0] == "cgroup2" and not controllers
            version1 = kind[0] == "cgroup" and controller in kind[2].split(",") and controller in controllers.split(",")
            if not version1 and not version2:
                continue
            inside = Path(os.path.relpath(path, root))
            group = place if inside.parts[:1] == ("..",) else place / inside
            for directory in (group, *group.parents):
                yield directory
                if directory == place:
                    break


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _quota(directory: Path) -> float | None:
    """CPU seconds per second (`cpu.max`; `cpu.cfs_quota_us` and `cpu.cfs_period_us`); None: no limit."""
    try:
        if (directory / "cpu.max").exists():
            words = _text(directory / "cpu.max").split()
        else:
            words = [_text(directory / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        quota, period = (float(word) for word in words)
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return quota / period if quota > 0 and period > 0 else None


def _memory_limit(directory: Path) -> int | None:
    """Bytes (`memory.max`, `memory.limit_in_bytes`); None: no limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return int(_text(directory / name))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
