"""Which cache lines a wait asks for, and that the entries ask for them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from random_plans import minimal

import superkernel as sk
from superkernel.analysis.random_plans import random_schedule, read, schedule_of, write
from superkernel.backends.host.compiled import HostCompiled
from superkernel.codegen.host.entry import emit_entries
from superkernel.codegen.host.handover import LINES_MAX, Handovers, Line
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Plan, TaskStep, Wait
from superkernel.sync.planner import plan_sync

ARENA = (Space.ARENA, 0)


def plan_of(*rows: tuple[int, tuple[MemoryAccess, ...]]) -> Plan:
    """Tasks as (core, accesses), each a sub-operator of its own."""
    return minimal(schedule_of(2, [Task(i, i, core, 0, 1, accesses) for i, (core, accesses) in enumerate(rows)]))


def handed(plan: Plan) -> list[tuple[Line, ...]]:
    """What each wait of the plan hands over, core by core."""
    handovers = Handovers(plan)
    found = []
    for program in plan.programs:
        for at, step in enumerate(program):
            if isinstance(step, Wait):
                coming = next(s.task for s in program[at:] if isinstance(s, TaskStep))
                found.append(handovers.lines(step, coming))
    return found


@pytest.mark.parametrize(
    ("written", "seen", "offsets"),
    [
        (write(256, 256), read(0, 512), (256, 320, 384, 448)),
        (write(0, 512), read(320, 64), (320,)),
        (write(60, 8), read(0, 512), (0, 64)),  # astride of two lines
        (write(0, 4, 128, 3), read(0, 512), (0, 128, 256)),
        (write(0, 64 * LINES_MAX), read(0, 4096), tuple(range(0, 64 * LINES_MAX, 64))),
        (write(0, 64 * LINES_MAX + 1), read(0, 4096), ()),  # too many lines
        (write(0, 4, 32, 17), read(0, 4096), ()),  # too many pieces
        (read(0, 64), write(0, 64), ()),  # the later one writes: nothing is handed over
    ],
)
def test_lines_between_two_tasks(written: MemoryAccess, seen: MemoryAccess, offsets: tuple[int, ...]) -> None:
    assert handed(plan_of((0, (written,)), (1, (seen,)))) == [tuple((*ARENA, offset) for offset in offsets)]


def test_a_wait_stands_for_what_came_since_the_set_before() -> None:
    plan = plan_of(
        (0, (write(0, 64),)),
        (1, (read(0, 64), write(1024, 8))),
        (0, (write(128, 64),)),
        (0, (write(256, 64),)),
        (1, (read(0, 512),)),
    )
    assert plan.sets == (2, 0)
    assert handed(plan) == [((*ARENA, 0),), ((*ARENA, 128), (*ARENA, 256))]


def test_constants_are_not_handed_over() -> None:
    constant = read(0, 64, space=Space.CONSTANT)
    assert handed(plan_of((0, (write(0, 64),)), (1, (constant, read(0, 64))))) == [((*ARENA, 0),)]


@pytest.mark.parametrize("sync", ["minimal", "full"])
def test_lines_are_written_by_the_awaited_core_and_read_behind_the_wait(sync: str) -> None:
    """By bytes, one by one, on random plans."""
    followed = 0
    for seed in range(40):
        plan = plan_sync(random_schedule(seed), sync=sync)
        handovers = Handovers(plan)
        for program in plan.programs:
            for at, step in enumerate(program):
                coming = next((s.task for s in program[at:] if isinstance(s, TaskStep)), None)
                if not isinstance(step, Wait) or coming is None:
                    continue
                theirs = {b for t in plan.tasks if t.core == step.producer for b in touched(t, write=True)}
                shared = {b // 64 * 64 for b in theirs & touched(plan.tasks[coming], write=False)}
                lines = handovers.lines(step, coming)
                followed += len(lines)
                assert len(lines) <= LINES_MAX
                assert {offset for _, _, offset in lines} <= shared
    assert followed > 100


def touched(task: Task, *, write: bool) -> set[int]:
    """The bytes of the arena that a task reads or writes."""
    regions = [r for a in task.accesses if a.write is write and a.space is Space.ARENA for r in a.regions]
    return {r.start + i * r.stride + b for r in regions for i in range(r.count) for b in range(r.length)}


def products(**options: Any) -> HostCompiled:
    """Three products in a row, cut over two cores."""
    b = sk.GraphBuilder("products")
    x = b.input("x", (1, 128))
    w = b.constant(np.eye(128, dtype=np.float32))
    b.output(x @ w @ w @ w, name="y")
    kernel = sk.compile(b.graph(), threads=2, options={"cost_placement": False, **options})
    sample = np.arange(128, dtype=np.float32).reshape(1, 128)
    np.testing.assert_array_equal(kernel(sample), sample)
    compiled = kernel._compiled
    assert isinstance(compiled, HostCompiled)
    return compiled


def test_entries_ask_for_the_lines_of_each_wait() -> None:
    compiled = products()
    text = emit_entries(compiled.image.spec, compiled.target)
    lines = sum(map(len, handed(compiled.plan)))
    assert lines == 4 * 2 * 2  # half of 512 bytes, two boundaries, both cores
    asked = re.findall(r"prefetch\.p0\(ptr %line", text)
    assert len(asked) == 2 * lines  # the fused entry and the profiled one


@pytest.mark.parametrize("option", [{"early_start": False}, {"weight_prefetch": "none"}])
def test_nothing_is_asked_for_where_prefetching_is_off(option: dict[str, object]) -> None:
    compiled = products(**option)
    assert "ptr %line" not in emit_entries(compiled.image.spec, compiled.target)
