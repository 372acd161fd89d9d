"""Faults put into programs for the device: each must end in its own diagnosis, naming core, sub-operator and place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rv64_asm as asm
from device_programs import A1, CODE, DATA, FENCE_IR, FENCE_WO, PRIVATE, T0, T1, Body, link
from seeds import seeds

from superkernel.core.dtypes import DType
from superkernel.core.errors import SimulationError
from superkernel.sim.device import FAILURE_KINDS, Device
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine

MINI = load_target("mini")
V0, V1 = 2, 3
OUT = DATA + 0x10_0000
SIZE = 4096


def device(bodies: dict[int, Body], **options: Any) -> Device:
    made = Device(MINI, link(bodies), **{"max_instructions": 1_000_000} | options)
    made.write(DATA, np.arange(1 << 18, dtype=np.float32).tobytes())
    return made


def fault(bodies: dict[int, Body], kind: str, **options: Any) -> SimulationError:
    for mode in ("both", "timing", "functional"):
        if options.get("mode", mode) != mode:
            continue
        with pytest.raises(SimulationError) as caught:
            device(bodies, **options | {"mode": mode}).launch()
        assert caught.value.kind == kind, caught.value
    assert kind in FAILURE_KINDS
    return caught.value


def double(*, leave_out: tuple[str, ...] = (), extra: tuple[str, ...] = (), rounds: int = 3) -> Body:
    """Reads a block, doubles it, writes it; two flags forward, two back, as a ring of one buffer."""
    body = Body()

    def step(name: str, do: Callable[[], object]) -> None:
        if name not in leave_out:
            do()
        if name in extra:
            do()

    for i in range(rounds):
        body.marker(10 + i)
        if i:
            step("wait free", lambda: body.wait_flag(Engine.MTE2, "mte3", 1))
        body.do("gm_to_ub", src=DATA + i * SIZE, dst=0, bytes=SIZE)
        step("set read", lambda: body.set_flag(Engine.MTE2, "v"))
        step("wait read", lambda: body.wait_flag(Engine.V, "mte2"))
        body.do("v_add", types=(DType.F32,), dst=SIZE, a=0, b=0, cols=SIZE // 4)
        step("set done", lambda: body.set_flag(Engine.V, "mte3"))
        step("wait done", lambda: body.wait_flag(Engine.MTE3, "v"))
        body.do("ub_to_gm", src=SIZE, dst=OUT + i * SIZE, bytes=SIZE)
        if i + 1 < rounds:
            step("set free", lambda: body.set_flag(Engine.MTE3, "mte2", 1))
    step("drain", body.drain)
    return body


def test_without_a_fault_it_doubles() -> None:
    made = device({V0: double()})
    made.launch()
    read = np.frombuffer(made.read(OUT, 3 * SIZE), np.float32)
    assert np.array_equal(read, 2 * np.arange(3 * SIZE // 4, dtype=np.float32))


@pytest.mark.parametrize(
    ("leave_out", "kind", "words"),
    [
        (("set read",), "deadlock", "wait_flag 0 from mte2"),
        (("set done",), "deadlock", "wait_flag 0 from v"),
        (("set free",), "deadlock", "wait_flag 1 from mte3"),
        (("wait read",), "race", "mte2"),
        (("wait free", "set free"), "race", "gm_to_ub"),
    ],
)
def test_a_flag_left_out(leave_out: tuple[str, ...], kind: str, words: str) -> None:
    error = fault({V0: double(leave_out=leave_out)}, kind, **({} if kind != "race" else {"mode": "both"}))
    assert words in str(error)
    assert f"core {V0} (aiv" in str(error)


@pytest.mark.parametrize(
    ("extra", "kind"),
    [(("set read",), "flag_overflow"), (("set free",), "flag_overflow"), (("wait done",), "deadlock")],
)
def test_a_flag_too_many(extra: tuple[str, ...], kind: str) -> None:
    error = fault({V0: double(extra=extra)}, kind)
    assert "sub-operator 1" in str(error)


def test_a_store_that_waits_for_nothing() -> None:
    """It reads before the first sum was written, or races with it: which comes first is a matter of time."""
    with pytest.raises(SimulationError) as caught:
        device({V0: double(leave_out=("wait done", "set done"))}).launch()
    assert caught.value.kind in ("race", "unwritten_local_read")


def test_a_drain_left_out() -> None:
    body = Body().marker(1)
    for _ in range(20):
        body.do("ub_fill", types=(DType.F32,), dst=0, count=40_000, value=0)
    error = fault({V0: body}, "undrained", mode="both")
    assert "mte2 has" in str(error)


def test_a_set_too_many_that_fits_is_left_over() -> None:
    error = fault({V0: double().set_flag(Engine.V, "mte2", 5).drain()}, "leftover_flag")
    assert "flag 5 from v to mte2 is still set" in str(error)
    device({V0: double().set_flag(Engine.V, "mte2", 5).drain()}, flags=False).launch()


def producer_consumer(
    *, sets: int = 1, waits: int = 1, ordered: bool = True, flag: int = 4, wait: int = 4
) -> dict[int, Body]:
    """V0 writes a block, V1 reads it behind a cross-core flag."""
    first = Body().marker(1).do("ub_fill", types=(DType.F32,), dst=0, count=64, value=0)
    first.set_flag(Engine.MTE2, "mte3").wait_flag(Engine.MTE3, "mte2")
    first.do("ub_to_gm", src=0, dst=OUT, bytes=256)
    for _ in range(sets):
        first.do("cross_set", Engine.MTE3 if ordered else Engine.CONTROL, flag=flag, mode="mask", mask=1 << V1)
    second = Body().marker(2, 1)
    for _ in range(waits):
        second.do("cross_wait", flag=wait)
    second.marker(2).do("gm_to_ub", src=OUT, dst=0, bytes=256).drain()
    return {V0: first.drain(), V1: second}


def test_a_cross_core_flag_orders() -> None:
    device(producer_consumer()).launch()


def test_a_missing_cross_core_set() -> None:
    error = fault(producer_consumer(sets=0), "deadlock")
    assert "cross_wait flag 4: count 0, expected at least 1; no core has begun another signal of it" in str(error)
    assert f"core {V1} (aiv of group 0), sub-operator 2" in str(error)


def test_a_wrong_flag_number() -> None:
    fault(producer_consumer(flag=5), "deadlock")


def test_an_extra_cross_core_set() -> None:
    error = fault(producer_consumer(sets=2), "leftover_flag")
    assert f"core {V1} (aiv of group 0): cross-core flag 4 still counts 1" in str(error)


def test_a_wrong_count() -> None:
    fault(producer_consumer(waits=2), "deadlock")


def test_a_count_too_far() -> None:
    most = MINI.sync.flag_count_max
    error = fault(producer_consumer(sets=most + 1, waits=0), "cross_overflow", races=False, unwritten=False)
    assert f"at most {most}" in str(error)


def test_a_set_that_does_not_wait_for_the_engine_is_a_race() -> None:
    error = fault(producer_consumer(ordered=False), "race", unwritten=False, mode="both")
    text = str(error)
    assert "global memory" in text
    assert f"core {V0} (aiv of group 0) mte3 in sub-operator 1" in text or f"core {V1}" in text


def test_a_barrier_that_one_core_misses() -> None:
    bodies = {
        core: Body().marker(7).do("cross_set", Engine.CONTROL, flag=0, mode="type").do("cross_wait", flag=0)
        for core in (2, 3, 4)
    }
    error = fault(bodies, "deadlock")
    assert len(error.violations) == 1 + 3
    assert "in mode type round 1 lacks core 5 (aiv of group 1) in sub-operator 0, its control unit has ended" in str(
        error
    )


# ---- commands


def one(name: str, engine: Engine | None = None, types: tuple[DType, ...] = (), **operands: int | str) -> Body:
    return Body().marker(3).do(name, engine, types, **operands).drain()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (one("ub_to_gm", src=0, dst=OUT, bytes=64), "unwritten_local_read"),
        (one("v_add", types=(DType.F32,), dst=0, a=64, b=128, cols=8), "unwritten_local_read"),
        (one("gm_to_ub", src=DATA, dst=MINI.memory.ub_bytes - 32, bytes=64), "out_of_range"),
        (one("gm_to_ub", src=DATA, dst=8, bytes=64), "misaligned"),
        (one("gm_to_ub", src=0x1000, dst=0, bytes=64), "unmapped"),
        (one("gm_to_ub", src=OUT + 0x100000, dst=0, bytes=64), "unwritten_global_read"),
        (one("gm_to_ub", src=PRIVATE + 64, dst=0, bytes=64), "foreign_private"),
        (one("l1_fill", types=(DType.F32,), dst=0, count=8, value=0), "not_on_core"),
        (Body().li(T0, 0xFE).emit(asm.s("sd", T0, 8, 0x0F8)), "undefined_command"),
        (Body().li(T0, 0).emit(asm.s("sw", T0, 8, 0x0F8)), "undefined_command"),
        (Body().li(T0, 0).emit(asm.s("sd", T0, 8, 0x400)), "undefined_command"),
        (one("cross_wait", flag=MINI.sync.flags_per_core), "bad_operand"),
        (one("ub_fill", types=(DType.F32,), dst=0, count=8, value=0).do("ub_to_gm", src=0, dst=CODE, bytes=32).drain(),
         "code_write"),
        (Body().store(CODE, 0), "code_write"),
        (Body().load(A1, DATA + 1), "misaligned"),
        (Body().store(0x5000_0000, 0), "unmapped"),
        (Body().load(A1, PRIVATE), "foreign_private"),
        (Body().emit(asm.EBREAK), "trap"),
        (Body().emit(0), "trap"),
        (Body().li(T1, DATA).emit(asm.amocas("q", 28, 30, T1)), "trap"),  # cores have no atomics of 16 bytes
        (Body().li(T1, DATA).emit(asm.i("jalr", 0, T1, 0)), "trap"),
        (Body().emit(asm.jal(0, 0)), "instruction_limit"),
        (Body().li(T0, -1).emit(asm.s("sd", T0, 9, 0)), "bad_marker"),
        (Body().store(MINI.map.exit_address, 7, "sw"), "bad_exit"),
        (Body().store(MINI.map.exit_address, 3 << 16 | 0x3333, "sw"), "program_failed"),
    ],
)  # fmt: skip
def test_one_wrong_thing(body: Body, kind: str) -> None:
    error = fault({V0: body}, kind)
    if kind != "instruction_limit":
        assert "pc 0x8000" in str(error) or kind == "trap"
    assert "core 2 (aiv)" in str(error)


def test_an_error_names_its_symbol_and_command() -> None:
    error = fault({V0: one("ub_to_gm", src=0, dst=OUT, bytes=64)}, "unwritten_local_read")
    assert "<body0+0x" in error.violations[0].location
    assert "mte3: ub_to_gm dst=" in error.violations[0].location
    assert "sub-operator 3 (body)" in error.violations[0].location
    assert error.to_json()["kind"] == "unwritten_local_read"


@pytest.mark.parametrize("step", [1, 9, 1 << 20])
def test_a_bad_command_is_found_in_its_turn(step: int) -> None:
    """However far its core has run ahead by then: another core's failure of an earlier cycle comes first, its own
    place, cycle and sub-operator are those of the doorbell, and what stands behind it was never done."""

    def late(address: int, delay: int) -> Body:
        body = Body().marker(4).nops(delay).do("gm_to_ub", src=DATA, dst=0, bytes=64).marker(5)
        body.do("gm_to_ub", src=DATA, dst=address, bytes=64).marker(6)
        return body.do("gm_to_ub", src=DATA, dst=64, bytes=64).drain()

    alone = fault({V0: late(8, 100)}, "misaligned", step=step)
    assert "sub-operator 5 (body)" in str(alone)
    assert "gm_to_ub" in str(alone)
    reference = fault({V0: late(8, 100)}, "misaligned")
    assert str(alone) == str(reference)
    earlier = fault({V0: late(8, 300), V1: late(16, 100)}, "misaligned", step=step)
    assert f"core {V1} (aiv)" in str(earlier), earlier
    assert fault({V0: late(0, 300), V1: late(MINI.memory.ub_bytes, 300)}, "out_of_range", step=step)


@pytest.mark.parametrize("name", ["gm_to_ub", "sdma_copy"])
def test_a_command_behind_the_end_is_not_drained(name: str) -> None:
    """Of a core that nobody waits for. How far it ran ahead by the end does not matter."""
    late = Body().loop(A1, 100, Body().nops(1))
    ends = Body().nops(4).store(MINI.map.exit_address, 0x5555, "sw")
    late.do(name, src=DATA, dst=OUT if name == "sdma_copy" else 0, bytes=64)
    texts = {str(fault({V0: ends, V1: late}, "undrained", step=step)) for step in (1, 9, 1 << 20)}
    assert len(texts) == 1, texts
    assert f"core {V1} (aiv of" in texts.pop()


@pytest.mark.parametrize(("kind", "limit_s"), [("instruction_limit", math.inf), ("time_limit", 0.1)])
def test_a_loop_that_never_ends_is_stopped(kind: str, limit_s: float) -> None:
    """However costly what it does is; who runs and who waits for whom is told."""
    endless = Body().marker(7)
    start = len(endless.words)
    endless.do("gm_to_ub", src=DATA, dst=0, bytes=SIZE)
    endless.words.append(asm.jal(0, 4 * (start - len(endless.words))))
    sets = Body().marker(3).do("cross_set", Engine.CONTROL, flag=1, mode="type")
    waits = Body().marker(5).do("cross_set", Engine.CONTROL, flag=1, mode="type").do("cross_wait", flag=1)
    bodies = {V0: endless, V1: waits, V1 + 1: sets, V1 + 2: sets}
    made = device(bodies, max_instructions=20_000 if kind == "instruction_limit" else 1 << 40)
    with pytest.raises(SimulationError) as caught:
        made.launch(limit_s=limit_s)
    assert caught.value.kind == kind
    assert kind in FAILURE_KINDS
    text = str(caught.value)
    at = r"(its control unit runs at pc 0x\w+ <body0\+0x|the queue of mte2 is full; mte2 has \d+ commands)"
    assert re.search(rf"core 2 \(aiv of group 0\), sub-operator 7: {at}", text), text
    assert caught.value.violations[0].location.startswith("core 2 (aiv), sub-operator 7")
    waiter = "core 3 (aiv of group 0), sub-operator 5: cross_wait flag 1"
    assert re.search(rf"{re.escape(waiter)}.* in mode type round 1 lacks core 2", text), text


def test_everybody_asleep() -> None:
    made = Device(MINI, link({V0: Body().nops(3)}, exits=False), max_instructions=1000)
    with pytest.raises(SimulationError) as caught:
        made.launch()
    assert caught.value.kind in ("no_exit", "trap")


def test_a_failed_device_can_be_launched_again() -> None:
    made = device({V0: double(leave_out=("set read",))})
    for _ in range(2):
        with pytest.raises(SimulationError):
            made.launch()
        made.write(0x8030_0000, bytes(8))


# ---- races and declarations


def overlapping(distance: int, ordered: bool) -> dict[int, Body]:
    """Both write 64 bytes, `distance` apart."""
    bodies = {}
    for index, core in enumerate((V0, V1)):
        body = Body().marker(core).do("ub_fill", types=(DType.F32,), dst=0, count=16, value=0)
        body.set_flag(Engine.MTE2, "mte3").wait_flag(Engine.MTE3, "mte2")
        if index and ordered:
            body.do("cross_wait", flag=1)
        body.do("ub_to_gm", src=0, dst=OUT + index * distance, bytes=64)
        if not index and ordered:
            body.do("cross_set", Engine.MTE3, flag=1, mode="mask", mask=1 << V1)
        bodies[core] = body.drain()
    return bodies


@pytest.mark.parametrize(("distance", "ordered"), [(64, False), (0, True), (63, True), (1000, False)])
def test_no_race(distance: int, ordered: bool) -> None:
    device(overlapping(distance, ordered)).launch()


@pytest.mark.parametrize("distance", [0, 1, 63])
def test_overlapping_writes_race(distance: int) -> None:
    error = fault(overlapping(distance, False), "race", mode="both")
    first, last = OUT + distance, OUT + 64
    assert f"global memory {first:#x} to {last:#x}" in str(error)
    device(overlapping(distance, False), races=False).launch()


@pytest.mark.parametrize("seed", seeds(40))
def test_races_are_exact_to_the_byte(seed: int) -> None:
    """One core writes random ranges, in order with itself; another reads random ranges: a race where they meet."""
    rng = np.random.default_rng(seed)
    begins, sizes = rng.integers(0, 3000, 16), rng.integers(1, 40 if seed % 2 else 700, 16)
    written = np.zeros(4096, bool)
    writer = Body().do("ub_fill", types=(DType.F32,), dst=0, count=256, value=0)
    writer.set_flag(Engine.MTE2, "mte3").wait_flag(Engine.MTE3, "mte2")
    for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
        writer.do("ub_to_gm", src=0, dst=OUT + begin, bytes=size)
        written[begin : begin + size] = True
    reader, meets = Body(), False
    for begin, size in zip(rng.integers(0, 4000, 4).tolist(), rng.integers(1, 60, 4).tolist(), strict=True):
        reader.do("gm_to_ub", src=OUT + begin, dst=0, bytes=size)
        meets |= bool(written[begin : begin + size].any())
    made = device({V0: writer.drain(), V1: reader.drain()}, unwritten=False, mode=("both", "functional")[seed % 3 == 0])
    if not meets:
        made.launch()
        return
    with pytest.raises(SimulationError) as caught:
        made.launch()
    assert caught.value.kind == "race"
    text = caught.value.violations[0].found
    first, last = (int(text.split()[i].rstrip(":"), 16) - OUT for i in (2, 4))
    assert 0 <= first < last
    assert written[first:last].all()


@pytest.mark.parametrize("fenced", [True, False])
def test_a_command_sees_stores_behind_a_fence(fenced: bool) -> None:
    body = Body().store(OUT, 77).emit(*([FENCE_WO] if fenced else []))
    body.do("gm_to_ub", src=OUT, dst=0, bytes=8).drain()
    if fenced:
        device({V0: body}).launch()
    else:
        assert "fence w, o" in str(fault({V0: body}, "race", mode="both"))


@pytest.mark.parametrize("fenced", [True, False])
def test_a_load_sees_commands_behind_a_fence(fenced: bool) -> None:
    body = Body().do("ub_fill", types=(DType.F32,), dst=0, count=16, value=9)
    body.set_flag(Engine.MTE2, "mte3").wait_flag(Engine.MTE3, "mte2").do("ub_to_gm", src=0, dst=OUT, bytes=64).drain()
    body.emit(*([FENCE_IR] if fenced else [])).load(A1, OUT).emit(asm.s("sd", A1, 9, 64))
    if fenced:
        made = device({V0: body})
        made.launch()
        assert made.read(PRIVATE + V0 * MINI.control.private_bytes + 64, 8) == (9 << 32 | 9).to_bytes(8, "little")
    else:
        assert "fence i, r" in str(fault({V0: body}, "race", mode="both"))


def test_notify_orders_and_its_absence_does_not() -> None:
    def bodies(word: bool) -> dict[int, Body]:
        first = Body().do("ub_fill", types=(DType.F32,), dst=0, count=16, value=9)
        first.set_flag(Engine.MTE2, "mte3").wait_flag(Engine.MTE3, "mte2").do("ub_to_gm", src=0, dst=OUT, bytes=64)
        first.do("notify", Engine.MTE3, address=DATA, value=1 << 62, mode="store").drain()
        second = Body()
        if word:
            second.do("wait_memory", address=DATA, value=1 << 62)
        return {V0: first, V1: second.do("gm_to_ub", src=OUT, dst=0, bytes=64).drain()}

    device(bodies(True)).launch()
    fault(bodies(False), "race", unwritten=False, mode="both")


def test_declared_regions() -> None:
    body = double(rounds=1)
    made = device({V0: body})
    made.declare(10, V0, reads=[(DATA, DATA + SIZE)], writes=[(OUT, OUT + SIZE)])
    made.declare_scratch([(0x8030_0000, 0x8030_0040)])
    made.launch()
    for reads, writes, word in [
        ([(DATA, DATA + SIZE - 1)], [(OUT, OUT + SIZE)], "a read that is not declared"),
        ([(DATA, DATA + SIZE)], [(OUT + 1, OUT + SIZE)], "a write that is not declared"),
    ]:
        made = device({V0: body})
        made.declare(10, V0, reads=reads, writes=writes)
        with pytest.raises(SimulationError, match=word) as caught:
            made.launch()
        assert caught.value.kind == "undeclared_access"
        assert "sub-operator 10" in str(caught.value)
    elsewhere = device({V0: body})
    elsewhere.declare(10, V1, reads=[(DATA, DATA + SIZE)], writes=[(OUT, OUT + SIZE)])
    with pytest.raises(SimulationError, match="not declared"):
        elsewhere.launch()
