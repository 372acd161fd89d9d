"""`debug="races"`: programs of all kinds are clean and give the same bits; what is wrong in one is found and named."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import models
import models_small
import numpy as np
import pytest
import soak
from host_changes import X, chain, image_of, without
from numpy.typing import NDArray
from random_models import random_graph

import superkernel as sk
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.races import RaceExecutable
from superkernel.core.errors import DataError, RaceError
from superkernel.core.tensor import Region
from superkernel.reference.random_inputs import random_inputs
from superkernel.scheduler.schedule import MemoryAccess, MemoryAddress, Schedule, Space, Task
from superkernel.sync.plan import Plan

WATCHED = sk.Options(debug="races")


def changed(
    compiled: HostCompiled, *, emitted: Plan | None = None, schedule: Schedule | None = None, told: Plan | None = None
) -> RaceExecutable:
    """The program with another plan, or other addresses, than the one that it is held against."""
    image = image_of(compiled, emitted or compiled.plan, schedule)
    return RaceExecutable(image, compiled.schedule, told or compiled.plan, compiled.target, 0.0)


def findings(executable: RaceExecutable, io: Sequence[NDArray[Any]]) -> list[str]:
    try:
        executable.run(io)
    except RaceError as error:
        return [str(violation) for violation in error.violations]
    return []


@pytest.fixture(scope="module")
def compiled() -> HostCompiled:
    kernel = sk.compile(chain(), threads=3, options=WATCHED)
    assert isinstance(kernel._compiled, HostCompiled)
    return kernel._compiled


@pytest.fixture
def io() -> list[NDArray[Any]]:
    return [X, np.zeros_like(X)]


def test_a_watched_run_gives_the_same_bits_every_time() -> None:
    graph = chain()
    watched = sk.compile(graph, threads=3, options=WATCHED)
    want = sk.compile(graph, threads=3)(X)
    for _ in range(2):
        np.testing.assert_array_equal(watched(X), want)
    with watched.bind(X) as bound:
        bound.run()
        np.testing.assert_array_equal(bound.outputs["y"], want)


def test_each_wait_that_is_left_out_is_found_and_named(compiled: HostCompiled, io: list[NDArray[Any]]) -> None:
    plan = compiled.plan
    assert plan.waits >= 3
    for reason in plan.reasons:
        found = findings(changed(compiled, emitted=without(plan, reason.wait.index)), io)
        wanted = f"core {reason.core} waits for set {reason.wait.count} of core {reason.wait.producer}"
        assert any("race, read-after-write" in line and wanted in line for line in found), (str(reason), found)
        assert all("'" in line and "element [" in line for line in found), found


def test_a_wait_for_too_little_and_one_for_ever_are_found(compiled: HostCompiled, io: list[NDArray[Any]]) -> None:
    wait = next(r.wait for r in reversed(compiled.plan.reasons) if r.wait.count > 1)

    def later(plan: Plan, by: int) -> Plan:
        moved = replace(wait, count=wait.count + by)
        return replace(plan, programs=tuple(tuple(moved if s == wait else s for s in steps) for steps in plan.programs))

    assert "race, read-after-write" in findings(changed(compiled, emitted=later(compiled.plan, -1)), io)[0]
    assert "deadlock" in findings(changed(compiled, emitted=later(compiled.plan, 9)), io)[0]


def narrowed(plan: Plan, write: bool) -> Plan:
    """The last byte of each access left out of what tasks are said to touch."""

    def shorter(access: MemoryAccess) -> MemoryAccess:
        if access.write is not write or not access.regions:
            return access
        *others, last = access.regions
        return replace(access, regions=(*others, Region(last.start, last.length - 1, last.stride, last.count)))

    def told(task: Task) -> Task:
        return replace(task, accesses=tuple(map(shorter, task.accesses)))

    return replace(plan, tasks=tuple(map(told, plan.tasks)))


@pytest.mark.parametrize(("write", "what"), [(True, "undeclared store"), (False, "undeclared load")])
def test_what_is_not_declared_is_found(compiled: HostCompiled, io: list[NDArray[Any]], write: bool, what: str) -> None:
    found = findings(changed(compiled, told=narrowed(compiled.plan, write)), io)
    assert any(what in line and "element [" in line for line in found), found


def test_other_addresses_than_the_plan_speaks_of_are_found(compiled: HostCompiled, io: list[NDArray[Any]]) -> None:
    def moved(address: MemoryAddress) -> MemoryAddress:
        return replace(address, offset=0) if address.space is Space.ARENA else address

    wrong = tuple(tuple(map(moved, row)) for row in compiled.schedule.addresses)
    assert wrong != compiled.schedule.addresses
    found = findings(changed(compiled, schedule=replace(compiled.schedule, addresses=wrong)), io)
    assert any("undeclared" in line for line in found), found


def test_a_task_that_is_not_run_is_found(compiled: HostCompiled, io: list[NDArray[Any]]) -> None:
    plan = compiled.plan
    others = plan.programs[0][1:]
    found = findings(changed(compiled, emitted=replace(plan, programs=(others, *plan.programs[1:]))), io)
    assert any("another task is run" in line for line in found), found
    assert any("read before anybody wrote it" in line for line in found), found


def test_models_of_all_kinds_are_clean() -> None:
    graphs = [models.decode_step(layers=1), random_graph(random.Random(0))]
    if soak.enabled:
        graphs += [models.transformer(), models.moe_layer(), models_small.mixed(), models_small.decoder()]
        graphs += [random_graph(random.Random(seed)) for seed in range(1, 40)]
    for graph in graphs:
        inputs = random_inputs(graph.inputs, 1)
        want = sk.compile(graph, threads=3).run(inputs).outputs
        got = sk.compile(graph, threads=3, options=WATCHED).run(inputs).outputs
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)


def test_fallbacks_are_followed_by_what_they_declare() -> None:
    graph = chain()
    options = sk.Options(debug="races", deny=("host.softmax",), fallback="allow")
    watched = sk.compile(graph, threads=3, options=options)
    assert watched.summary()["fallbacks"]
    np.testing.assert_allclose(watched(X), sk.compile(graph)(X), rtol=1e-5, atol=1e-5)
    compiled = watched._compiled
    assert isinstance(compiled, HostCompiled)
    for reason in compiled.plan.reasons:
        found = findings(changed(compiled, emitted=without(compiled.plan, reason.wait.index)), [X, np.zeros_like(X)])
        assert any("race" in line for line in found), (str(reason), found)


def test_what_data_do_wrong_is_told_as_ever() -> None:
    graph = models.ragged_attention(batch=2, tokens=8, width=32)
    inputs = random_inputs(graph.inputs, 1)
    (lengths,) = (name for name, array in inputs.items() if array.dtype.kind == "i")
    inputs[lengths][...] = 99
    with pytest.raises(DataError, match="length out of range"):
        sk.compile(graph, threads=3, options=WATCHED).run(inputs)
