"""Work over several processes: order, fallbacks, errors."""

from __future__ import annotations

import os
from functools import partial

import pytest

from superkernel.codegen import processes
from superkernel.codegen.processes import run_jobs


def who(job: int, parent: int) -> bytes:
    return f"{job} {'parent' if os.getpid() == parent else 'child'}".encode()


def dies_in_children(job: int, parent: int) -> bytes:
    if os.getpid() != parent:
        os._exit(3)
    return bytes([job])


def refuses(job: int) -> bytes:
    if job == 3:
        raise ValueError("three")
    return bytes([job])


@pytest.fixture(autouse=True)
def _three_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(processes, "children_max", None)


def test_results_stand_in_the_order_of_the_jobs() -> None:
    told: list[int] = []
    found = [r.decode().split() for r in run_jobs(partial(who, parent=os.getpid()), range(7), told.append)]
    assert [int(job) for job, _ in found] == list(range(7))
    assert [place for _, place in found] == ["parent", "child", "child"] * 2 + ["parent"]
    assert told == [1, 2, 3, 5, 7]


def test_few_jobs_stay_at_home() -> None:
    found = run_jobs(partial(who, parent=os.getpid()), range(5), jobs_per_child=3)
    assert all(b"parent" in result for result in found)
    assert run_jobs(refuses, []) == []


def test_who_compiles_in_several_processes_starts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "children_max", 0)
    assert all(b"parent" in result for result in run_jobs(partial(who, parent=os.getpid()), range(7)))


def test_what_a_child_does_not_do_the_parent_does() -> None:
    assert run_jobs(partial(dies_in_children, parent=os.getpid()), range(6)) == [bytes([n]) for n in range(6)]


def test_errors_are_those_of_the_work() -> None:
    with pytest.raises(ValueError, match="three"):
        run_jobs(refuses, range(8))
