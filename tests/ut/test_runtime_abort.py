"""Runs that end early: watchdog, host exceptions, interrupts, nesting. Afterwards the kernel is as new."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from runtime_ir import ADDRESS, make_exchange, make_kernel

from superkernel.core.errors import InputError, InternalError, WatchdogError

SOON_NS = 30_000_000
SURELY_LATER_NS = 300_000_000  # than a core that runs at all has set its counter, however busy the machine
FAR_NS = 60_000_000_000  # reached by what hangs, not by what the machine lets wait


@pytest.fixture
def alarm() -> Iterator[Callable[[float], object]]:
    """Arms a real signal shortly ahead; Python's handler for it raises KeyboardInterrupt. The delay is CPU time: on a
    busy machine too, the test is where it wants to be interrupted before the signal comes."""
    before = signal.signal(signal.SIGPROF, signal.default_int_handler)
    yield lambda delay_s: signal.setitimer(signal.ITIMER_PROF, delay_s)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def test_watchdog_names_the_wait_that_never_ended() -> None:
    exchange = make_exchange(2)
    for _ in range(5):
        exchange.run(watchdog_ns=FAR_NS)
    exchange.mode[0] = 1  # core 1 is at work for ever
    start = time.monotonic()
    with pytest.raises(WatchdogError) as caught:
        exchange.kernel.run(exchange.io, watchdog_ns=SURELY_LATER_NS)
    assert SURELY_LATER_NS / 1e9 <= time.monotonic() - start < 5
    violation = caught.value.violations[0]
    assert "wait 101" in violation.location
    assert "the counter of core 1 at 6 (its set 1 of 1 in launch 5)" in violation.expected
    assert violation.found == "5"
    details = exchange.kernel.last_abort()
    assert details is not None
    assert caught.value.details == details  # type: ignore[attr-defined]
    assert details["reason"] == "watchdog"
    assert details["core"] in (0, 1)
    assert (details["wait"], details["producer"], details["threshold"], details["actual"], details["epoch"]) == (
        101, 1, 6, 5, 5,
    )  # fmt: skip
    assert details["elapsed_ns"] >= SURELY_LATER_NS
    expected = {"wait": 101, "producer": 1, "threshold": 6, "actual": 5}
    rows = {row["core"]: row for row in details["waits"]}
    assert rows == {core: {"core": core, "late": core == 1, **expected} for core in (0, 1)}


@pytest.mark.parametrize("cores", [2, 3])
@pytest.mark.filterwarnings("ignore::superkernel._core.OversubscriptionWarning")
def test_a_launch_in_which_no_core_can_go_on_ends_without_a_watchdog(cores: int) -> None:
    exchange = make_exchange(cores)
    for _ in range(3):
        exchange.run()
        exchange.mode[0] = 2  # core 1 keeps its counter
        with pytest.raises(WatchdogError, match="no core can go on") as caught:
            exchange.kernel.run(exchange.io)
        exchange.runs += 1
        exchange.mode[0] = 0
        details = exchange.kernel.last_abort()
        assert details is not None
        assert details["reason"] == "deadlock"
        assert caught.value.details == details  # type: ignore[attr-defined]
        rows = [(row["core"], row["wait"], row["producer"], row["late"]) for row in details["waits"]]
        assert rows == [(core, 101, 1, False) for core in range(cores)]


def test_after_an_abort_the_kernel_is_as_new() -> None:
    exchange = make_exchange(2)
    for _ in range(3):
        exchange.run()
        exchange.mode[0] = 1
        with pytest.raises(WatchdogError):
            exchange.kernel.run(exchange.io, watchdog_ns=2_000_000)
        exchange.runs += 1  # the values were raised before the waits
        assert exchange.kernel.last_abort() is not None
        exchange.mode[0] = 0
        for _ in range(20):
            exchange.run(watchdog_ns=FAR_NS)
        assert exchange.kernel.last_abort() is None


def test_a_core_that_waits_for_itself_is_told_at_once() -> None:
    exchange = make_exchange(1, entry=ADDRESS["self_wait"])
    with pytest.raises(WatchdogError, match="core 0, wait 9"):
        exchange.kernel.run(exchange.io)


@pytest.mark.parametrize("cores", [1, 2])
def test_host_calls_reach_python_on_the_calling_thread(cores: int) -> None:
    seen: list[tuple[int, int]] = []
    kernel = make_kernel(
        cores, entry=ADDRESS["host"], host_call=lambda subop: seen.append((subop, threading.get_ident()))
    )
    for _ in range(50):
        kernel.run([])
    assert seen == [(7, threading.get_ident())] * 50


@pytest.mark.parametrize("cores", [1, 2])
def test_an_exception_of_a_host_call_comes_out_of_run(cores: int) -> None:
    error = ZeroDivisionError("in the middle")
    good: list[int] = []

    def host(subop: int) -> None:
        if not good:
            raise error
        good.append(subop)

    kernel = make_kernel(cores, entry=ADDRESS["host"], host_call=host)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError, match="in the middle") as caught:
            kernel.run([])
        assert caught.value is error
        assert any(entry.name == "host" for entry in caught.traceback)
    details = kernel.last_abort()
    assert details is not None
    assert details["reason"] == "host_call"
    good.append(0)
    kernel.run([], watchdog_ns=FAR_NS)
    assert good == [0, 7]


@pytest.mark.parametrize("cores", [2, 3])
def test_a_worker_that_asks_for_a_host_call_has_it_made_by_the_caller(cores: int) -> None:
    seen: list[tuple[int, int]] = []

    def host(subop: int) -> None:
        seen.append((subop, threading.get_ident()))
        raise ZeroDivisionError(f"in {subop}")

    kernel = make_kernel(cores, entry=ADDRESS["refuse"], host_call=host)
    for _ in range(20):
        with pytest.raises(ZeroDivisionError, match="in 9"):
            kernel.run([])
    assert seen == [(9, threading.get_ident())] * 20


def test_a_host_call_without_callable_is_an_error() -> None:
    with pytest.raises(InternalError, match="without host_call"):
        make_kernel(2, entry=ADDRESS["host"]).run([])


def test_other_threads_run_python_while_a_host_call_and_runs_go_on() -> None:
    host = make_kernel(2, entry=ADDRESS["host"], host_call=lambda subop: time.sleep(0.0005))
    plain = make_exchange(2)

    def repeat() -> None:
        for _ in range(100):
            host.run([])

    other = threading.Thread(target=repeat)
    other.start()
    while other.is_alive():
        plain.run()
    other.join()


def test_nested_runs_are_refused_not_deadlocked() -> None:
    inner_single, inner = make_exchange(1), make_exchange(2)
    outcome: list[object] = []

    def host(subop: int) -> None:
        inner_single.run()  # one core: needs no pool
        for kernel, io in ((outer, []), (inner.kernel, inner.io)):
            with pytest.raises(InputError, match="inside a host call"):
                kernel.run(io)
        outcome.append(outer.last_abort())

    outer = make_kernel(2, entry=ADDRESS["host"], host_call=host)
    outer.run([])
    assert outcome == [None]
    outer.run([])
    inner.run()


def test_a_signal_during_a_short_run_is_delivered_behind_it(alarm: Callable[[float], object]) -> None:
    exchange = make_exchange(2)
    runs = 0
    alarm(0.05)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (the loop is what is interrupted)
        for _ in range(10_000_000):
            exchange.kernel.run(exchange.io)
            runs += 1
    assert exchange.values[0] in (runs, runs + 1)  # no launch was cut in half
    exchange.runs = int(exchange.values[0])
    exchange.run()


def test_a_signal_ends_a_hung_run(alarm: Callable[[float], object]) -> None:
    exchange = make_exchange(2)
    exchange.mode[0] = 1
    alarm(0.05)
    with pytest.raises(KeyboardInterrupt):
        exchange.kernel.run(exchange.io)
    details = exchange.kernel.last_abort()
    assert details is not None
    assert details["reason"] == "interrupt"
    exchange.mode[0] = 0
    exchange.runs = 1
    exchange.run()


def test_a_signal_ends_a_long_measurement(alarm: Callable[[float], object]) -> None:
    exchange = make_exchange(2)
    alarm(0.05)
    with pytest.raises(KeyboardInterrupt):
        exchange.kernel.time(exchange.io, rounds=50_000_000)
    exchange.runs = int(exchange.values[0])
    exchange.run()


def test_an_abort_ends_measurements_too() -> None:
    exchange = make_exchange(2, subops=2)
    exchange.mode[0] = 1
    with pytest.raises(WatchdogError):
        exchange.kernel.profile(exchange.io, rounds=5, watchdog_ns=SOON_NS)
    with pytest.raises(WatchdogError):
        exchange.kernel.time(exchange.io, rounds=5, watchdog_ns=SOON_NS)


def test_who_waits_long_leaves_its_cpu_to_others() -> None:
    """By sleeping, which the system counts, and yielding is not."""
    exchange = make_exchange(2)
    exchange.run()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    exchange.mode[0] = 1  # core 1 is at work for ever
    with pytest.raises(WatchdogError):
        exchange.kernel.run(exchange.io, watchdog_ns=SURELY_LATER_NS)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before >= 10


@pytest.mark.filterwarnings("ignore::superkernel._core.OversubscriptionWarning")
def test_watchdog_with_more_threads_than_cpus() -> None:
    exchange = make_exchange(4)
    exchange.mode[0] = 1
    with pytest.raises(WatchdogError):
        exchange.kernel.run(exchange.io, watchdog_ns=SOON_NS)
    exchange.mode[0] = 0
    exchange.runs = 1
    exchange.run(watchdog_ns=FAR_NS)


def test_a_hung_thread_leaves_other_python_threads_running() -> None:
    exchange = make_exchange(2)
    exchange.mode[0] = 1
    caught: list[BaseException] = []

    def hang() -> None:
        try:
            exchange.kernel.run(exchange.io, watchdog_ns=200_000_000)
        except WatchdogError as error:
            caught.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert len(caught) == 1
    assert turns > 10
