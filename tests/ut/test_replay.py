"""A launch played again: as it was it takes as long as it did; what is left out is saved; the path is all of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from seeds import seeds

from superkernel.backends.host.replay import LaunchReplay
from superkernel.scheduler.schedule import Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait


def two_cores() -> LaunchReplay:
    """Core 0: 230 of work, a set until 240. Core 1: 90 of work, a wait from 100 to 260, 40 of work."""
    tasks = (Task(0, 0, 0, 0, 1, ()), Task(1, 0, 1, 1, 2, ()), Task(2, 1, 1, 0, 1, ()))
    programs = ((TaskStep(0), Set(1)), (TaskStep(1), Wait(0, 1, 1, 0), TaskStep(2)))
    return LaunchReplay(Plan(tasks, programs, (1, 0), (), ()), ((0.0, 230.0, 240.0), (10.0, 100.0, 260.0, 300.0)))


def test_as_it_was() -> None:
    assert two_cores().time_ns() == 300


def test_without_the_wait() -> None:
    assert two_cores().time_ns(free=(0,)) == 240


def test_with_a_faster_sub_operator() -> None:
    """Core 0's set comes at 125, core 1 arrives at 55: 125, 20 of pure cost, 40 of work."""
    assert two_cores().time_ns(factors={0: 0.5}) == 185
    assert two_cores().time_ns(factors={1: 0.5}) == 280


def test_the_path_goes_where_the_time_went() -> None:
    assert list(two_cores().path()) == [(1, 240.0, 300.0), (0, 0.0, 240.0)]


@pytest.mark.parametrize("seed", seeds(10))
def test_of_random_launches(seed: int) -> None:
    """Waits end when they can, plus a cost: the replay is exact, paths join without gap, and nothing free is slower."""
    rng = np.random.default_rng(seed)
    cores, rounds = int(rng.integers(2, 5)), 6
    programs: list[list[TaskStep | Set | Wait]] = [[] for _ in range(cores)]
    stamps = [[float(rng.integers(0, 20))] for _ in range(cores)]
    tasks: list[Task] = []
    waits = 0
    for number in range(rounds):
        for core in range(cores):
            programs[core] += [TaskStep(len(tasks)), Set(number + 1)]
            tasks.append(Task(len(tasks), number, core, 0, 1, ()))
            stamps[core] += np.cumsum(rng.integers(1, 100, 2)).__add__(stamps[core][-1]).tolist()
        done = [stamps[core][-1] for core in range(cores)]
        for core in range(cores):
            producer = int(rng.choice([c for c in range(cores) if c != core]))
            programs[core].append(Wait(producer, number + 1, number, waits))
            waits += 1
            stamps[core].append(max(stamps[core][-1], done[producer]) + float(rng.integers(0, 9)))
    plan = Plan(tuple(tasks), tuple(map(tuple, programs)), (rounds,) * cores, (), ())
    replay = LaunchReplay(plan, stamps)
    whole = max(row[-1] for row in stamps)
    assert replay.time_ns() == whole
    assert all(replay.time_ns(free=(wait,)) <= whole for wait in range(waits))
    assert replay.time_ns(factors={0: 0.5}) <= whole
    pieces = list(replay.path())
    assert pieces[0][2] == whole
    assert all(later[1] == earlier[2] for later, earlier in pairwise(pieces))
    assert pieces[-1][1] == stamps[pieces[-1][0]][0]
