"""The direct way of a call: which arguments take it, that it gives the same as the general way, what it costs, and when
the GIL is given up."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from runtime_ir import ADDRESS, make_kernel

import superkernel as sk
from superkernel import _core


def tiny_graph(outputs: int = 1) -> sk.Graph:
    b = sk.GraphBuilder("tiny")
    x = b.input("x", (4, 4), "f32")
    for i in range(outputs):
        b.output(b.relu(x) + np.float32(i), name=f"y{i}")  # type: ignore[arg-type]
    return b.graph()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[sk.Kernel, list[int]]:
    """A kernel and a list that grows by one with each call that goes the general way."""
    seen: list[int] = []
    general = sk.Kernel._call_checked

    def counting(self: sk.Kernel, *args: Any, **named: Any) -> Any:
        seen.append(1)
        return general(self, *args, **named)

    monkeypatch.setattr(sk.Kernel, "_call_checked", counting)
    return sk.compile(tiny_graph(), threads=2), seen


class Derived(np.ndarray):
    """A subclass may mean something else by its elements."""


def exact(x: Any) -> list[Any]:
    read_only = x.copy()
    read_only.flags.writeable = False
    return [x, read_only, np.vstack([x, x])[4:], pickle.loads(pickle.dumps(x))]


def inexact(x: Any) -> list[Any]:
    return [x.tolist(), x.view(Derived), np.asfortranarray(x), np.vstack([x, x])[::2], x.astype(">f4"), memoryview(x)]


def test_exact_arrays_never_come_to_python(counted: tuple[sk.Kernel, list[int]], rng: np.random.Generator) -> None:
    kernel, seen = counted
    x = rng.standard_normal((4, 4), np.float32)
    for array in exact(x):
        y = kernel(array)
        assert type(y) is np.ndarray
        assert y.flags.owndata
        assert y.flags.writeable
        np.testing.assert_array_equal(y, np.maximum(np.asarray(array), 0))
    assert not seen
    for number, array in enumerate(inexact(x)[:5], 1):
        np.testing.assert_array_equal(kernel(array), np.maximum(np.asarray(array, np.float32), 0))
        assert len(seen) == number
    np.testing.assert_array_equal(kernel(x=x), np.maximum(x, 0))
    assert len(seen) == 6


def test_errors_come_from_the_general_way(counted: tuple[sk.Kernel, list[int]]) -> None:
    kernel, seen = counted
    x = np.zeros((4, 4), np.float32)
    for args in [(), (x, x), (x[:2],), (x.reshape(16),), (x.astype(np.float64),), (x.view(np.int32),), (None,)]:
        with pytest.raises(sk.InputError):
            kernel(*args)
    assert len(seen) == 7


@pytest.mark.parametrize("outputs", [1, 2, 70])
def test_any_number_of_outputs(outputs: int) -> None:
    """One comes alone, several as a tuple; more than fit the call's own table too."""
    kernel = sk.compile(tiny_graph(outputs), threads=2)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    result = kernel(x)
    arrays = (result,) if outputs == 1 else result
    assert isinstance(arrays, tuple)
    assert len(arrays) == outputs
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array, x + i)


def test_no_inputs_and_empty_arrays() -> None:
    b = sk.GraphBuilder("none")
    b.output(b.relu(b.input("x", (0, 4), "f32")), name="y")
    kernel = sk.compile(b.graph(), threads=2)
    assert kernel(np.zeros((0, 4), np.float32)).shape == (0, 4)
    kernel.bind(np.zeros((0, 4), np.float32)).run()
    b = sk.GraphBuilder("state")
    count = b.state("count", np.zeros(4, np.float32))
    after = count + np.float32(1)  # type: ignore[arg-type]
    b.update(count, after)
    b.output(b.neg(after), name="y")
    kernel = sk.compile(b.graph(), threads=2)
    for i in range(1, 4):
        np.testing.assert_array_equal(kernel(), np.full(4, -i, np.float32))


def test_an_input_in_a_states_memory_is_copied_first() -> None:
    b = sk.GraphBuilder("state")
    x, kept = b.input("x", (64,), "f32"), b.state("kept", np.ones(64, np.float32))
    b.update(kept, b.add(kept, np.float32(1)))  # type: ignore[arg-type]
    b.output(b.mul(x, np.float32(2)), name="y")  # type: ignore[arg-type]
    kernel = sk.compile(b.graph(), threads=2)
    for i in range(1, 4):
        np.testing.assert_array_equal(kernel(kernel.states["kept"]), np.full(64, 2 * i, np.float32))


def test_nothing_leaks_and_kernels_end() -> None:
    kernel = sk.compile(tiny_graph(2), threads=2)
    bound = kernel.bind(np.zeros((4, 4), np.float32))
    x = np.zeros((4, 4), np.float32)
    gone = weakref.ref(kernel(x)[0])
    gc.collect()
    assert gone() is None
    ends: list[weakref.ref[Any]] = [weakref.ref(kernel), weakref.ref(bound), weakref.ref(bound.outputs["y0"])]
    del kernel, bound
    gc.collect()
    assert all(end() is None for end in ends)


# The GIL --------------------------------------------------------------------------------------------------------------


class Direct(_core.DirectCall):
    """A direct call of a kernel of the runtime's tests."""

    def __init__(self, cores: int = 2, watchdog_ns: int = 0, **changes: Any) -> None:
        self.core = make_kernel(cores, 0, **changes)
        _core.prepare_direct(self, self.core, [], [], [], watchdog_ns, lambda error: error)

    def _call_checked(self, *_: Any) -> None:
        raise AssertionError("not exact")


def test_a_hanging_launch_lets_other_threads_run_and_is_interrupted() -> None:
    """Quick launches hold the GIL; one that hangs all at once gives it up at a wait, so that Python goes on."""
    switch = np.zeros(1, np.int64)
    values, sums = np.zeros(64, np.int64), np.zeros(2, np.int64)
    core = make_kernel(2, 3, entry=ADDRESS["exchange"], constants=np.array([2], np.int64), sets=[1, 1])

    class Exchange(_core.BoundCall):
        pass

    bound = Exchange()
    _core.prepare_bound(bound, core, [values, sums, switch], 2_000_000_000, lambda error: error)
    for _ in range(500):
        bound.run()
    ticks: list[float] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.wait(0.005):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=count)
    thread.start()
    switch[0] = 1
    start = time.monotonic()
    with pytest.raises(sk.WatchdogError):
        bound.run()
    end = time.monotonic()
    stop.set()
    thread.join()
    assert end - start >= 1.9
    assert sum(start + 0.2 < t < end for t in ticks) >= 5
    switch[0] = 0
    bound.run()


def test_a_call_that_must_wait_gives_up_the_gil() -> None:
    """One thread is inside a host call, which needs the GIL, of a kernel on the same pool: the quick kernel's caller
    must not hold the GIL while it waits for the pool."""
    quick = Direct()
    for _ in range(200):
        quick()  # quick: the GIL is held from now on
    inside, release = threading.Event(), threading.Event()

    def host(_: int) -> None:
        inside.set()
        release.wait(60)

    slow = make_kernel(2, 0, entry=ADDRESS["host"], host_call=host)
    thread = threading.Thread(target=slow.run, args=([],))
    thread.start()
    assert inside.wait(60)
    start = time.monotonic()  # ahead of the timer: a pause between the two must not shorten the wait
    threading.Timer(0.05, release.set).start()
    quick()
    assert time.monotonic() - start > 0.02
    thread.join(60)
    assert not thread.is_alive()


def test_a_nested_launch_is_refused() -> None:
    quick = Direct()
    errors: list[BaseException] = []

    def host(_: int) -> None:
        try:
            quick()
        except BaseException as error:
            errors.append(error)

    make_kernel(2, 0, entry=ADDRESS["host"], host_call=host).run([])
    assert [type(e) for e in errors] == [sk.InputError]
    quick()


def test_preparing_is_checked() -> None:
    core = make_kernel(1, 2)
    with pytest.raises(sk.InputError, match="wrong number of arrays"):
        _core.prepare_bound(_core.BoundCall(), core, [], 0, lambda error: error)
    with pytest.raises(sk.InputError, match="wrong number of arrays"):
        _core.prepare_direct(_core.DirectCall(), core, [], [], [], 0, lambda error: error)
    call: Any = core
    with pytest.raises(TypeError, match="not a"):
        _core.prepare_direct(call, make_kernel(1, 0), [], [], [], 0, lambda error: error)
    quick = Direct()
    with pytest.raises(TypeError, match="prepared already"):
        _core.prepare_direct(quick, quick.core, [], [], [], 0, lambda error: error)
    with pytest.raises(AttributeError, match="_call_checked"):
        _core.DirectCall()()


# The cost -------------------------------------------------------------------------------------------------------------


def slice_ns(call: Callable[[], Any], count: int = 200) -> float:
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - start) / count


@pytest.mark.serial
def test_a_call_costs_about_what_its_parts_cost() -> None:
    """A direct call takes less than launching and making an output from Python, a bound run less than a call. Least
    times over alternating rounds: other programs only add."""
    kernel = sk.compile(tiny_graph(), threads=2)
    x = np.zeros((4, 4), np.float32)
    bound = kernel.bind(x)
    core, io = kernel._executable.core, [x, bound.outputs["y0"]]
    calls: dict[str, Callable[[], Any]] = {
        "launch": lambda: core.run(io),
        "make": lambda: np.empty((4, 4), np.float32),
        "call": lambda: kernel(x),
        "run": bound.run,
    }
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(200):
        for name, call in calls.items():
            least[name] = min(least[name], slice_ns(call))
    assert least["call"] < least["launch"] + least["make"], least
    assert least["run"] < least["call"], least
