"""Compilers in processes of their own: LLVM ends its process where memory runs out or where it meets a fault of its
own, it grows with every module, cannot be interrupted, must not be met by the end of the interpreter, and holds one
lock, so that threads gain nothing.

Model: `work` turns a job into bytes. *Helpers* do jobs, one at a time each: fresh interpreters (not multiprocessing: a
user's script must not be imported again) to which jobs go pickled through a pipe. They stay for later calls and end by
themselves where nobody asks for long, where they have grown, and with the process that started them. Jobs of a helper
that dies go to a new one once; then the error says how it ended. An interrupt ends the helpers at work at once. Where
no helper can be started (no interpreter's executable, no package in its path), the process works itself.

Invariant: results stand in the order of the jobs and do not depend on the number of helpers. `work` is a function of
a module (or a partial of one) and without side effects.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from superkernel.core.errors import InternalError, MachineError
from superkernel.core.limits import usable_cpus

JOBS_WORTH_A_CHILD = 2  # about as long as a helper takes to start
TRIES = 2  # whoever ends a helper for want of memory may have meant somebody else
IDLE_S = 60.0
GROWTH_BYTES_MAX = 256 << 20
SAID_BYTES = 500  # of its last words, that errors tell
helpers_max: int | None = None
"""Set by who compiles in several processes already: more helpers would take CPU time, and win nothing."""

Job = TypeVar("Job")

_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from superkernel.codegen.processes import main; sys.exit(main())"  # -c
)
_LENGTH = struct.Struct("<Q")
_HELLO = _FAREWELL = b""  # of a helper: no answer is empty


def run_jobs(
    work: Callable[[Any], bytes],
    jobs: Sequence[Job],
    report: Callable[[int], None] = lambda done: None,
    *,
    prepare: Callable[[Job], Any] = lambda job: job,
    jobs_per_child: int = JOBS_WORTH_A_CHILD,
    helpers: int = sys.maxsize,
) -> list[bytes]:
    """`work` of each job, of what `prepare` makes of it here while helpers are at work. `report` is called with the
    number of finished jobs. Fewer than `jobs_per_child` are not worth the start of another helper, and there are
    `helpers` at the most, one per CPU. Raises what `work` raises, and MachineError or InternalError where it ends the
    process that does it."""
    cpus = min(usable_cpus(), helpers_max or sys.maxsize, helpers)
    todo, tries = list(reversed(range(len(jobs)))), dict.fromkeys(range(len(jobs)), 0)
    done: dict[int, bytes] = {}
    running: dict[int, tuple[_Helper, int]] = {}  # by descriptor
    taken: list[_Helper] = []  # an interrupt may come anywhere below
    try:
        while todo or running:
            while todo and len(running) < cpus:
                worth = len(running) < max(1, len(jobs) // jobs_per_child)
                helper = _pool.take(cpus, taken, start=worth, wait=not running)
                if helper is None:
                    break
                running[helper.answers] = helper, todo[-1]
                helper.send((sys.path, pickle.dumps((work, prepare(jobs[todo.pop()])))))
            if not running:  # no helpers here
                alone = todo.pop()
                done[alone] = work(prepare(jobs[alone]))
                report(len(done))
            for descriptor in _readable(running):
                helper, job = running[descriptor]
                answer = helper.receive()
                del running[descriptor]
                if isinstance(answer, bytes):
                    done[job] = answer
                    report(len(done))
                else:
                    tries[job] += answer is not None
                    if answer is not None and tries[job] == TRIES:
                        raise answer
                    todo.append(job)
                _pool.give_back(helper, usable=isinstance(answer, bytes))
                taken.remove(helper)
    finally:
        _pool.end_all(taken)
    return [done[i] for i in range(len(jobs))]


def run_for_values(work: Callable[[Any], Any], jobs: Sequence[Any], *, jobs_per_child: int, helpers: int) -> list[Any]:
    """`run_jobs` for work that gives any values: they come back pickled, as jobs go."""
    done = run_jobs(partial(_pickled, work), jobs, jobs_per_child=jobs_per_child, helpers=helpers)
    return [pickle.loads(value) for value in done]


def _pickled(work: Callable[[Any], Any], job: Any) -> bytes:
    return pickle.dumps(work(job))


def _readable(running: dict[int, tuple[_Helper, int]]) -> list[int]:
    if not running:
        return []
    poll = select.poll()
    for descriptor in running:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll()]


class _Helper:
    """A process that does jobs. Raises OSError where it cannot be started."""

    def __init__(self) -> None:
        self._errors = os.memfd_create("superkernel-helper", os.MFD_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                process_group=0,  # Ctrl-C is the caller's to handle
            )
        except BaseException:
            os.close(self._errors)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self.answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._began = False

    def send(self, request: object) -> None:
        """Hands it a job. Where it is gone, `receive` says so."""
        with suppress(BrokenPipeError):
            _write(self._requests, pickle.dumps(request))

    def receive(self) -> bytes | Exception | None:
        """The result of the job, the error that ended the helper, or None where it had ended before the job came.
        Raises what the work raised."""
        answer = _read(self.answers)
        if answer is not None and not self._began:
            self._began, answer = True, _read(self.answers)
        if answer == _FAREWELL:
            return None
        if answer is None:
            return self._ending()
        good, result = pickle.loads(answer)
        if good:
            data: bytes = result
            return data
        _pool.give_back(self, usable=True)
        raise result

    def _ending(self) -> Exception | None:
        code = self._process.wait()
        last = max(0, os.fstat(self._errors).st_size - SAID_BYTES)  # it may have warned of much before
        said = os.pread(self._errors, SAID_BYTES, last).decode(errors="replace").strip()
        ending = signal.Signals(-code).name if code < 0 else f"status {code}"
        if code == 0:  # where SIGCHLD is ignored, and where others have waited for it
            ending = "an unknown status"
        found = f"{ending}: {said}" if said else ending
        if ending == "SIGKILL" or any(word in said for word in ("emory", "bad_alloc", "map segment")):
            return MachineError("not enough memory to compile", found=found)
        if not self._began:
            _pool.none_start = True
            return None
        return InternalError("the compiler's process ended", found=found, hint="please report it with the graph")

    def alive(self) -> bool:
        """Whether it may take a job."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it, whatever it is doing."""
        try:
            with suppress(PermissionError):  # this process has become another user's since: it ends with its pipes
                self._process.kill()
                self._process.wait()
        finally:
            self.forget()

    def forget(self, *, of_parent: bool = False) -> None:
        """Close what leads to it. `of_parent`: in a forked child, whose parent keeps it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._errors)
        if of_parent:
            self._process.returncode = 0


class _Pool:
    """The helpers of this process, for all of its threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all: set[_Helper] = set()
        self._idle: list[_Helper] = []
        self._ends = False
        self.none_start = getattr(sys, "frozen", False) or "python" not in os.path.basename(sys.executable or "")

    def take(self, most: int, taken: list[_Helper], *, start: bool, wait: bool) -> _Helper | None:
        """An idle helper, or a new one where `start` says so and there are fewer than `most`; or None: `wait` says not
        to wait for one of another thread, and where there can be none nobody waits. It stands in `taken` before it is
        anything but idle: whatever interrupts this, the caller can give it back."""
        with self._changed:
            while True:
                if self._ends and threading.current_thread() is not threading.main_thread():
                    _await_exit()
                while self._idle:
                    helper = self._idle[-1]
                    taken.append(helper)
                    self._idle.pop()
                    if helper.alive():
                        return helper
                    self._drop(helper)
                    taken.remove(helper)
                if self.none_start:
                    return None
                if start and len(self._all) < most:
                    return self._start(taken)
                if not wait:
                    return None
                self._changed.wait()

    def _start(self, taken: list[_Helper]) -> _Helper | None:
        try:
            helper = _Helper()
        except OSError as error:
            if error.errno is None:  # of a signal handler
                raise
            return None  # refused, for now
        except RuntimeError:  # the interpreter shuts down
            self.none_start = True
            return None
        taken.append(helper)
        self._all.add(helper)
        return helper

    def give_back(self, helper: _Helper, *, usable: bool) -> None:
        """Ends what `take` began."""
        with self._changed:
            if helper not in self._all or helper in self._idle:
                return
            if usable:
                self._idle.append(helper)
            else:
                self._drop(helper)
            self._changed.notify()

    def _drop(self, helper: _Helper) -> None:
        self._all.discard(helper)
        helper.kill()

    def end_all(self, helpers: list[_Helper]) -> None:
        """Ends what `take` began, and those helpers, whatever interrupts this: the end of the first one may, where the
        handler of SIGCHLD raises."""
        if helpers:
            try:
                self.give_back(helpers[-1], usable=False)
            finally:
                self.end_all(helpers[:-1])

    def end(self) -> None:
        """At exit: nobody works on."""
        with self._changed:
            self._ends = True
            self._idle.clear()
            self.end_all(list(self._all))

    def leave_to_parent(self) -> None:
        """In a forked child."""
        for helper in self._all:
            helper.forget(of_parent=True)


def _await_exit() -> None:
    while True:
        time.sleep(3600)


def _forked() -> None:
    global _pool
    _pool.leave_to_parent()
    _pool = _Pool()


_pool = _Pool()
atexit.register(lambda: _pool.end())
os.register_at_fork(after_in_child=_forked)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read(descriptor: int) -> bytes | None:
    """What one `_write` wrote, or None where the other side has ended."""
    parts: list[bytes] = []
    missing = _LENGTH.size
    header = True
    while missing:
        part = os.read(descriptor, min(missing, 1 << 20))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
        if header and not missing:
            (missing,) = _LENGTH.unpack(b"".join(parts))
            parts.clear()
            header = False
    return b"".join(parts)


# The helper -----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Does jobs from stdin until nobody asks any more."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what work prints is no answer
    _write(answers, _HELLO)
    first = 0
    while select.select([0], [], [], IDLE_S)[0]:
        request = _read(0)
        if request is None:
            break
        _write(answers, _answer(request))
        now = _resident_bytes()
        first = first or now
        if now - first > GROWTH_BYTES_MAX:
            break
    with suppress(BrokenPipeError):
        _write(answers, _FAREWELL)
    return 0


def _answer(request: bytes) -> bytes:
    result: tuple[bool, Any]
    try:
        path, rest = pickle.loads(request)
        sys.path[:] = path  # before anything of the caller's is looked for
        work, job = pickle.loads(rest)
        result = True, work(job)
    except MemoryError as error:
        result = False, MachineError("not enough memory to compile", found=str(error))
    except Exception as error:
        result = False, error
    try:
        return pickle.dumps(result)
    except Exception as error:
        return pickle.dumps((False, InternalError("an error that cannot be sent", found=f"{result[1]!r} ({error})")))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
