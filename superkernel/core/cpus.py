"""How many CPUs this process may keep busy: its affinity, and the time that its control groups grant it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROCESS = Path("/proc/self")


def usable_cpus(process: Path = _PROCESS) -> int:
    """CPUs that the calling thread may run on, and no more than a quota of its control groups pays for, rounded down
    (a thread too many is put to sleep for the rest of each period, and all others wait for it); at least 1.

    process: where the system describes the process, as /proc/self does."""
    return max(1, min([len(os.sched_getaffinity(0)), *(int(cpus) for cpus in _quotas(process))]))


def _quotas(process: Path) -> Iterator[float]:
    """CPU seconds per second, of each control group that the process is in and that has a limit (cgroups(7): version 2
    has `cpu.max`, version 1 `cpu.cfs_quota_us` and `cpu.cfs_period_us`)."""
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
            version1 = kind[0] == "cgroup" and "cpu" in kind[2].split(",") and "cpu" in controllers.split(",")
            if not version1 and not version2:
                continue
            inside = Path(os.path.relpath(path, root))
            group = place if inside.parts[:1] == ("..",) else place / inside
            for directory in (group, *group.parents):
                if (found := _quota(directory)) is not None:
                    yield found
                if directory == place:
                    break


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _quota(directory: Path) -> float | None:
    try:
        if (directory / "cpu.max").exists():
            words = _text(directory / "cpu.max").split()
        else:
            words = [_text(directory / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        quota, period = (float(word) for word in words)
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return quota / period if quota > 0 and period > 0 else None
