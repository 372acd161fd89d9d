"""The device's time against closed forms: commands alone, queues, flags, L2, HBM, cross-core flags, notify.

Engines' times are taken from the counters: `busy` is a command's start to end. Uncontended figures must be exact; where
several cores meet, within 1 %.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import rv64_asm as asm
from device_programs import A1, A2, CODE, DATA, DONE, FENCE_ALL, NOP, S1, T0, T1, Body, link, price_of
from seeds import seeds

from superkernel.core.dtypes import DType
from superkernel.sim.counters import LaunchResult
from superkernel.sim.device import Device
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Engine, command

MINI = load_target("mini")
CUBE, VECTOR = 0, 2  # first cores of each type on mini
LINE = MINI.l2.line_bytes
HBM = MINI.cycles(MINI.hbm.latency_ns)


def run(
    bodies: dict[int, Body], *, warm: int = 1 << 22, target: AicoreTarget = MINI, launches: int = 1, **options: Any
) -> LaunchResult:
    settings: Any = {"mode": "timing", "races": False, "flags": False} | options
    device = Device(target, link(bodies), **settings)
    device.write(DATA, bytes(warm or 1 << 22))
    device.warm_l2(CODE, 1 << 20)
    if warm:
        device.warm_l2(DATA, warm)
    result = device.launch()
    for _ in range(launches - 1):
        device.write(DONE, bytes(8))
        result = device.launch(cold=False)
    return result


def near(found: float, expected: float) -> bool:
    return abs(found - expected) <= 0.01 * expected


COPIES = [
    ("gm_to_ub", VECTOR, Engine.MTE2, {"src": DATA + offset, "dst": 0, "bytes": size})
    for size in (1, 31, 32, 511, 512, 4096, 6144, 100_000, 190_000)
    for offset in (0, 32, 7)
] + [
    ("gm_to_l1", CUBE, Engine.MTE2, {"src": DATA + offset, "dst": 0, "bytes": size})
    for size in (32, 1000, 16384, 500_000)
    for offset in (0, 64)
]  # fmt: skip
STRIDED = [
    ("gm_to_ub_2d", VECTOR, Engine.MTE2, (DType.F16,),
     {"src": DATA, "dst": 0, "rows": rows, "cols": cols, "dst_stride": -(-2 * cols // 32) * 32, "src_stride": stride})
    for rows, cols, stride in [(1, 64, 0), (7, 100, 200), (64, 128, 256), (64, 128, 4096), (16, 33, 16384), (64, 32, 0)]
] + [
    ("gm_to_l1_2d", CUBE, Engine.MTE2, (DType.F32,),
     {"src": DATA, "dst": 0, "rows": rows, "cols": cols, "dst_stride": 4 * cols + 32, "src_stride": stride,
      "left": 3, "right": 5})
    for rows, cols, stride in [(2, 64, 512), (100, 128, 1024)]
]  # fmt: skip


@pytest.mark.parametrize(("name", "core", "engine", "operands"), COPIES)
def test_copies_that_hit_take_the_closed_form(name: str, core: int, engine: Engine, operands: dict[str, Any]) -> None:
    what = command(name, **operands)
    counts = run({core: Body().issue(what).drain()}).cores[core].engines[engine.title]
    price = price_of(what, MINI)
    assert (counts.busy, counts.waits_memory) == (price.startup + price.beats, 0)
    assert counts.bytes_read == operands["bytes"]


@pytest.mark.parametrize(("name", "core", "engine", "types", "operands"), STRIDED)
def test_strided_copies_that_hit_take_the_closed_form(
    name: str, core: int, engine: Engine, types: tuple[DType, ...], operands: dict[str, Any]
) -> None:
    what = command(name, types=types, **operands)
    counts = run({core: Body().issue(what).drain()}).cores[core].engines[engine.title]
    price = price_of(what, MINI)
    assert counts.busy == price.startup + price.beats
    assert counts.bytes_read == operands["rows"] * operands["cols"] * types[0].itemsize


@pytest.mark.parametrize("size", [32, 512, 8192, 65536, 180_000])
def test_stores_take_the_closed_form(size: int) -> None:
    what = command("ub_to_gm", src=0, dst=DATA, bytes=size)
    fill = command("ub_fill", types=(DType.F32,), dst=0, count=-(-size // 4), value=0)
    body = Body().issue(fill).drain().issue(what).drain()
    counts = run({VECTOR: body}).cores[VECTOR].engines["mte3"]
    price = price_of(what, MINI)
    assert counts.busy == price.startup + price.beats
    assert counts.bytes_written == size


@pytest.mark.parametrize("size", [512, 1024, 4096, 32768, 262_144])
def test_misses_add_latency_and_go_at_the_core_rate(size: int) -> None:
    what = command("gm_to_l1", src=DATA, dst=0, bytes=size)
    result = run({CUBE: Body().issue(what).drain()}, warm=0)
    price = price_of(what, MINI)
    rate = size // MINI.hbm.core_bytes_per_cycle
    assert near(result.cores[CUBE].engines["mte2"].busy, price.startup + HBM + max(rate, price.beats))
    assert result.memory.hbm_read_bytes >= size


def test_a_second_read_hits() -> None:
    what = command("gm_to_ub", src=DATA, dst=0, bytes=65536)
    price = price_of(what, MINI)
    first = price.startup + HBM + 65536 // MINI.hbm.core_bytes_per_cycle
    counts = run({VECTOR: Body().issue(what).issue(what).drain()}, warm=0).cores[VECTOR].engines["mte2"]
    assert near(counts.busy, first + price.startup + price.beats)


def test_capacity_misses_come_back() -> None:
    small = MINI.replaced({"l2.capacity_bytes": 65536})
    sweep = [command("gm_to_ub", src=DATA + 65536 * i, dst=0, bytes=65536) for i in (0, 1, 0)]
    body = Body()
    for what in sweep:
        body.issue(what)
    result = run({VECTOR: body.drain()}, warm=0, target=small)
    assert result.memory.misses >= 3 * 128  # and what the instructions needed
    assert result.memory.hbm_read_bytes == result.memory.misses * LINE


COPY_BYTES, ROUNDS = 32768, 24


def _all_copy(target: AicoreTarget, *, shared: bool = False, stride: int = LINE, **options: Any) -> LaunchResult:
    """Every vector core reads lines `stride` bytes apart, in its own stretch or all in the same one."""
    rows = COPY_BYTES // LINE
    body: dict[int, Body] = {}
    for core in range(VECTOR, VECTOR + 4):
        body[core] = Body(target).do("cross_set", Engine.CONTROL, flag=0, mode="type").do("cross_wait", flag=0).nops(8)
        for turn in range(ROUNDS):
            place = DATA + (turn % 4) * COPY_BYTES + (0 if shared else (core - VECTOR) * 4 * COPY_BYTES)
            copy = command(
                "gm_to_ub_2d", types=(DType.I32,), src=place, dst=0, rows=rows, cols=LINE // 4, dst_stride=LINE,
                src_stride=stride,
            )  # fmt: skip
            body[core].issue(copy)
        body[core].drain()
    return run(body, target=target, **options)


def _rate_of(result: LaunchResult) -> float:
    """Bytes per cycle of the vector cores' MTE2 together."""
    engines = [core.engines["mte2"] for core in result.cores[VECTOR : VECTOR + 4]]
    span = max(e.last_cycle for e in engines) - min(e.first_cycle or 0 for e in engines)
    return sum(e.bytes_read for e in engines) / span


@pytest.mark.parametrize("limit", [40.0, 100.0, 200.0])
def test_all_vector_cores_together_are_limited(limit: float) -> None:
    target = MINI.replaced({"l2.vector_gb_per_s": limit})
    result = _all_copy(target)
    assert near(_rate_of(result), target.bytes_per_cycle(limit))
    assert result.memory.limit_cycles > 0
    free = _all_copy(MINI.replaced({"l2.vector_gb_per_s": 1e6, "l2.cube_gb_per_s": limit}))
    assert free.memory.limit_cycles == 0  # the other type's is no limit to them
    assert _rate_of(free) > 1.05 * _rate_of(result)


@pytest.mark.parametrize("loss", [0.0, 15.0, 50.0])
def test_sharing_lines_costs_a_share_of_the_limit(loss: float) -> None:
    target = MINI.replaced({"l2.vector_gb_per_s": 100.0, "l2.same_line_loss_percent": loss})
    own, same = _all_copy(target), _all_copy(target, shared=True)
    together = same.memory.shared / same.memory.line_reads  # less than 3 / 4: cores drift apart
    assert 0.2 < together < 0.75
    assert own.memory.shared == 0
    assert _rate_of(same) / _rate_of(own) == pytest.approx(1 / (1 + together * loss / (100 - loss)), rel=0.01)


@pytest.mark.parametrize("lines", [8, 32, 33, 64, 128])
def test_no_stride_stays_with_few_banks(lines: int) -> None:
    """Rows that lie a power of two of lines apart are read as fast as those that lie one behind the other."""
    target = MINI.replaced({"l2.aggregate_gb_per_s": 500.0})
    near_by, far = (_rate_of(_all_copy(target, stride=s * LINE, warm=1 << 23)) for s in (1, lines))
    assert far > 0.95 * near_by


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_hbm_limits_all_cores_together(channels: int) -> None:
    fields = {"hbm.channels": channels, "hbm.rate_gb_per_s": 59.2 * channels, "hbm.loss_percent": 0.0}
    target = MINI.replaced(fields)  # 16 cycles per line: 32 B
    size = 131072
    bodies = {}
    for core in range(2, 6):
        meet = Body(target).do("cross_set", Engine.CONTROL, flag=0, mode="type").do("cross_wait", flag=0).nops(8)
        bodies[core] = meet.do("gm_to_ub", src=DATA + size * core, dst=0, bytes=size).drain()
    result = run(bodies, warm=0, target=target)
    lasts = [result.cores[core].engines["mte2"].last_cycle for core in range(2, 6)]
    firsts = [result.cores[core].engines["mte2"].first_cycle or 0 for core in range(2, 6)]
    line = target.hbm_channel_line_cycles
    # In step from the same channel on: the last core's first line waits for three others.
    lines = max(4 * size // LINE * line / channels, size / 32 + 3 * line)
    expected = lines + target.dma.startup_cycles + HBM
    assert near(max(lasts) - min(firsts), expected)
    assert result.memory.channel_cycles > 0


@pytest.mark.parametrize("depth", [1, 2, 32])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 34, 40])
def test_a_full_queue_stops_the_control_unit(depth: int, count: int) -> None:
    target = MINI.replaced({"queue.depth_commands": depth})
    fill = command("ub_fill", types=(DType.F32,), dst=0, count=8192, value=0)
    body = Body(target)
    for _ in range(count):
        body.issue(fill)
    instructions = len(body.words) // count
    price = price_of(fill, target)
    core = run({VECTOR: body.drain()}, target=target, launches=2).cores[VECTOR]
    busy = price.startup + price.beats
    assert core.engines["mte2"].busy == count * busy
    stalled = core.control.stalls["queue_full"]
    # The doorbells up to the depth pass; each further one waits for an end.
    assert (stalled > 0) == (count > depth)
    if count > depth:
        # The last doorbell passes when as many have ended; meanwhile the control unit made the others.
        assert near(stalled, (count - depth) * busy - (count - 1) * instructions)


@pytest.mark.parametrize("links", [1, 3, 7])
def test_a_chain_of_flags_between_engines(links: int) -> None:
    """mte2 and mte3 hand a flag back and forth: each hand-over takes queue.flag_cycles."""
    body = Body()
    for i in range(links):
        a, b = (Engine.MTE2, Engine.MTE3) if i % 2 == 0 else (Engine.MTE3, Engine.MTE2)
        body.set_flag(a, b.title, i).wait_flag(b, a.title, i)
    body.drain()
    result = run({VECTOR: body}, launches=2)
    engines = result.cores[VECTOR].engines
    issue = engines["mte2"].first_cycle
    assert issue is not None
    last = max(engines["mte2"].last_cycle, engines["mte3"].last_cycle)
    assert last - issue <= links * (MINI.queue.flag_cycles + 16)
    assert last - issue >= links * MINI.queue.flag_cycles


def test_a_flag_is_visible_after_flag_cycles() -> None:
    fill = command("ub_fill", types=(DType.F32,), dst=0, count=32768, value=0)
    add = command("v_adds", types=(DType.F32,), dst=0, src=0, cols=64, value=0)
    body = Body().wait_flag(Engine.V, "mte2").issue(add).issue(fill).set_flag(Engine.MTE2, "v").drain()
    engines = run({VECTOR: body}).cores[VECTOR].engines
    assert engines["v"].last_cycle == (
        engines["mte2"].last_cycle + MINI.queue.flag_cycles + price_of(add, MINI).startup + price_of(add, MINI).beats
    )


def test_a_flag_to_the_control_unit_takes_the_register_time() -> None:
    body = Body().do("wait_flag", Engine.CONTROL, peer="mte2", flag=0)
    setter = Body().do("ub_fill", types=(DType.F32,), dst=0, count=1024, value=0).set_flag(Engine.MTE2, "control")
    both = Body().emit(*setter.words).marker(1).emit(*body.words).marker(2)
    core = run({VECTOR: both}).cores[VECTOR]
    left = next(m.control.first_cycle for m in core.markers if m.sub_operator == 2)
    assert left == core.engines["mte2"].last_cycle + MINI.cycles(MINI.sync.engine_register_ns) + 2  # li, sd


@pytest.mark.parametrize(
    ("mode", "setters", "waiters", "field"),
    [
        ("type", range(2, 6), range(2, 6), "core_full_ns"),
        ("type", range(2), range(2), "core_full_ns"),
        ("all", range(6), range(6), "core_full_ns + group_ns"),
        ("across", range(2), range(2, 6), "core_full_ns + group_ns"),
        ("across", range(2, 6), range(2), "core_full_ns + group_ns"),
        ("group", [0], [2, 3], "group_ns"),
        ("group", [4, 5], [1], "group_ns"),
        ("pair", [1], [4], "group_ns"),
        ("pair", [4], [1], "group_ns"),
        ("mask", [0], [1, 4], "point_to_point_ns"),
        ("mask", [5], [5], "point_to_point_ns"),
    ],
)
@pytest.mark.parametrize("from_engine", [False, True])
def test_cross_core_flags(mode: str, setters: range, waiters: range, field: str, from_engine: bool) -> None:
    """Waits end the latency after the last signal, whoever signals late."""
    mask = sum(1 << core for core in waiters) if mode == "mask" else 0
    bodies = {}
    for core in sorted({*setters, *waiters}):
        body = Body()
        if core in setters:
            body.nops(40 * core).marker(1)
            body.do("cross_set", Engine.MTE2 if from_engine else Engine.CONTROL, flag=3, mode=mode, mask=mask)
        if core in waiters:
            body.marker(2, 1).do("cross_wait", flag=3).marker(3)
        bodies[core] = body
    result = run(bodies, trace=True)
    from superkernel.sim.trace import FLOW_IN, FLOW_OUT, records

    rows = records(result.trace)
    sets = rows[rows["kind"] == FLOW_OUT]
    takes = rows[rows["kind"] == FLOW_IN]
    assert len(sets) == 1
    latency = sum(MINI.cycles(float(str(MINI.value("sync." + name)))) for name in field.split(" + "))
    assert latency == MINI.flag_cycles(mode)
    assert sorted(takes["core"]) == sorted(waiters)
    assert set(takes["begin"].tolist()) == {int(sets["begin"][0]) + latency}
    for core in waiters:
        assert sum(result.cores[core].cross_wait_cycles) == result.cores[core].cross_wait_cycles[3] > 0
    last = max(
        next(m.control.first_cycle or 0 for m in result.cores[core].markers if m.sub_operator == 1) for core in setters
    )
    assert 0 <= int(sets["begin"][0]) - last <= 400  # the doorbell, and an instruction line


@pytest.mark.parametrize("adds", [False, True])
def test_notify_ends_a_wait_for_memory(adds: bool) -> None:
    word = DATA + 64
    notify = command("notify", engine=Engine.MTE3, address=word, value=5, mode="add" if adds else "store")
    bodies = {
        VECTOR: Body().nops(500).issue(notify).drain(),
        VECTOR + 1: Body().do("wait_memory", address=word, value=5).marker(2),
    }
    result = run(bodies)
    price = price_of(notify, MINI)
    assert price.startup == (MINI.cycles(MINI.sync.atomic_ns) if adds else 1)
    done = result.cores[VECTOR].engines["mte3"].last_cycle
    woken = next(m.control.first_cycle for m in result.cores[VECTOR + 1].markers if m.sub_operator == 2)
    assert woken == done + MINI.cycles(MINI.sync.memory_flag_ns) + 2  # li, sd
    assert result.cores[VECTOR + 1].control.stalls["wait_memory"] > 0


def test_a_drain_of_idle_engines() -> None:
    body = Body().marker(1).drain().marker(2)
    core = run({VECTOR: body}, launches=2).cores[VECTOR]
    first = [next(m.control.first_cycle or 0 for m in core.markers if m.sub_operator == n) for n in (1, 2)]
    assert first[1] - first[0] == MINI.cycles(MINI.sync.drain_ns) + 4  # 2 x li, sd


# ---- the control unit


def _cycles(words: list[int], **fields: int) -> tuple[int, dict[str, int]]:
    """Cycles between two marker stores around the words, on a second launch with warm instructions."""
    target = MINI.replaced({f"control.{k}": v for k, v in fields.items()})
    body = Body(target).emit(*[NOP] * 8).marker(1).emit(*words).marker(2)
    core = run({VECTOR: body}, target=target, launches=2).cores[VECTOR]
    control = next(m.control for m in core.markers if m.sub_operator == 1)
    assert control.instructions + control.stalled == control.cycles
    return control.cycles - 2, dict(control.stalls)  # without li, sd


MUL, ADD_DEPENDENT, ADD_OTHER = asm.r("mul", A1, A2, A2), asm.r("add", A2, A1, A1), asm.r("add", A2, A2, A2)


@pytest.mark.parametrize(
    ("words", "cycles"),
    [
        ([NOP] * 10, 10),
        ([MUL, ADD_DEPENDENT], 1 + 3),
        ([MUL, NOP, ADD_DEPENDENT], 4),
        ([MUL, NOP, NOP, NOP, ADD_DEPENDENT], 5),
        ([MUL, ADD_OTHER], 2),
        ([asm.r("div", A1, A2, A2), ADD_DEPENDENT], 1 + 20),
        ([asm.r("div", A1, A2, A2), asm.r("add", A1, A2, A2)], 1 + 20),  # overwrites: waits too
        ([asm.i("ld", A1, S1, 64), ADD_DEPENDENT], 1 + 3),
        ([asm.i("ld", A1, S1, 64), asm.i("ld", A2, S1, 72), asm.r("add", A1, A1, A2)], 1 + 1 + 3),
        ([asm.jal(0, 4), NOP], 4),
        ([asm.b("bne", 0, 0, 8), NOP], 2),
        ([asm.b("beq", 0, 0, 8), NOP, NOP], 1 + 2 + 1),
    ],
)
def test_instructions(words: list[int], cycles: int) -> None:
    assert _cycles(words)[0] == cycles


@pytest.mark.parametrize("apart", [0, 1, 5, 199, 250])
def test_a_global_load_stalls_its_first_reader(apart: int) -> None:
    head = Body().li(T1, DATA).words
    target = MINI.replaced({"icache.vector_bytes": 65536})
    body = Body(target).emit(*head).load(A2, DATA + 512).emit(asm.r("add", A2, A2, A2)).marker(1)
    body.emit(asm.i("ld", A1, T1, 0), *[NOP] * apart, asm.r("add", A2, A1, A1)).marker(2)
    core = run({VECTOR: body}, target=target, launches=2).cores[VECTOR]
    control = next(m.control for m in core.markers if m.sub_operator == 1)
    assert control.stalls["load"] == max(0, MINI.control.global_load_cycles - 1 - apart)


def test_independent_global_loads_overlap() -> None:
    body = Body().li(T1, DATA).marker(1)
    body.emit(*[asm.i("ld", A1 + n, T1, 8 * n) for n in range(4)], asm.r("add", A1, A1, A1), asm.r("add", A1, A1, 14))
    core = run({VECTOR: body.marker(2)}, launches=2).cores[VECTOR]
    control = next(m.control for m in core.markers if m.sub_operator == 1)
    assert control.stalls["load"] == MINI.control.global_load_cycles - 2


def test_stores_to_global_memory_and_their_fence() -> None:
    body = Body().li(T1, DATA).li(T0, 1).marker(1)
    body.words = [*body.words, asm.s("sd", T0, T1, 0), FENCE_ALL]
    core = run({VECTOR: body.marker(2)}, launches=2).cores[VECTOR]
    stalls = next(m.control.stalls for m in core.markers if m.sub_operator == 1)
    assert stalls["store"] == MINI.control.global_store_cycles - 1
    assert stalls["fence"] == MINI.cycles(MINI.sync.write_flush_ns) - MINI.control.global_store_cycles


# ---- instruction caches


def _line_misses(result: LaunchResult, core: int) -> int:
    return result.cores[core].control.misses


@pytest.mark.parametrize("miss", [50, 150, 600])
def test_cold_straight_code_misses_once_per_line(miss: int) -> None:
    target = MINI.replaced({"icache.miss_latency_cycles": miss})
    body = Body(target).nops(32 * 40)
    cold = run({VECTOR: body}, target=target)
    warm = run({VECTOR: body}, target=target, launches=2)
    control = cold.cores[VECTOR].control
    assert control.misses_cold == control.misses >= 40
    assert warm.cores[VECTOR].control.misses == 0
    again = miss + target.icache_fill_cycles
    assert control.stalls["fetch"] >= control.misses * again


def test_a_loop_larger_than_the_cache_misses_again() -> None:
    target = MINI.replaced({"icache.vector_bytes": 1024, "icache.ways": 2})
    body = Body(target).loop(A1, 5, Body(target).nops(32 * 20))
    control = run({VECTOR: body}, target=target).cores[VECTOR].control
    assert control.misses_cold >= 20
    assert control.misses_capacity >= 4 * 19


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_cores_that_fetch_the_same_line_are_serialised(cores: int) -> None:
    target = MINI.replaced({"icache.same_line_interval_cycles": 16})
    body = Body(target).nops(32 * 10)
    result = run(dict.fromkeys(range(VECTOR, VECTOR + cores), body), target=target)
    assert result.memory.fetch_same_line_cycles > 0  # all harts pass the entry
    stalls = [result.cores[c].control.stalls["fetch"] for c in range(VECTOR, VECTOR + cores)]
    assert stalls == sorted(stalls)


PREFETCH = 0x00006013  # prefetch.i 0(x0); rs1 in bits 19:15, offset in bits 31:25


def _prefetch(register: int, offset: int) -> int:
    return PREFETCH | register << 15 | (offset & 0xFE0) << 20


@pytest.mark.parametrize(("ahead", "timely", "late"), [(1000, 1, 0), (20, 0, 1)])
def test_prefetched_lines(ahead: int, timely: int, late: int) -> None:
    """A jump over `ahead` instructions' time to a line that was prefetched."""
    wait = Body().loop(A1, ahead // 4, Body())
    jump = 1024
    body = Body().nops(24).emit(asm.auipc(A2, 0), asm.i("addi", A2, A2, jump), _prefetch(A2, 0), *wait.words)
    distance = jump - 4 * (2 + 1 + len(wait.words)) + 4
    body.emit(asm.jal(0, distance - 4 + 4 * 0))
    body.nops((jump - 4 * (3 + len(wait.words) + 1)) // 4 + 8)
    control = run({VECTOR: body}, warm=1 << 22, launches=1).cores[VECTOR].control
    assert control.prefetches == 1
    assert (control.prefetched_timely, control.prefetched_late, control.prefetched_useless) == (timely, late, 0)
    assert (control.stalls["prefetch_late"] > 0) == bool(late)


def test_a_useless_prefetch() -> None:
    body = Body().emit(asm.auipc(A2, 1), _prefetch(A2, 0)).nops(2048)
    control = run({VECTOR: body.emit()}).cores[VECTOR].control
    assert control.prefetches == 1
    far = Body().emit(asm.auipc(A2, 0), asm.i("addi", A2, A2, 1024), _prefetch(A2, 0), asm.jal(0, 4 * 600)).nops(700)
    control = run({VECTOR: far}).cores[VECTOR].control
    assert control.prefetched_useless == 1


@pytest.mark.parametrize("again", list(itertools.permutations(range(4)))[::5])
def test_lines_that_are_prefetched_twice_into_one_set(again: tuple[int, ...]) -> None:
    """Four lines fill a set; code runs through the whole cache; the four come again, in any order, and a fifth. The
    same in the set beside it."""
    way, nops = MINI.icache.vector_bytes // MINI.icache.ways, MINI.icache.vector_bytes // 4
    assert MINI.icache.ways == 4
    ahead = 2 * MINI.icache.vector_bytes
    body = Body().emit(asm.auipc(A2, ahead >> 12))
    body.emit(*(word for n in range(4) for word in _far(n * way))).nops(nops)
    body.emit(*(word for n in (*again, 4) for word in _far(n * way)))
    over = ahead + 6 * way - 4 * len(body.words)
    body.emit(asm.jal(0, over)).nops(over // 4 - 1)
    control = run({VECTOR: body}).cores[VECTOR].control
    assert (control.prefetches, control.prefetched_useless) == (18, 18)


@pytest.mark.parametrize("kilobytes", [1, 8, 16])
@pytest.mark.parametrize("seed", seeds(3))
def test_random_jumps_between_lines_against_the_model(seed: int, kilobytes: int) -> None:
    """Sets of two to four of the caches' ways more lines than they hold, entered and prefetched in any order."""
    rng = random.Random(seed)
    target = MINI.replaced({"icache.vector_bytes": 1024 * kilobytes})
    line_bytes, ways = target.icache.line_bytes, target.icache.ways
    sets, slot_words = 1024 * kilobytes // (line_bytes * ways), 4
    slots = line_bytes // (4 * slot_words)
    chosen = {0, 1, sets // 2}  # of 16 sets and more, two whose numbers differ in no low bit
    lines = [sets * (tag + 1) + number for tag in range(2 * ways) for number in chosen]
    walk = [line for line in lines for _ in range(slots)]
    rng.shuffle(walk)
    end = max(lines) + 1
    words, used = [NOP] * (end * line_bytes // 4), dict.fromkeys(lines, 0)
    start = Body(target).emit(asm.auipc(A2, 0)).marker(1).words
    words[: len(start)] = start
    at = 4 * len(start)  # of the jump to the next place
    model = _Lines(ways, sets)
    for line in walk:
        place = line * line_bytes + 4 * slot_words * used[line]
        used[line] += 1
        words[at // 4] = asm.jal(0, place - at)
        model.enter(line)
        at = place
        if rng.random() < 0.4:
            wanted = rng.choice(lines)
            high = (wanted * line_bytes + 2048) >> 12
            words[at // 4 : at // 4 + 3] = [
                asm.lui(A1, high), asm.r("add", A1, A1, A2), _prefetch(A1, wanted * line_bytes - (high << 12)),
            ]  # fmt: skip
            model.prefetch(wanted)
            at += 4 * 3
    words[at // 4] = asm.jal(0, end * line_bytes - at)
    model.enter(end)
    body = Body(target).emit(*words).marker(2)
    result = run({VECTOR: body}, target=target)
    control = next(m.control for m in result.cores[VECTOR].markers if m.sub_operator == 1)
    assert control.lines_entered == model.entered
    assert (control.misses_cold, control.misses_capacity) == (model.cold, model.capacity)
    assert control.prefetches == model.prefetches
    assert control.prefetched_timely + control.prefetched_late == model.used
    assert control.prefetched_useless == model.prefetches - model.used


class _Lines:
    """The model of a cache: which lines its sets hold, the last used first."""

    def __init__(self, ways: int, sets: int) -> None:
        self.ways, self.sets = ways, [list[int]() for _ in range(sets)]
        self.current = self.entered = self.cold = self.capacity = self.prefetches = self.used = 0
        self.seen: set[int] = set()
        self.waiting: set[int] = set()  # prefetched and not used since

    def enter(self, line: int) -> None:
        if line == self.current:
            return
        self.current = line
        self.entered += 1
        self.used += line in self.waiting
        if not self._front(line):
            self.capacity += line in self.seen
            self.cold += line not in self.seen
        self.waiting.discard(line)
        self.seen.add(line)

    def prefetch(self, line: int) -> None:
        if line in self.sets[line % len(self.sets)]:
            return
        self._front(line)
        self.prefetches += 1
        self.waiting.add(line)
        self.seen.add(line)

    def _front(self, line: int) -> bool:
        lines = self.sets[line % len(self.sets)]
        there = line in lines
        if there:
            lines.remove(line)
        lines.insert(0, line)
        self.waiting.difference_update(lines[self.ways :])
        del lines[self.ways :]
        return there


def _far(offset: int) -> list[int]:
    """Prefetches the line so many bytes behind A2, and the one behind it."""
    line = MINI.icache.line_bytes
    return [asm.lui(A1, offset >> 12), asm.r("add", A1, A1, A2), _prefetch(A1, 0), _prefetch(A1, line)]


# ---- sums


def test_a_control_units_cycles_add_up() -> None:
    body = Body().marker(1, 1).do("gm_to_ub", src=DATA, dst=0, bytes=4096).set_flag(Engine.MTE2, "mte3")
    body.marker(1, 2).wait_flag(Engine.MTE3, "mte2").do("ub_to_gm", src=0, dst=DATA + 8192, bytes=4096)
    body.marker(1, 3).drain().marker(2, 2).nops(7)
    result = run({VECTOR: body, VECTOR + 1: body})
    for core, marker in itertools.product((VECTOR, VECTOR + 1), range(4)):
        control = result.cores[core].markers[marker].control
        assert control.cycles == control.instructions + control.stalled
    for counts in result.cores:
        assert counts.control.cycles == counts.cycles == counts.instructions + counts.control.stalled
        for engine in counts.engines.values():
            assert engine.busy + engine.waits_flag + engine.waits_empty == result.cycles
