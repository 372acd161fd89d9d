"""Kernels on the pool: values, many launches, threads, memory, times, arguments."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from runtime_ir import ADDRESS, STRIDE, make_exchange, make_kernel

from superkernel import _core
from superkernel.core.errors import InputError, InternalError, MachineError


@pytest.mark.parametrize("cores", [1, 2])
def test_every_core_sees_the_values_of_all(cores: int) -> None:
    exchange = make_exchange(cores)
    for _ in range(2000):
        exchange.run()
    assert exchange.values[::STRIDE].tolist() == [2000] * cores


@pytest.mark.filterwarnings("ignore::superkernel._core.OversubscriptionWarning")
@pytest.mark.parametrize("cores", [3, 4])
def test_more_threads_than_cpus_make_progress(cores: int) -> None:
    exchange = make_exchange(cores)
    for _ in range(200):
        exchange.run()
    assert _core.pool_info()["threads"] >= cores - 1


def test_hundred_thousand_launches() -> None:
    exchange = make_exchange(2)
    run, io = exchange.kernel.run, exchange.io
    for _ in range(100_000):
        run(io)
    exchange.runs = 100_000
    exchange.run()


def await_parked() -> None:
    """Returns when all workers are parked."""
    deadline = time.monotonic() + 60
    while (info := _core.pool_info())["parked"] != info["threads"]:
        assert time.monotonic() < deadline, info
        time.sleep(0.01)


def test_launches_on_parked_and_spinning_workers_mix(rng: np.random.Generator) -> None:
    exchange = make_exchange(2)
    exchange.run()
    wakes = _core.pool_info()["wakes"]
    for pause_s in rng.choice([0.0, 20e-6, 50e-6, 60e-6, 200e-6], 1500):
        end = time.perf_counter() + pause_s
        while time.perf_counter() < end:
            pass
        exchange.run()
    await_parked()  # whatever else the machine did before
    exchange.run()
    assert _core.pool_info()["wakes"] > wakes


def test_the_caller_does_parts_of_workers_that_sleep() -> None:
    kernel, values = make_kernel(2, 1, sets=[0, 0], entry=ADDRESS["count"]), np.zeros(2 * STRIDE, np.int64)
    runs, alone, deadline = 0, False, time.monotonic() + 60
    try:
        _core.set_option("spin_ns", 0)
        _core.set_option("spin_ns_max", 0)
        while not alone:  # soon: a part takes less than a system call, but for caches that others have taken
            assert time.monotonic() < deadline, _core.pool_info()
            before = _core.pool_info()
            kernel.run([values])
            after = _core.pool_info()
            runs += 1
            assert values[::STRIDE].tolist() == [runs] * 2
            alone = (after["taken"], after["wakes"]) == (before["taken"] + 1, before["wakes"])
    finally:
        _core.set_option("spin_ns", 50_000)
        _core.set_option("spin_ns_max", 5_000_000)
    exchange = make_exchange(2)  # whose cores wait for one another
    await_parked()
    before = _core.pool_info()
    exchange.run()
    after = _core.pool_info()
    assert (after["taken"], after["wakes"]) == (before["taken"], before["wakes"] + 1)


def test_each_part_is_done_once_whoever_does_it(rng: np.random.Generator) -> None:
    kernel, values = make_kernel(2, 1, sets=[0, 0], entry=ADDRESS["count"]), np.zeros(2 * STRIDE, np.int64)
    exchange = make_exchange(2)
    try:
        _core.set_option("spin_ns", 0)
        for pause_s in rng.choice([0.0, 0.0, 1e-6, 20e-6, 300e-6], 3000):
            end = time.perf_counter() + pause_s
            while time.perf_counter() < end:
                pass
            kernel.run([values])
            if pause_s == 20e-6:
                exchange.run()
    finally:
        _core.set_option("spin_ns", 50_000)
    assert values[::STRIDE].tolist() == [3000] * 2


def test_threads_and_kernels_share_the_pool() -> None:
    shared = make_exchange(2)
    shared_runs = 0
    failures: list[BaseException] = []
    lock = threading.Lock()

    def work(own_cores: int) -> None:
        nonlocal shared_runs
        try:
            own = make_exchange(own_cores)
            for _ in range(500):
                own.run()
                shared.kernel.run(shared.io)
                with lock:
                    shared_runs += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(1 + i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert shared.values[::STRIDE].tolist() == [shared_runs] * 2 == [2000, 2000]


def test_single_entry_runs_each_subop_on_all_cores() -> None:
    kernel = make_kernel(2, 1, subops=5)
    values = np.zeros(2 * STRIDE, np.int64)
    ns = kernel.run_single([values])
    assert ns.shape == (5,)
    assert (ns > 0).all()
    assert values[::STRIDE].tolist() == [15, 15]


def test_profiled_events_come_back_per_core() -> None:
    kernel = make_kernel(2, sets=[1, 1], entry=ADDRESS["profiled"])
    for settle in (False, True):
        found = kernel.profile([], rounds=3, warmup=1, settle=settle)
        assert found["events"].dtype == np.uint64
        assert found["events"].tolist() == 3 * [[[1000, 1001, 1002, 0, 0], [2000, 2001, 2002, 0, 0]]]
        assert (np.diff(found["edges"]) > 0).all()
        assert found["single_ns"].shape == (0,)
        assert (found["single_edges"].shape, found["single_events"].shape) == ((0, 2), (0, 2, 0, 2))
        assert (found["preemptions"] >= 0).all()
        assert (found["preemptions"][:, 2:] == 0).all()
        assert found["chain_ticks"].shape == (3, 2)
        ghz = _core.CHAIN_CYCLES / (np.median(found["chain_ticks"]) / _core.tsc_hz() * 1e9)
        assert 0.1 < ghz < 10, "a frequency"


@pytest.mark.parametrize("cores", [1, 2])
def test_what_the_cpu_counts_is_a_figure_per_core_or_absent(cores: int) -> None:
    exchange = make_exchange(cores)
    counted = exchange.kernel.count(exchange.io, 7)
    assert exchange.values[0] == 7
    assert counted.shape == (cores, 3)
    assert ((counted == -1).all(axis=0) | (counted >= 0).all(axis=0)).all()
    assert exchange.kernel.count(exchange.io, 0).shape == (cores, 3)


def test_time_and_profile_count_every_launch() -> None:
    exchange = make_exchange(2, subops=3, profiled=ADDRESS["exchange"])
    fused = exchange.kernel.time(exchange.io, rounds=20, warmup=5)
    assert fused.shape == (20,)
    assert (fused > 0).all()
    assert exchange.values[0] == 25
    for settle, launches in ((False, 1), (True, 2)):
        exchange.values[:] = 0
        found = exchange.kernel.profile(exchange.io, rounds=10, warmup=2, settle=settle, single=True)
        for kind in ("plain_ns", "profiled_ns", "single_ns"):
            assert found[kind].shape == (10,)
            assert (found[kind] > 0).all()
        # each round: a plain launch and a profiled one (+1 each), twice three sub-operators (+1 +2 +3)
        assert exchange.values[0] == 12 * launches * (2 + 2 * 6)
        stamps, edges = found["single_events"], found["single_edges"]
        assert stamps.shape == (10, 2, 3, 2)
        own = np.concatenate([edges[:, :1], stamps[:, 0].reshape(10, 6), edges[:, 1:]], axis=1)
        assert (np.diff(own.astype(np.int64)) >= 0).all(), "on the caller's core one after the other"
        assert (stamps[..., 1] >= stamps[..., 0]).all()


def test_constants_are_used_in_place_where_aligned() -> None:
    block = _core.alloc_aligned(4096)
    assert block.ctypes.data % 64 == 0
    block[:8].view(np.int64)[0] = 2
    assert make_exchange(2, constants=block).kernel.constants_in_place
    shifted = block[8:]
    shifted[:8].view(np.int64)[0] = 2
    exchange = make_exchange(2, constants=shifted)
    assert not exchange.kernel.constants_in_place
    exchange.run()
    assert make_exchange(2, constants=memoryview(bytes(block))).kernel.cores == 2


def test_constants_and_keepalive_live_as_long_as_the_kernel() -> None:
    class Owner:
        pass

    owner = Owner()
    watch = weakref.ref(owner)
    kernel = make_kernel(1, keepalive=owner)
    del owner
    gc.collect()
    assert watch() is not None
    del kernel
    gc.collect()
    assert watch() is None


def test_a_cycle_through_host_call_is_collected() -> None:
    class Owner:
        def __init__(self) -> None:
            self.kernel = make_kernel(1, host_call=self.host)

        def host(self, subop: int) -> None: ...

    watch = weakref.ref(Owner())
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("nbytes", [0, 1, 100, 2 << 20, (4 << 20) + 1])
def test_aligned_memory_is_zero(nbytes: int) -> None:
    block = _core.alloc_aligned(nbytes)
    assert block.shape == (nbytes,)
    assert block.ctypes.data % 64 == 0
    assert not block.any()
    block[:] = 1


def test_impossible_memory_is_a_machine_error() -> None:
    with pytest.raises(MachineError, match="not enough memory"):
        _core.alloc_aligned(1 << 60)
    with pytest.raises(MachineError, match="not enough memory"):
        make_kernel(1, arena_bytes=1 << 60)
    with pytest.raises(MachineError, match="not enough memory"):
        make_kernel(2, scratch_bytes=1 << 62)


def test_io_takes_arrays_buffers_and_addresses() -> None:
    exchange = make_exchange(1)
    values, sums, mode = bytearray(STRIDE * 8), exchange.sums, exchange.mode
    exchange.kernel.run((values, sums.ctypes.data, mode))
    assert values[0] == 1
    assert sums[0] == 1
    bfloat = np.zeros(STRIDE * 4, ml_dtypes.bfloat16)
    exchange.kernel.run([bfloat, sums, mode])
    assert bfloat.view(np.int64)[0] == 1


def test_many_base_pointers() -> None:
    arrays = [np.zeros(STRIDE, np.int64) for _ in range(100)]
    make_kernel(1, 100, entry=ADDRESS["nothing"]).run(arrays)
    kernel = make_kernel(1, 100, subops=1)
    kernel.run_single(arrays)
    assert arrays[0][0] == 1


def test_wrong_io_is_refused() -> None:
    exchange = make_exchange(1)
    with pytest.raises(InputError, match=r"expected 3; found 1"):
        exchange.kernel.run([exchange.values])
    with pytest.raises(InputError, match=r"item 1: the array is not contiguous"):
        exchange.kernel.run([exchange.values, np.zeros((4, 4))[:, 1], exchange.mode])
    with pytest.raises(InputError, match=r"item 0: the array is not contiguous"):
        exchange.kernel.run([memoryview(b"abcdef")[::2], exchange.sums, exchange.mode])
    with pytest.raises(TypeError):
        exchange.kernel.run([None, exchange.sums, exchange.mode])
    with pytest.raises(TypeError):
        exchange.kernel.run(3)  # type: ignore[arg-type]


def test_references_to_io_are_given_back() -> None:
    exchange = make_exchange(1)
    block = np.zeros(STRIDE, np.int64)
    before = sys.getrefcount(block)
    for _ in range(10):
        exchange.kernel.run([block, exchange.sums, exchange.mode])
        with pytest.raises(TypeError):
            exchange.kernel.run([block, None, exchange.mode])
    assert sys.getrefcount(block) == before


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cores": 0}, "impossible number of cores"),
        ({"cores": 257}, "impossible number of cores"),
        ({"sets": [1]}, "one number of sets per core"),
        ({"subops": -1}, "cannot be negative"),
        ({"host_call": 3}, "not callable"),
        ({"constants": np.zeros((4, 4))[:, 1]}, "not contiguous"),
    ],
)
def test_wrong_kernels_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make_kernel(**({"cores": 2} | changes))


def test_a_missing_entry_is_named() -> None:
    kernel = make_kernel(2, entry=0, single=0, profiled=0, subops=1)
    for call in (kernel.run, kernel.run_single, lambda io: kernel.profile(io, rounds=1)):
        with pytest.raises(InputError, match="without the entry"):
            call([])


def test_a_failing_entry_is_reported() -> None:
    kernel = make_kernel(2, entry=ADDRESS["fails"])
    with pytest.raises(InternalError, match="without a cause"):
        kernel.run([])


def test_counters_are_compared_with_the_plan() -> None:
    kernel = make_kernel(2, sets=[1, 2], entry=ADDRESS["profiled"])
    with pytest.raises(InternalError, match=r"core 1: a progress counter .* expected 4; found 2"):
        kernel.profile([], rounds=1, warmup=0, settle=False)
    silent = make_kernel(2, entry=ADDRESS["nothing"], sets=[1, 1])
    silent.run([])
    _core.set_option("check_counters", 1)
    try:
        with pytest.raises(InternalError, match="progress counter"):
            silent.run([])
        make_exchange(2).run()
    finally:
        _core.set_option("check_counters", 0)


def test_workers_take_over_the_rounding_of_the_caller() -> None:
    libm = ctypes.CDLL("libm.so.6")
    upward = 0x800  # FE_UPWARD of x86
    kernel = make_kernel(2, 2, entry=ADDRESS["rounding"])
    inputs = np.full(2, 1 + 2.0**-23, np.float32)  # the square lies a little above a float: rounded down, unless upward
    values = np.zeros(2, np.float32)
    kernel.run([values, inputs])
    nearest = values.copy()
    assert libm.fesetround(upward) == 0
    try:
        kernel.run([values, inputs])
    finally:
        libm.fesetround(0)
    assert values[0] == values[1] > nearest[0]
    kernel.run([values, inputs])
    assert (values == nearest).all()


def test_options_and_information() -> None:
    with pytest.raises(InputError, match="no such option"):
        _core.set_option("speed", 3)
    with pytest.raises(InputError, match="no such option or value"):
        _core.set_option("spin_ns", -1)
    make_exchange(2).run()
    try:
        _core.set_option("pin", 0)
        assert set(_core.pool_info()["worker_cpus"]) == {-1}
        make_exchange(2).run()
        _core.set_option("spin_ns", 0)
        exchange = make_exchange(2)
        for _ in range(300):
            exchange.run()
    finally:
        _core.set_option("pin", 1)
        _core.set_option("spin_ns", 50_000)
    info = _core.pool_info()
    assert info["spin_ns"] == 50_000
    if len(info["cpus"]) > 1:
        assert info["worker_cpus"][0] in info["cpus"]


def test_workers_learn_how_long_to_spin() -> None:
    exchange = make_exchange(2)
    try:
        _core.set_option("spin_ns", 0)
        exchange.run()
        await_parked()
        exchange.run()  # wakes them, which takes time
        info = _core.pool_info()
        assert 0 < info["spin_ns_now"] <= info["spin_ns_max"] == 5_000_000
        _core.set_option("spin_ns_max", 0)
        assert _core.pool_info()["spin_ns_now"] == 0
        _core.set_option("spin_ns", 70_000)
        assert _core.pool_info()["spin_ns_now"] == 70_000
        with pytest.raises(InputError, match="no such option or value"):
            _core.set_option("spin_ns_max", -1)
    finally:
        _core.set_option("spin_ns_max", 5_000_000)
        _core.set_option("spin_ns", 50_000)


def test_the_pinned_caller_is_let_go_again() -> None:
    before = os.sched_getaffinity(0)
    exchange = make_exchange(2)
    _core.set_option("pin_caller", 1)
    try:
        exchange.run()
        assert len(os.sched_getaffinity(0)) == 1
    finally:
        _core.set_option("pin_caller", 0)
        exchange.run()
    assert os.sched_getaffinity(0) == before


def test_idle_workers_park() -> None:
    make_exchange(2).run()
    await_parked()


def test_ticks_run_at_the_stated_rate() -> None:
    hz = _core.tsc_hz()
    assert hz == _core.tsc_hz()
    errors = []
    for _ in range(5):  # somebody else may run between the readings of the two clocks
        start_ticks, start = _core.tsc_now(), time.perf_counter()
        time.sleep(0.05)
        ticks, elapsed = _core.tsc_now() - start_ticks, time.perf_counter() - start
        errors.append(abs(ticks / hz / elapsed - 1))
    assert min(errors) <= 0.02, errors


@pytest.mark.serial
def test_machine_limits_are_plausible() -> None:
    probe = _core.Probe(_core.allowed_cpus()[:2])
    assert 1 < probe.rate("plain") < 2000
    assert probe.rate("another") == 0
    near, far = probe.read(16 << 10), probe.read(64 << 20)
    assert 1 < far < near < 5000
    assert 0.1 < probe.code_line_ns(16 << 10) < 1000
    assert 0 <= probe.disturbed <= probe.trials
    with pytest.raises(InputError, match="impossible number of cores"):
        probe.read(4096, 0)
    with pytest.raises(InputError, match="a core and itself"):
        probe.handover_ns(0, 0)
    with pytest.raises(InputError, match="impossible number of CPUs"):
        _core.Probe([])
    if probe.cores > 1:
        assert 1 < probe.read(16 << 10, 2, same=True) < 10000
        assert 5 < probe.handover_ns() < 5000
        assert 0.1 < probe.line_ns() < 5000  # where both are threads of one core, a line comes from its L1
        assert 100 < probe.wake_ns(1) < 50e6


@pytest.mark.serial
def test_overheads_of_a_run() -> None:
    """Medians of many: a call costs far less than a microsecond on one core, a hand-over and back on two. The least of
    several medians counts: what else the machine does makes some of them larger."""
    alone, both, io = make_kernel(1), make_kernel(2), []
    one_ns, two_ns = [], []
    for _ in range(10):
        ns = []
        for _ in range(2_000):
            start = time.perf_counter_ns()
            alone.run(io)
            ns.append(time.perf_counter_ns() - start)
        one_ns.append(np.median(ns))
        two_ns.append(np.median(both.time([], 2_000)))
    assert min(one_ns) < 1000
    if _core.available_cpus() >= 2:
        assert min(two_ns) < 2000


def test_kernels_that_share_a_workspace_borrow_from_it() -> None:
    workspace = _core.Workspace()
    assert workspace.nbytes == 0
    small = make_kernel(arena_bytes=1000, workspace=workspace)
    one = workspace.nbytes
    assert 1000 + 2 * 100 <= one < 2000
    again = make_kernel(arena_bytes=1000, workspace=workspace)
    assert workspace.nbytes == one
    large = make_kernel(arena_bytes=1 << 20, workspace=workspace)
    assert 1 << 20 < workspace.nbytes < (1 << 20) + 2000, "the smaller block is gone"
    for kernel in (small, large, again):
        kernel.run([])
    assert workspace.nbytes < (1 << 20) + 2000
    with pytest.raises(MachineError, match="not enough memory"):
        make_kernel(arena_bytes=1 << 60, workspace=workspace)
    large.run([])
