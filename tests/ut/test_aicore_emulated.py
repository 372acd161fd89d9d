"""Kernels on simulator and emulator side by side (`pytest --emulator`): what is right passes, what is wrong is noticed,
and a sample is a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aicore_emulated
import numpy as np
import pytest
from aicore_emulated import TALLY, Alone, check_emulated, chosen, summary
from firmware_bench import needs_qemu

from superkernel.backends.aicore.qemu_schedule import EngineSchedule, Fault
from superkernel.core.dtypes import DType
from superkernel.core.errors import SimulationError
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, Instruction, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.target.aicore import load_target
from superkernel.target.engines.model import Engine

KERNEL, MINI = "aicore.pointwise", load_target("mini")
COUNT = 40_000


def body(op: str = "neg", count: int = COUNT) -> Body:
    kind = TensorType(DType.F32, (count,))
    step = Instruction(op, (0,), DType.F32)
    program = PointwiseProgram((count,), (ProgramInput(0, DType.F32, (1,)),), (step,), (ProgramOutput(1, 1, (1,)),))
    operands = (Operand(Role.INPUT, kind), Operand(Role.OUTPUT, kind))
    return Body(None, (), operands, (), (), (), program)


def tiling_of(made: Body) -> AicoreTiling:
    found = next(iter(family_of(KERNEL).tilings(KERNEL, made, MINI)))
    assert isinstance(found, AicoreTiling)
    return found


class Case:
    """A negation, or another function, with what `check_emulated` is told of it."""

    def __init__(self, op: str = "neg") -> None:
        x = np.linspace(-3, 3, COUNT, dtype=np.float32)
        self.body = body(op)
        self.arrays = [x, np.zeros(COUNT, np.float32)]
        self.masks = [np.zeros(x.nbytes, bool), np.ones(x.nbytes, bool)]
        self.expected = {1: -x}
        self.near = {1: 0.0}

    def alone(self) -> Alone:
        return Alone(KERNEL, self.body, tiling_of(self.body), MINI, self.arrays, [1])

    def check(self) -> None:
        made = tiling_of(self.body)
        check_emulated(KERNEL, self.body, made, MINI, self.arrays, self.masks, self.expected, self.near)


@pytest.fixture
def own_tally() -> Iterator[None]:
    """What these tests compare on purpose does not count."""
    yield
    TALLY.clear()


@needs_qemu
@pytest.mark.parametrize(("choice", "runs"), [("late", 1), ("random", 2)])
def test_what_is_right_is_counted(choice: str, runs: int, own_tally: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aicore_emulated, "CHOICE", [choice])
    Case().check()
    assert (TALLY["programs"], TALLY["runs"], TALLY["equal"]) == (1, runs, runs)
    assert summary(TALLY).startswith(f"emulator: 1 programs, {runs} runs: {runs} equal, 0 close, 0 different")


@needs_qemu
def test_bytes_that_are_not_the_functions_are_noticed(own_tally: None) -> None:
    case = Case()
    case.expected[1][7] += 1
    with pytest.raises(AssertionError, match="simulator against function: 1 of 40000 differ, first at 7: "):
        case.check()


@needs_qemu
def test_undeclared_writes_are_noticed(own_tally: None) -> None:
    case = Case()
    case.masks[1][400:404] = False
    with pytest.raises(AssertionError, match="simulator against function: 1 of 40000 differ, first at 100: "):
        case.check()


@needs_qemu
def test_a_wait_that_is_left_out_is_noticed(own_tally: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vector engine of one core no longer waits for what it reads: it gives slots back that nobody has taken."""
    case, program = Case(), Alone.emulate
    vector = MINI.device.cube_cores
    flags = case.alone().emulator.run(case.alone()._tables()[0]).flags[vector]
    loads = [f for f in flags if f[:2] == (Engine.MTE2, Engine.V)]
    assert loads

    def faulty(alone: Alone, schedule: EngineSchedule) -> Any:
        return program(alone, EngineSchedule("late", fault=Fault(vector, forget=loads[0])))

    monkeypatch.setattr(Alone, "emulate", faulty)
    with pytest.raises(SimulationError, match="set more often than it can hold"):
        case.check()


@needs_qemu
def test_a_last_place_is_allowed_where_exp_ran_only(own_tally: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program, inexact = Alone.emulate, [0]

    def off(alone: Alone, schedule: EngineSchedule) -> Any:
        found, _ = program(alone, schedule)
        found[1][9] = np.nextafter(found[1][9], np.float32(9))
        return found, inexact[0]

    monkeypatch.setattr(Alone, "emulate", off)
    case = Case()
    with pytest.raises(AssertionError, match="emulator late: 1 of 40000 differ, first at 9"):
        case.check()
    assert TALLY["different"] == 1
    inexact[0], case.near[1] = 1, 1e-6
    case.check()
    assert TALLY["close"] == 1
    case.near[1] = 1e-9
    with pytest.raises(AssertionError, match="1 of 40000 differ"):
        case.check()


def test_a_sample_is_the_same_programs_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aicore_emulated.shutil, "which", lambda _: "/there")
    bodies = [body("neg", 64 * n) for n in range(1, 400)]
    pairs = [(made, tiling_of(made)) for made in bodies]

    def taken(choice: str) -> list[int]:
        monkeypatch.setattr(aicore_emulated, "CHOICE", [choice])
        return [n for n, (made, tiling) in enumerate(pairs) if chosen(KERNEL, made, tiling, MINI)]

    sample = taken("sample")
    assert 0 < len(sample) < 4 * len(pairs) / aicore_emulated.SAMPLED
    assert taken("sample") == sample
    assert not taken("none")
    assert len(taken("late")) == len(taken("random")) == len(pairs)
    monkeypatch.setattr(aicore_emulated.shutil, "which", lambda _: None)
    assert not taken("sample")
