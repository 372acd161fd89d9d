"""Delays that are drawn: legal timings of the simulator that no description has. A right program minds none of them,
one that is right by luck is found out, and a seed gives the same run again."""

from __future__ import annotations

import models
import numpy as np
import pytest
from device_programs import DATA, Body, link
from seeds import seeds

import superkernel as sk
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, SimulationError
from superkernel.reference.random_inputs import random_inputs
from superkernel.sim.device import Device
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine

MINI = load_target("mini")
V0, V1, V2 = 2, 3, 4
OUT = DATA + 0x10_0000


def lucky() -> dict[int, Body]:
    """V2 reads what V0 writes, behind one signal of a flag that V0 and V1 both set: V0's comes first, V1 has more to do
    before. The second signal is taken as well."""
    writes = Body().do("ub_fill", types=(DType.F32,), dst=0, count=16, value=0).set_flag(Engine.MTE2, "mte3")
    writes.wait_flag(Engine.MTE3, "mte2").do("ub_to_gm", src=0, dst=OUT, bytes=64)
    writes.do("cross_set", Engine.MTE3, flag=1, mode="mask", mask=1 << V2).drain()
    other = Body().do("gm_to_ub", src=DATA, dst=0, bytes=16384)
    other.do("cross_set", Engine.MTE2, flag=1, mode="mask", mask=1 << V2).drain()
    reads = Body().do("cross_wait", flag=1).do("gm_to_ub", src=OUT, dst=0, bytes=64).do("cross_wait", flag=1).drain()
    return {V0: writes, V1: other, V2: reads}


def failure(bodies: dict[int, Body], seed: int) -> str:
    """What a run with a seed ends in: its error, "" where it has none."""
    device = Device(MINI, link(bodies), delays=seed)
    device.write(DATA, bytes(1 << 17))
    try:
        device.launch()
    except SimulationError as error:
        return f"{error.kind}: {error}"
    return ""


def test_what_is_right_by_luck_is_found_out() -> None:
    assert failure(lucky(), 0) == ""
    found = {seed: failure(lucky(), seed) for seed in range(1, 21)}
    wrong = [seed for seed, text in found.items() if text]
    assert 1 <= len(wrong) < len(found)
    assert all(found[seed].startswith(("race: ", "unwritten_global_read: ")) for seed in wrong), found
    assert all(failure(lucky(), seed) == found[seed] for seed in wrong)


@pytest.mark.parametrize("seed", seeds(1))
def test_a_right_program_minds_no_delays(seed: int) -> None:
    """Another time, the same bits; the seed says both."""
    kernel = sk.compile(models.transformer(layers=1, tokens=16, width=64, heads=4), target="mini")
    executable, io = kernel.emulation(random_inputs(kernel.inputs, 0))
    program, outputs = executable.program, io[len(kernel.inputs) :]
    first = program.simulate(io)
    want = [np.array(array) for array in outputs]
    for delays in (1 + seed % 1_000_000_007, 2 + seed % 1_000_000_007):
        cycles = []
        for _ in range(2):
            for array in outputs:
                array.fill(0)
            cycles.append(program.simulate(io, delays=delays).launches[0].cycles)
            assert all(a.tobytes() == b.tobytes() for a, b in zip(outputs, want, strict=True))
        assert cycles[0] == cycles[1] > first.launches[0].cycles


def test_a_seed_is_a_number() -> None:
    for wrong in (-1, 1 << 32):
        with pytest.raises(InputError, match="delays"):
            Device(MINI, link({V0: Body()}), delays=wrong)
