"""Limits of control groups, as directories that look like the system's."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from superkernel.core import limits as system

MANY = 64


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(MANY)))


def described(directory: Path, groups: str, mounts: list[tuple[str, str, str]], limits: dict[str, str]) -> Path:
    """The process as /proc/self would describe it. mounts: root, place under `directory`, kind; limits: by file."""
    process = directory / "self"
    process.mkdir()
    (process / "cgroup").write_text(groups)
    lines = [
        f"{30 + i} 23 0:{i} {root} {directory / place} rw,relatime shared:9 - {kind}\n"
        for i, (root, place, kind) in enumerate(mounts)
    ]
    (process / "mountinfo").write_text("".join(lines))
    for name, text in limits.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return process


VERSION_2 = [("/", "unified", "cgroup2 cgroup2 rw")]
VERSION_1 = [("/", "cpu", "cgroup cgroup rw,cpu,cpuacct"), ("/", "memory", "cgroup cgroup rw,memory")]


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, MANY),
        ({"unified/a/b/cpu.max": "max 100000\n"}, MANY),
        ({"unified/a/b/cpu.max": "250000 100000\n"}, 2),
        ({"unified/a/b/cpu.max": "max 100000\n", "unified/a/cpu.max": "300000 100000\n"}, 3),
        ({"unified/a/b/cpu.max": "800000 100000\n", "unified/a/cpu.max": "300000 100000\n"}, 3),
        ({"unified/a/b/cpu.max": "40000 100000\n"}, 1),
        ({"unified/c/cpu.max": "100000 100000\n"}, MANY),  # a group that it is not in
        ({"unified/a/b/cpu.max": "nonsense"}, MANY),
    ],
)
def test_version_2(tmp_path: Path, limits: dict[str, str], count: int) -> None:
    assert system.usable_cpus(described(tmp_path, "0::/a/b\n", VERSION_2, limits)) == count


def test_version_1(tmp_path: Path) -> None:
    groups = "2:memory:/docker/x\n1:cpu,cpuacct:/docker/x\n"
    limits = {"cpu/docker/x/cpu.cfs_quota_us": "550000\n", "cpu/docker/x/cpu.cfs_period_us": "100000\n"}
    assert system.usable_cpus(described(tmp_path, groups, VERSION_1, limits)) == 5


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    limits = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert system.usable_cpus(described(tmp_path, "1:cpu,cpuacct:/\n", VERSION_1, limits)) == MANY


def test_the_mount_shows_a_part_of_the_tree(tmp_path: Path) -> None:
    """As in a container: the process's group is the root of what is mounted."""
    mounts = [("/docker/x", "unified", "cgroup2 cgroup rw")]
    limits = {"unified/cpu.max": "400000 100000\n", "cpu.max": "100000 100000\n"}
    assert system.usable_cpus(described(tmp_path, "0::/docker/x\n", mounts, limits)) == 4


def test_a_group_outside_of_the_mount_is_taken_for_its_root(tmp_path: Path) -> None:
    mounts = [("/docker/x", "unified", "cgroup2 cgroup rw")]
    limits = {"unified/cpu.max": "400000 100000\n"}
    assert system.usable_cpus(described(tmp_path, "0::/elsewhere\n", mounts, limits)) == 4


def test_affinity_counts_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3})
    process = described(tmp_path, "0::/\n", VERSION_2, {"unified/cpu.max": "900000 100000\n"})
    assert system.usable_cpus(process) == 2


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert system.usable_cpus(tmp_path) == MANY
    assert system.usable_memory_bytes(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("groups", "mounts", "limits", "nbytes"),
    [
        ("0::/a/b\n", VERSION_2, {"unified/a/b/memory.max": "max\n", "unified/a/memory.max": "4096000\n"}, 4096000),
        ("0::/a\n", VERSION_2, {"unified/a/memory.max": "8192\n", "unified/c/memory.max": "1\n"}, 8192),
        ("2:memory:/x\n1:cpu:/x\n", VERSION_1, {"memory/x/memory.limit_in_bytes": "65536\n"}, 65536),
    ],
)
def test_memory(
    groups: str, mounts: list[tuple[str, str, str]], limits: dict[str, str], nbytes: int, tmp_path: Path
) -> None:
    assert system.usable_memory_bytes(described(tmp_path, groups, mounts, limits)) == nbytes


def test_the_address_space_is_a_limit_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (12345, resource.RLIM_INFINITY))
    assert system.usable_memory_bytes(tmp_path) == 12345
