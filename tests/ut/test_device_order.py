"""What must not matter: how far cores run ahead, how often one runs, which mode computes the data. And the speed."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rv64_asm as asm
from device_programs import A1, A2, DATA, DONE, FENCE_IR, FENCE_WO, NOP, S1, T1, Body, link

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, SimulationError
from superkernel.sim.counters import STALLS, LaunchResult
from superkernel.sim.device import FAILURE_KINDS, Device
from superkernel.sim.trace import COMMAND, FLOW_IN, FLOW_OUT, MARKER, records, to_chrome
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine

MINI = load_target("mini")
BLOCK = 2048
WORD = DATA + 0x20_0000
OUT = DATA + 0x10_0000


def busy_device_program() -> dict[int, Body]:
    """Every vector core doubles blocks in turn with its neighbour, cubes signal, all meet, some notify."""
    bodies: dict[int, Body] = {}
    for core in range(6):
        body = Body().marker(1, 1)
        for i in range(6):
            body.marker(2 + i)
            body.loop(A1, 3 + 5 * core + i, Body().nops(1 + i).emit(asm.r("mul", A2, A2, A2), asm.r("add", A2, A2, A2)))
            if core < 2:
                body.do("cross_set", Engine.CONTROL, flag=1, mode="group")
                body.do("gm_to_l1", src=DATA + BLOCK * i, dst=0, bytes=BLOCK + 64 * core)
            else:
                body.do("cross_wait", flag=1)
                body.do("gm_to_ub", src=DATA + BLOCK * i, dst=0, bytes=BLOCK)
                body.set_flag(Engine.MTE2, "v").wait_flag(Engine.V, "mte2")
                body.do("v_adds", types=(DType.F32,), dst=BLOCK, src=0, cols=BLOCK // 4, value=0)
                body.set_flag(Engine.V, "mte3").wait_flag(Engine.MTE3, "v")
                body.do("ub_to_gm", src=BLOCK, dst=OUT + BLOCK * (6 * core + i), bytes=BLOCK)
                body.do("notify", Engine.MTE3, address=WORD, value=1, mode="add")
            body.drain()
            body.do("cross_set", Engine.CONTROL, flag=2, mode="all").do("cross_wait", flag=2)
        body.do("wait_memory", address=WORD, value=24).load(A1, DATA + 8 * core).emit(asm.s("sd", A1, S1, 256))
        bodies[core] = body.drain()
    bodies[6] = Body().load(A1, DATA).store(WORD + 64, 5).do("wait_memory", address=WORD, value=12).emit(FENCE_IR)
    return bodies


def launch(program: bytes, **options: Any) -> tuple[Device, LaunchResult]:
    device = Device(MINI, program, **{"trace": True} | options)
    device.write(DATA, np.arange(1 << 18, dtype=np.float32).tobytes())
    device.write(WORD, bytes(64))
    return device, device.launch()


def test_the_step_changes_nothing() -> None:
    program = link(busy_device_program())
    _, first = launch(program)
    assert len(records(first.trace)) > 400
    for step in (1, 7, 100_000):
        _, other = launch(program, step=step)
        assert other == first


def test_twenty_runs_are_one() -> None:
    program = link(busy_device_program())
    seen = {launch(program)[1].trace for _ in range(20)}
    assert len(seen) == 1


def test_checks_change_no_time() -> None:
    program = link(busy_device_program())
    _, first = launch(program)
    assert launch(program, races=False, unwritten=False, mode="timing")[1].trace == first.trace


def test_failures_do_not_depend_on_the_step() -> None:
    bodies = busy_device_program()
    bodies[4].do("cross_wait", flag=9)
    texts = set()
    for step in (1, 50, 100_000):
        device = Device(MINI, link(bodies), step=step)
        device.write(DATA, bytes(1 << 20))
        device.write(WORD, bytes(64))
        with pytest.raises(SimulationError) as caught:
            device.launch()
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert "cross_wait flag 9" in texts.pop()


@pytest.mark.parametrize("mode", ["both", "functional"])
def test_modes_agree_on_the_data(mode: str) -> None:
    device, result = launch(link(busy_device_program()), mode=mode)
    for core in range(2, 6):
        read = np.frombuffer(device.read(OUT + BLOCK * 6 * core, 6 * BLOCK), np.float32)
        assert np.array_equal(read, np.arange(6 * BLOCK // 4, dtype=np.float32))
    assert int.from_bytes(device.read(WORD, 8), "little") == 24
    assert result.sub_operators == tuple(range(8))


def test_timing_computes_no_data_and_takes_the_same_time() -> None:
    _, both = launch(link(busy_device_program()))
    device, timing = launch(link(busy_device_program()), mode="timing")
    assert timing.cycles == both.cycles
    assert not any(device.read(OUT + 2 * 6 * BLOCK, BLOCK))
    assert int.from_bytes(device.read(WORD, 8), "little") == 24


def test_launches_follow_one_another() -> None:
    """Memory, L2 and, unless cold, instruction caches stay; the number is handed over."""
    body = Body().emit(asm.i("ld", A1, S1, 16)).li(T1, WORD).emit(asm.s("sd", A1, T1, 0))
    body.do("gm_to_ub", src=DATA, dst=0, bytes=65536).drain()
    device = Device(MINI, link({2: body}))
    device.write(DATA, bytes(1 << 20))
    results = []
    for number, cold in ((11, True), (12, True), (13, False)):
        device.write(DONE, bytes(8))
        results.append(device.launch(number=number, cold=cold))
        assert int.from_bytes(device.read(WORD, 8), "little") == number
    assert results[0].memory.misses > 100
    assert results[1].memory.misses == results[2].memory.misses == 0
    assert results[0].cores[2].control.misses == results[1].cores[2].control.misses > 0
    assert results[2].cores[2].control.misses == 0
    assert results[0].cycles > results[1].cycles > results[2].cycles


def test_sdma_copies_and_prefetches_for_all() -> None:
    body = Body().do("sdma_copy", dst=OUT, src=DATA, bytes=4096).do("sdma_prefetch", address=DATA + 65536, bytes=8192)
    body.do("notify", Engine.SDMA, address=WORD, value=1, mode="store")
    reader = Body().do("wait_memory", address=WORD, value=1).do("gm_to_ub", src=DATA + 65536, dst=0, bytes=8192)
    reader.do("gm_to_ub", src=OUT, dst=8192, bytes=4096).drain()
    device, result = launch(link({6: body, 3: reader}))
    assert device.read(OUT, 4096) == device.read(DATA, 4096)
    assert result.sdma.commands == 2
    assert result.cores[3].engines["mte2"].waits_memory == 0
    startup, rate = MINI.cycles(MINI.sdma.startup_ns), "sdma.rate_gb_per_s"
    least = 2 * startup + MINI.transfer_cycles(rate, 4096) + MINI.transfer_cycles(rate, 8192)
    assert least <= result.sdma.busy <= least + 2 * MINI.cycles(MINI.hbm.latency_ns) + 300


def test_lr_and_sc_count_to_the_sum() -> None:
    retry = [asm.amo("lr", "d", A1, 0, T1), asm.i("addi", A1, A1, 1), asm.amo("sc", "d", A2, A1, T1)]
    once = Body().emit(*retry, asm.b("bne", A2, 0, -12))
    bodies = {core: Body().li(T1, WORD).loop(7, 10, once) for core in range(2, 6)}
    device, _ = launch(link(bodies), max_instructions=2_000_000)
    assert int.from_bytes(device.read(WORD, 8), "little") == 40


def test_a_scalar_store_ends_a_wait_for_memory() -> None:
    bodies = {2: Body().nops(300).store(WORD, 3), 3: Body().do("wait_memory", address=WORD, value=3)}
    _, result = launch(link(bodies))
    assert result.cores[3].control.stalls["wait_memory"] >= MINI.cycles(MINI.sync.memory_flag_ns)


def test_fences_order_between_cores_too() -> None:
    bodies = {
        2: Body().store(OUT, 7).emit(FENCE_WO).do("cross_set", Engine.CONTROL, flag=0, mode="mask", mask=1 << 3),
        3: Body().do("cross_wait", flag=0).emit(FENCE_IR).load(A1, OUT),
    }
    launch(link(bodies))


def test_the_trace_is_json_with_a_process_per_core() -> None:
    import json

    _, result = launch(link(busy_device_program()))
    rows = records(result.trace)
    assert set(rows["kind"].tolist()) >= {MARKER, COMMAND, FLOW_OUT, FLOW_IN}
    assert (rows["end"] >= rows["begin"]).all()
    text = to_chrome(result.trace, MINI, {2: "double"})
    events = json.loads(text)["traceEvents"]
    assert {e["pid"] for e in events} == set(range(7))
    spans = [e for e in events if e["ph"] == "X"]
    assert {"gm_to_ub", "v_adds", "cross_wait", "double body"} <= {e["name"] for e in spans}
    assert {e["id"] for e in events if e["ph"] == "f"} <= {e["id"] for e in events if e["ph"] == "s"}
    engines = rows[(rows["kind"] == COMMAND) & (rows["core"] == 2) & (rows["track"] == Engine.MTE2.value)]
    assert (engines["begin"][1:] >= engines["end"][:-1]).all()


def test_bad_programs_and_parameters_are_refused() -> None:
    good = link({2: Body()})
    for bad in (b"", b"\x7fELF", good[:80], good.replace(b"\x7fELF\x02", b"\x7fELF\x01", 1)):
        with pytest.raises((InputError, Exception), match=r"."):
            Device(MINI, bad)
    with pytest.raises(InputError, match="outside"):
        Device(MINI.replaced({"map.ram_bytes": 1 << 20}), good)
    device = Device(MINI, good)
    for call in (lambda: device.write(0, b"1"), lambda: device.read(DATA, 1 << 40), lambda: device.declare(0, 99)):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputError, match="mode"):
        Device(MINI, good, mode="fast")  # type: ignore[arg-type]


def test_the_guide_names_every_failure_and_stall() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    for kind, meaning in FAILURE_KINDS.items():
        assert f"| `{kind}` | {meaning} |" in text
    assert all(f"`{stall}`" in text for stall in STALLS)


@pytest.mark.parametrize("inner", [Body().nops(1), Body().load(A2, DATA)], ids=["private", "polling"])
def test_a_signal_interrupts_a_launch(inner: Body) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    body = Body().emit(*inner.words, asm.jal(0, -4 * len(inner.words)))
    device = Device(MINI, link({2: body}))
    device.write(DATA, bytes(64))
    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, 0.2)  # of CPU time: inside the launch, however busy the machine
    try:
        start = time.process_time()
        with pytest.raises(Alarm):
            device.launch()
        assert time.process_time() - start < 20
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert device.retired > 1000


@pytest.mark.parametrize("cores", [1, 4])
def test_speed_of_control_units(cores: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A loop of ten instructions; the figure is printed, the bound is loose."""
    inner = Body().emit(*[NOP] * 4, asm.r("add", A2, A2, A2), asm.r("xor", A2, A2, A1), *[NOP] * 2)
    body = Body().loop(A1, 2_000_000 // cores, inner)
    rate = 0.0
    for _ in range(3):  # other programs only slow it down
        device = Device(MINI, link(dict.fromkeys(range(2, 2 + cores), body)), races=False)
        start = time.process_time()
        result = device.launch()
        rate = max(rate, result.instructions / (time.process_time() - start) / 1e6)
    with capsys.disabled():
        print(f"\n  device, {cores} cores: {rate:.0f} M instructions/s")
    assert rate > 50
