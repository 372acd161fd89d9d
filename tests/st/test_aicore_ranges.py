"""The range of synchronisation by kernel type: for all pairs of predecessor and successor, who sets and who waits; that
it is right, that a narrower one is not, and that kernels of every type run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from firmware_bench import needs_qemu

import superkernel as sk
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.core.errors import UnsupportedError
from superkernel.runtime.kernel import Kernel
from superkernel.scheduler.schedule import Space
from superkernel.sync.aicore.plan import (
    AicorePlan,
    AicpuKind,
    Await,
    CoreKind,
    Event,
    HartKind,
    Mode,
    OperandWait,
    Run,
    Signal,
    Step,
    awaited,
)
from superkernel.sync.aicore.verify import check_aicore_plan, verify_aicore
from superkernel.target.aicore import load_target

PAIRS = load_target("mini")  # one cube core and two vector cores per group
TWINS = PAIRS.replaced({"device.vector_cores_per_group": 1, "device.vector_cores": 2})
CUBE, VECTOR = CoreKind.CUBE, CoreKind.VECTOR
USES = {
    "AIC_ONLY": (CUBE,),
    "AIV_ONLY": (VECTOR,),
    "MIX_AIC_1_0": (CUBE,),
    "MIX_AIV_1_0": (VECTOR,),
    "MIX_AIC_1_1": (CUBE, VECTOR),
    "MIX_AIC_1_2": (CUBE, VECTOR),
}
SIZE = 256


VECTOR_ONLY = ("AIV_ONLY", "MIX_AIV_1_0")


def add(b: sk.GraphBuilder, x: sk.Tensor, kind: str, name: str, before: str = "") -> sk.Tensor:
    """A sub-operator of a kernel type. Softmax over rows is cut by rows, over columns by columns; a product by columns
    where x is its right operand, by rows where it is the left one. The second is cut across what the first is cut by,
    so that each of its cores reads what all of them wrote."""
    rng = np.random.default_rng(len(name))
    by_rows = before not in ("", *VECTOR_ONLY) or (not before and kind in VECTOR_ONLY)
    with b.kernel_type(kind):
        if kind in VECTOR_ONLY:
            return b.softmax(x, axis=int(by_rows), name=name)
        weight = b.constant(rng.standard_normal((SIZE, SIZE)).astype(np.float16) / 16)
        y = b.matmul(x, weight, name=name) if by_rows else b.matmul(weight, x, name=name)
        return y if len(USES[kind]) == 1 else b.gelu(y)


@cache
def pair(first: str, second: str, lanes: int) -> tuple[Kernel, AicoreCompiled]:
    """first -> second, both between f16 values."""
    b = sk.GraphBuilder("pair")
    x = b.input("x", (SIZE, SIZE), "f16")
    y = add(b, add(b, x, first, "first"), second, "second", first)
    b.output(y, "y")
    target = PAIRS if lanes == 2 else TWINS
    kernel = sk.compile(b.graph(), target=target, options={"sync": "type-range", "launches": "fused"})
    made = kernel._compiled
    assert isinstance(made, AicoreCompiled)
    return kernel, made


def cases() -> Iterator[tuple[str, str, int]]:
    for lanes, kinds in ((2, [*USES]), (1, [kind for kind in USES if kind != "MIX_AIC_1_2"])):
        for first, second in product(kinds, kinds):
            if lanes == 2 or "MIX_AIC_1_1" in (first, second):
                yield first, second, lanes


def numbers(made: AicoreCompiled) -> tuple[int, int]:
    first, second = (next(s.index for s in made.schedule.subops if n in s.nodes) for n in ("first", "second"))
    return first, second


def least(first: str, second: str) -> tuple[Mode, set[CoreKind], set[CoreKind]]:
    """Mode, who sets, who waits ahead of the second: the table."""
    before, behind = USES[first], USES[second]
    if before == behind and len(before) == 1:
        return Mode.TYPE, set(before), set(before)
    if len(before) == len(behind) == 1:
        return Mode.ACROSS, set(before), set(behind)
    return Mode.ALL, {CUBE, VECTOR}, set(behind)


def waiting(plan: AicorePlan, kind: CoreKind, subop: int) -> set[int]:
    """Events that a type takes between the sub-operator before it and its own."""
    found: set[int] = set()
    for step in plan.programs[kind]:
        if isinstance(step, Run) and step.subop > subop:
            break
        if getattr(step, "subop", -1) == subop:
            found |= set(awaited(step))
    return found


@pytest.mark.parametrize(("first", "second", "lanes"), list(cases()))
def test_the_least_legal_range(first: str, second: str, lanes: int) -> None:
    kernel, made = pair(first, second, lanes)
    here, there = numbers(made)
    assert [made.schedule.tilings[i].launch_type.value for i in (here, there)] == [first, second]  # type: ignore[attr-defined]
    verify_aicore(made.plan)
    mode, setters, waiters = least(first, second)
    (event,) = (e for e in made.plan.events if e.after == here)
    assert event.mode is mode
    assert set(CoreKind if event.setters is None else {event.setters}) == setters
    took = {kind for kind in CoreKind if event.index in waiting(made.plan, kind, there)}
    assert took == waiters
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float16)
    got, want = kernel.run([x]).outputs["y"], kernel.run([x], executor="reference").outputs["y"]
    assert np.abs(got - want).max() <= 5e-3 * np.abs(want).max()


@pytest.mark.parametrize(("first", "second", "lanes"), list(cases()))
def test_a_narrower_range_is_refused(first: str, second: str, lanes: int) -> None:
    """The event made narrower in every way that there is, signalled and taken by whom that concerns."""
    _, made = pair(first, second, lanes)
    here, _ = numbers(made)
    (event,) = (e for e in made.plan.events if e.after == here)
    for mode, setters in narrower(event):
        if mode is Mode.TYPE and touching(made) == {setters}:
            continue  # of a MIX kernel only one type touches these bytes: types alone do not tell, level `minimal` does
        wrong, certificate = check_aicore_plan(renamed(made.plan, event, mode, setters))
        assert certificate is None, (mode, setters)
        assert any("race" in v.message for v in wrong), (mode, setters, wrong)


def touching(made: AicoreCompiled) -> set[CoreKind | AicpuKind]:
    """The types of cores that write the first one's result or read it."""
    here, there = numbers(made)
    return {
        made.plan.kind(task.core)
        for task in made.plan.tasks
        for access in task.accesses
        if access.space is Space.ARENA and access.write == (task.subop == here) and task.subop in (here, there)
    }


def narrower(event: Event) -> list[tuple[Mode, CoreKind]]:
    if event.setters is not None:
        assert isinstance(event.setters, CoreKind)
        return [(mode, event.setters) for mode in (Mode.GROUP, Mode.TYPE) if mode is not event.mode]
    return [(mode, kind) for mode in (Mode.GROUP, Mode.TYPE) for kind in CoreKind]


def renamed(plan: AicorePlan, event: Event, mode: Mode, setters: CoreKind) -> AicorePlan:
    """The plan with the event in another mode: only its new setters signal it, only its new receivers take it."""
    flag = max((e.flag for e in plan.events), default=0) + 1
    new = replace(event, mode=mode, setters=setters, flag=flag)
    programs: dict[HartKind, tuple[Step, ...]] = {}
    for kind, program in plan.programs.items():
        steps: list[Step] = []
        for step in program:
            if isinstance(step, Signal) and step.event == event.index and kind is not setters:
                continue
            if isinstance(step, Await) and step.event == event.index and kind not in new.receivers:
                continue
            if isinstance(step, Run) and kind not in new.receivers:
                waits = (
                    OperandWait(w.operand, tuple(e for e in w.events if e != event.index), w.fence) for w in step.waits
                )
                step = replace(step, waits=tuple(waits))
            steps.append(step)
        if kind in new.receivers and not any(event.index in awaited(s) for s in program):
            steps.append(Await(event.index, event.after + 1))
        programs[kind] = tuple(steps)
    events = tuple(new if e.index == event.index else e for e in plan.events)
    return replace(plan, events=events, programs=programs)


def test_kernels_of_one_core_per_group_leave_the_others_idle() -> None:
    _, made = pair("MIX_AIC_1_0", "MIX_AIV_1_0", 2)
    here, there = numbers(made)
    cores = {i: {t.core for t in made.plan.tasks if t.subop == i} for i in (here, there)}
    assert cores[here] == set(made.plan.cores(CUBE))
    assert cores[there] == set(list(made.plan.cores(VECTOR))[:: made.plan.vector_cores // made.plan.groups])
    assert "groups" in made.schedule.notes[there]


def test_one_vector_core_of_two_leaves_the_other_alone() -> None:
    _, made = pair("MIX_AIC_1_1", "AIV_ONLY", 2)
    here, there = numbers(made)
    cores = {i: {t.core for t in made.plan.tasks if t.subop == i} for i in (here, there)}
    vectors = list(made.plan.cores(VECTOR))
    assert cores[here] == {*made.plan.cores(CUBE), *vectors[:: made.plan.vector_cores // made.plan.groups]}
    assert cores[there] == set(vectors)


@needs_qemu
@pytest.mark.parametrize(("first", "second"), [("MIX_AIC_1_1", "AIC_ONLY"), ("AIC_ONLY", "AIV_ONLY")])
def test_pairs_and_ranges_across_types_on_the_emulator(first: str, second: str) -> None:
    kernel, _ = pair(first, second, 2)
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float16)
    np.testing.assert_array_equal(kernel.emulate([x])[0]["y"], kernel.run([x]).outputs["y"])


@pytest.mark.parametrize("target", ["mini", "a3"])
def test_attention_of_one_vector_core_of_two(target: str) -> None:
    b = sk.GraphBuilder("attention")
    q, k, v = (b.input(name, (1, 4, 64, 32), "f16") for name in "qkv")
    with b.kernel_type("MIX_AIC_1_1"):
        y = b.attention(q, k, v, name="first")
    b.output(y, "y")
    kernel = sk.compile(b.graph(), target=target)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((1, 4, 64, 32)).astype(np.float16) for _ in "qkv"]
    want = kernel.run(given, executor="reference").outputs["y"]
    assert np.abs(kernel.run(given).outputs["y"] - want).max() <= 5e-3 * np.abs(want).max()
    assert {t.launch_type.value for t in kernel._compiled.schedule.tilings} == {"MIX_AIC_1_1"}  # type: ignore[attr-defined]


def test_a_type_that_the_kernel_has_not_is_refused() -> None:
    b = sk.GraphBuilder("wrong")
    x = b.input("x", (SIZE, SIZE))
    with b.kernel_type("AIC_ONLY"):
        y = b.softmax(x, axis=0, name="s")
    b.output(y, "y")
    with pytest.raises(UnsupportedError, match="AIV_ONLY or MIX_AIV_1_0; found AIC_ONLY") as caught:
        sk.compile(b.graph(), target="mini")
    assert "node 's'" in str(caught.value)


def test_a_cast_behind_a_node_does_not_hide_its_type() -> None:
    """With f16 between inputs and outputs a chain ends with a cast, which names no type."""
    b = sk.GraphBuilder("wrong")
    x = b.input("x", (SIZE, SIZE))
    with b.kernel_type("AIC_ONLY"):
        y = b.tanh(x, name="t")
    b.output(y, "y")
    for precision in ("f16", "f32"):
        with pytest.raises(UnsupportedError, match="AIV_ONLY or MIX_AIV_1_0; found AIC_ONLY"):
            sk.compile(b.graph(), target="mini", options={"precision": precision})


@pytest.mark.parametrize("asked", ["AIV_ONLY", None, "MIX_AIC_1_2"])
def test_a_named_type_is_not_lost_by_joining(asked: str | None) -> None:
    """A pointwise node joins a product of the same type only, or where it names none itself."""
    b = sk.GraphBuilder("joined")
    x = b.input("x", (SIZE, SIZE))
    with b.kernel_type("AIC_ONLY" if asked == "AIV_ONLY" else "MIX_AIC_1_2"):
        y = b.matmul(x, x, name="m")
    if asked is None:
        y = b.tanh(y, name="t")
    else:
        with b.kernel_type(asked):
            y = b.tanh(y, name="t")
    b.output(y, "y")
    kernel = sk.compile(b.graph(), target="mini")
    product, chain = (kernel.explain(name).name for name in ("m", "t"))
    assert (product == chain) == (asked != "AIV_ONLY")
    given = {"x": np.full((SIZE, SIZE), 0.01, np.float32)}
    want = np.tanh(given["x"].astype(float) @ given["x"])
    np.testing.assert_allclose(kernel.run(given).outputs["y"], want, rtol=2e-3)


def test_a_type_named_in_front_of_a_product_is_kept() -> None:
    b = sk.GraphBuilder("front")
    x = b.input("x", (SIZE, SIZE))
    with b.kernel_type("AIV_ONLY"):
        y = b.relu(x, name="r")
    b.output(b.matmul(y, x, name="m"), "y")
    kernel = sk.compile(b.graph(), target="mini")
    assert kernel.explain("r").name != kernel.explain("m").name
