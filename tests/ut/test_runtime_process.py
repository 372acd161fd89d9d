"""The runtime and the process: fork, exit at bad moments, restricted affinity, too many threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from runtime_ir import ADDRESS, make_exchange, make_kernel

from superkernel import _core
from superkernel.core.errors import SuperKernelError

HERE = Path(__file__).parent
PRELUDE = """
import gc, os, sys, threading, time, warnings
sys.path.insert(0, {here!r})
from runtime_ir import ADDRESS, make_exchange, make_kernel
from superkernel import _core
warnings.simplefilter("ignore", _core.OversubscriptionWarning)  # of a machine with one CPU
"""


def run_python(body: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs `body` behind the prelude in a fresh interpreter."""
    script = PRELUDE.format(here=str(HERE)) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script], capture_output=True, text=True, timeout=timeout_s
    )


def in_child(work: Callable[[], None], timeout_s: float = 60) -> None:
    """Forks, lets the child do `work`, and checks that it ended well."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            os.write(2, f"child: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    deadline = time.monotonic() + timeout_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            pytest.fail("the child hangs")
        time.sleep(0.002)
    assert os.waitstatus_to_exitcode(status) == 0


def test_child_and_parent_both_run_on_after_fork() -> None:
    exchange = make_exchange(2)
    for _ in range(10):
        exchange.run()

    def child() -> None:
        assert _core.pool_info()["threads"] == 0
        for _ in range(100):
            exchange.run()
        make_exchange(2).run()
        assert _core.pool_info()["threads"] == 1

    for _ in range(3):
        in_child(child)
        exchange.run()


def test_fork_while_another_thread_is_in_a_launch() -> None:
    """The child finds its locks held for ever and its kernel in the middle of a launch, and takes over both."""
    exchange, busy = make_exchange(2), make_exchange(2)
    exchange.run()
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            busy.kernel.time(busy.io, rounds=200, warmup=0)

    thread = threading.Thread(target=keep_busy)
    thread.start()

    def child() -> None:
        exchange.run()
        busy.values[:] = 0
        busy.runs = 0
        for _ in range(20):
            busy.run()

    try:
        for _ in range(10):
            in_child(child)
            time.sleep(0.001)
    finally:
        stop.set()
        thread.join()
    exchange.run()


@pytest.mark.parametrize("cores", [1, 2])
def test_fork_inside_a_host_call(cores: int) -> None:
    """The child has lost its other cores: its run ends with an error, not in a wait. The parent's goes on."""
    children: list[int] = []

    def host(subop: int) -> None:
        children.append(os.fork())

    kernel = make_kernel(cores, entry=ADDRESS["host"], host_call=host)
    raised = False
    try:
        kernel.run([])
    except SuperKernelError as error:
        raised = "forked" in str(error)
    if children == [0]:
        os._exit(0 if raised == (cores > 1) else 1)
    assert not raised
    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == 0
    make_exchange(2).run()


@pytest.mark.parametrize("idle_s", [0.0, 0.01])
def test_exit_with_spinning_and_parked_workers(idle_s: float) -> None:
    result = run_python(f"""
        exchange = make_exchange(2)
        for _ in range(100): exchange.run()
        time.sleep({idle_s})
        print("bye")
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "bye\n", "")


@pytest.mark.parametrize(
    "loop",
    [
        "while True: exchange.kernel.run(exchange.io)",
        "exchange.kernel.time(exchange.io, rounds=100_000_000)",
        "exchange.mode[0] = 1; exchange.kernel.run(exchange.io)",  # hangs for ever
        "while True: host.run([])",
        "while True: busy.run([])",
        "while True: exchange.kernel.last_abort()",
        "while True: _core.pool_info()",
    ],
    ids=["launches", "one long call", "hung", "host calls", "busy host calls", "questions", "pool"],
)
def test_exit_while_daemon_threads_run_kernels(loop: str) -> None:
    """Whether the thread runs at the end or, as when nobody else gets the GIL, waits to go on in Python."""
    for hold_s in (0, 0, 0.005, 0.005):
        result = run_python(f"""
            exchange = make_exchange(2)
            host = make_kernel(2, entry=ADDRESS["host"], host_call=lambda subop: None)
            busy = make_kernel(2, entry=ADDRESS["host"], host_call=lambda subop: sum(range(1000)) and time.sleep(0))
            def work():
                {loop}
            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.02)
            if {hold_s}:
                sys.setswitchinterval(100)
                end = time.perf_counter() + {hold_s}
                while time.perf_counter() < end: pass
        """)
        assert (result.returncode, result.stderr) == (0, "")


def test_sys_exit_inside_a_host_call_ends_the_process() -> None:
    result = run_python("""
        kernel = make_kernel(2, entry=ADDRESS["host"], host_call=lambda subop: sys.exit(3))
        kernel.run([])
    """)
    assert (result.returncode, result.stderr) == (3, "")


def test_one_allowed_cpu_still_works_and_warns_once() -> None:
    result = run_python("""
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exchange = make_exchange(2)
            make_exchange(4)
        assert [w.category for w in caught] == [_core.OversubscriptionWarning], caught
        assert caught[0].filename == make_exchange.__code__.co_filename
        assert "2 threads" in str(caught[0].message) and "only 1 CPU" in str(caught[0].message)
        assert _core.available_cpus() == 1
        start = time.process_time()
        for _ in range(300): exchange.run()
        assert time.process_time() - start < 5
        assert _core.pool_info()["cpus"] == [sorted(os.sched_getaffinity(0))[0]]
    """)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_warning_can_be_an_error() -> None:
    result = run_python("""
        warnings.simplefilter("error", _core.OversubscriptionWarning)
        try:
            make_exchange(_core.available_cpus() + 1)
        except _core.OversubscriptionWarning:
            print("refused")
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "refused\n", "")


def test_workers_leave_signals_to_python() -> None:
    result = run_python("""
        import signal
        exchange = make_exchange(2)
        exchange.run()
        mine = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
        names = {open(f"/proc/self/task/{t}/comm").read().strip(): t for t in mine}
        status = open(f"/proc/self/task/{names['sk-worker-1']}/status").read()
        blocked = int(next(l.split()[1] for l in status.splitlines() if l.startswith("SigBlk")), 16)
        assert blocked >> (signal.SIGINT - 1) & 1 and blocked >> (signal.SIGTERM - 1) & 1
        assert not blocked >> (signal.SIGSEGV - 1) & 1
    """)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_refused_thread_is_a_machine_error() -> None:
    if os.geteuid() == 0:
        limit = "import ctypes; os.setgid(65534); os.setuid(65534)"
    else:
        limit = "pass"
    result = run_python(f"""
        import resource
        from superkernel.core.errors import MachineError
        kernel = make_kernel(2)
        {limit}
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            for cores in (2, 3, 4):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    make_kernel(cores).run([])
            print("allowed")
        except MachineError as error:
            print("refused" if "another thread" in str(error) else error)
    """)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "refused\n"
