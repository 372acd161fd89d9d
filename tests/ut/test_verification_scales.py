"""Planning and proving grow as tasks, conflicts and waits do: counted in calls and bytes, which no load changes."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import verification

from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.aicore.verify import verify_aicore
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import verify


def calls(work: Callable[[], Any]) -> tuple[Any, int]:
    """What it gives, and how many functions were called, of C included."""
    count = 0

    def seen(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        made = work()
    finally:
        sys.setprofile(before)
    return made, count


def counts(target: str, shape: str, tasks: int, cores: int) -> tuple[int, int]:
    """Calls of planner and verifier."""
    if target == "host":
        schedule = verification.host_schedule(shape, tasks, cores)
        plan, planned = calls(lambda: plan_sync(schedule))
        return planned, calls(lambda: verify(plan))[1]
    made, description = verification.aicore_schedule(shape, tasks, cores)
    other, planned = calls(lambda: plan_aicore(made, description))
    return planned, calls(lambda: verify_aicore(other))[1]


@pytest.mark.parametrize("shape", ["rows", "random", "whole"])
@pytest.mark.parametrize(
    ("target", "cores", "planned_max", "proved_max"),
    [("host", 2, 30, 145), ("host", 16, 10, 125), ("aicore", 2, 190, 227), ("aicore", 16, 40, 145)],
)
def test_calls_grow_as_tasks_do(shape: str, target: str, cores: int, planned_max: int, proved_max: int) -> None:
    """So many functions per task, of C included, are a quarter more than are called."""
    few, many = (counts(target, shape, tasks, cores) for tasks in (1600, 3200))
    for before, after, most in zip(few, many, (planned_max, proved_max), strict=True):
        assert 0 < before < after < 2.2 * before
        assert (after - before) / 1600 < most


def test_a_wait_takes_few_bytes() -> None:
    """Where every core waits for every other, plans consist of waits: two rows of five numbers each."""
    schedule = verification.host_schedule("whole", 16 * 150, 16)
    plan_sync(schedule)  # imports and caches
    tracemalloc.start()
    try:
        plan = plan_sync(schedule)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.waits == 149 * 16 * 15
    assert 40 * plan.waits < kept < 70 * plan.waits
    assert peak < 100 * plan.waits
