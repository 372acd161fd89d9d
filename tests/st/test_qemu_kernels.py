"""Every kernel that the registry has for the accelerator, alone, on the emulator: the simulator's bits from the same
bytes, commands as late as legal and at random; and that no kernel is left out."""

from __future__ import annotations

import numpy as np
import pytest
from aicore_kernels import cases, covered_ids, graph_of, inputs_of, known_ids, precision_of
from firmware_bench import needs_qemu

import superkernel as sk
from superkernel.backends.aicore.qemu_schedule import EngineSchedule

pytestmark = needs_qemu

ULPS = 8.0  # where exp or ln ran: units of the type's precision, relative to the largest magnitude


def compiled(name: str, dtype: str, number: int) -> sk.AicoreKernel:
    return sk.compile(graph_of(name, dtype, number), target="mini", options={"precision": precision_of(dtype)})


@pytest.mark.parametrize(("name", "dtype", "number"), list(cases()))
def test_a_kernel_alone(name: str, dtype: str, number: int) -> None:
    kernel = compiled(name, dtype, number)
    assert f"aicore.{name}" in {s.kernel.split("/")[0] for s in kernel._executable.schedule.subops}
    inputs = inputs_of(kernel.inputs)
    want = kernel.run(inputs).outputs["z"]
    for schedule in (EngineSchedule("late"), EngineSchedule("random", 1)):
        kernel.reset_states()
        outputs, run = kernel.emulate(inputs, schedule)
        if not run.inexact:
            assert outputs["z"].tobytes() == want.tobytes(), schedule
        else:
            got, expected = outputs["z"].astype(np.float64), want.astype(np.float64)
            unit = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}[dtype]
            assert np.abs(got - expected).max() <= ULPS * unit * np.abs(expected).max(), schedule


def test_every_kernel_of_the_registry_is_here() -> None:
    """By name and element type."""
    assert known_ids() == covered_ids()
