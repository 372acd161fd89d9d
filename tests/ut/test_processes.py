"""Work in other processes: order, errors, helpers that die, and where there are none."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from interrupts import each_line
from process_work import dies, dies_once, dies_talking, eats, grows, refuses, who

from superkernel.codegen import processes
from superkernel.codegen.processes import run_jobs
from superkernel.core.errors import InternalError, MachineError


@pytest.fixture(autouse=True)
def _own_helpers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three CPUs, and helpers that no other test sees."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(processes, "helpers_max", None)
    pool = processes._Pool()
    monkeypatch.setattr(processes, "_pool", pool)
    yield
    pool.end()


def test_results_stand_in_the_order_of_the_jobs() -> None:
    told: list[int] = []
    found = [r.decode().split() for r in run_jobs(who, range(9), told.append)]
    assert [int(job) for job, _ in found] == list(range(9))
    places = {place for _, place in found}
    assert str(os.getpid()) not in places
    assert len(places) == 3
    assert told == list(range(1, 10))
    again = {r.decode().split()[1] for r in run_jobs(who, range(9))}
    assert again <= places, "helpers stay"


def test_few_jobs_start_one_helper() -> None:
    assert run_jobs(refuses, []) == []
    assert len({r.decode().split()[1] for r in run_jobs(who, range(5), jobs_per_child=3)}) == 1


def test_a_call_may_ask_for_fewer_helpers() -> None:
    assert len({r.decode().split()[1] for r in run_jobs(who, range(9), jobs_per_child=1, helpers=2)}) == 2


def test_who_compiles_in_several_processes_starts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "helpers_max", 1)
    assert len({r.decode().split()[1] for r in run_jobs(who, range(7))}) == 1


def test_threads_share_the_helpers() -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.extend(run_jobs(who, range(4)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 24
    assert len({r.decode().split()[1] for r in found}) <= 3


def test_a_helper_that_dies_once_costs_nothing(tmp_path: Path) -> None:
    assert run_jobs(partial(dies_once, mark=tmp_path / "mark"), range(6)) == [bytes([n]) for n in range(6)]


def test_a_job_that_ends_helpers_is_an_error() -> None:
    with pytest.raises(InternalError, match="SIGABRT: LLVM ERROR: nothing selects this"):
        run_jobs(partial(dies, how=signal.SIGABRT), range(6))
    with pytest.raises(MachineError, match="not enough memory to compile; found SIGKILL"):
        run_jobs(partial(dies, how=signal.SIGKILL), [3])
    with pytest.raises(MachineError, match="not enough memory"):
        run_jobs(eats, [0])
    assert run_jobs(refuses, [1]) == [b"\1"], "the next call has helpers again"


def test_where_nobody_tells_how_a_helper_ended_its_job_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that ignores SIGCHLD never learns of it."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(InternalError, match="an unknown status: LLVM ERROR: nothing selects this"):
            run_jobs(partial(dies, how=signal.SIGABRT), range(6))
        assert run_jobs(refuses, [1]) == [b"\1"]
        monkeypatch.setattr(processes, "_pool", processes._Pool())
        monkeypatch.setattr(processes, "_START", "raise SystemExit(5)")
        assert run_jobs(who, [0])[0].endswith(str(os.getpid()).encode())
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_helper_that_had_nothing_to_do_for_long_takes_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends while a job is on its way to it."""
    start = processes._START.replace("sys.exit(main())", "superkernel.codegen.processes.IDLE_S = 0.2; sys.exit(main())")
    monkeypatch.setattr(processes, "_START", start.replace("import sys;", "import sys, superkernel.codegen.processes;"))
    first = run_jobs(who, [0])[0].split()[1]
    monkeypatch.setattr(processes._Helper, "alive", lambda self: True)
    (helper,) = processes._pool._idle
    helper._process.wait()
    assert run_jobs(who, [0])[0].split()[1] not in (first, str(os.getpid()).encode())


@pytest.mark.parametrize("size", [0, 300, 1 << 18])
def test_an_error_has_the_last_words_of_a_helper(size: int) -> None:
    """However much it has said before."""
    with pytest.raises(InternalError, match=r"status 3: [^;]*LLVM ERROR: the last words\W") as caught:
        run_jobs(dies_talking, [size])
    assert len(str(caught.value)) < 800


def test_an_idle_helper_that_has_died_takes_no_job() -> None:
    first, second = (run_jobs(who, [0])[0].split()[1] for _ in range(2))
    assert first == second
    (helper,) = processes._pool._idle
    os.kill(int(first), signal.SIGKILL)
    helper._process.wait()
    taken = processes._pool.take(1, [], start=True, wait=False)
    assert taken is not None
    assert taken is not helper
    processes._pool.give_back(taken, usable=True)
    assert run_jobs(who, [0])[0].split()[1] not in (first, b"")


def test_errors_are_those_of_the_work() -> None:
    with pytest.raises(ValueError, match="three"):
        run_jobs(refuses, range(8))


def test_a_helper_that_has_grown_is_replaced() -> None:
    first = run_jobs(grows, [0])
    assert run_jobs(grows, [0]) == first
    assert run_jobs(grows, [24]) == first, "the last job of this one"
    assert run_jobs(grows, [0]) != first


def test_where_no_helper_can_be_started_the_process_works(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(os.getpid()).encode()
    monkeypatch.setattr(processes, "_START", "raise SystemExit(5)")
    assert all(r.endswith(here) for r in run_jobs(who, range(3)))
    monkeypatch.setattr(processes, "_pool", processes._Pool())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert all(r.endswith(here) for r in run_jobs(who, range(3)))


def test_a_forked_child_has_helpers_of_its_own() -> None:
    first = run_jobs(who, [0])
    child = os.fork()
    if child == 0:
        try:
            good = run_jobs(who, [0]) != first
            processes._pool.end()
        finally:
            os._exit(0 if good else 7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run_jobs(who, [0]) == first


def test_an_interrupt_anywhere_loses_no_helper() -> None:
    """A call behind it would wait for one that nobody gives back."""
    pool = processes._pool
    watched = {f.__code__ for f in (run_jobs, pool.take, pool._start, pool.give_back)}

    def whole(line: int) -> None:
        assert pool._all == set(pool._idle), line

    assert each_line(lambda: run_jobs(who, [0, 1]), watched, whole) > 40


def test_an_interrupt_while_helpers_are_ended_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C of somebody impatient, or a handler of SIGCHLD that raises."""

    def interrupted(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        raise KeyboardInterrupt

    run_jobs(who, range(6))
    open_before = len(os.listdir("/proc/self/fd")) - 3 * len(processes._pool._all)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_jobs(partial(dies, how=signal.SIGABRT), range(6))
    assert processes._pool._all == set(processes._pool._idle)
    assert len(os.listdir("/proc/self/fd")) - 3 * len(processes._pool._all) == open_before
    assert sorted(int(r.split()[0]) for r in run_jobs(who, range(6))) == list(range(6))


def test_what_a_signal_handler_raises_while_a_helper_starts_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """TimeoutError is an OSError, but none that says that there are no helpers here."""

    def interrupted(*_: object, **__: object) -> None:
        raise TimeoutError("alarm")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", interrupted)
        with pytest.raises(TimeoutError, match="alarm"):
            run_jobs(who, [0])
    assert not run_jobs(who, [0])[0].endswith(str(os.getpid()).encode())


def test_a_helper_that_is_refused_once_is_started_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a user has as many processes as he may have, for a moment."""

    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    here = str(os.getpid()).encode()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refused)
        assert run_jobs(who, [0])[0].endswith(here)
    assert not run_jobs(who, [0])[0].endswith(here)


SLOW = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
from superkernel.codegen.processes import run_jobs
def work(): run_jobs(time.sleep, [60.0, 60.0])
"""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("threading.Thread(target=work, daemon=True).start(); time.sleep(1)", 0),
        ("import os; threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start(); work()", -2),
    ],
    ids=["exit", "interrupt"],
)
def test_nobody_waits_for_work_that_nobody_needs(body: str, status: int) -> None:
    begun = time.monotonic()
    script = textwrap.dedent(SLOW) + body
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    assert ("KeyboardInterrupt" in done.stderr) == (status != 0), done.stderr
    assert time.monotonic() - begun < 50
