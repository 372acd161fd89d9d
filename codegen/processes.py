"""Work spread over several processes: LLVM under llvmlite holds one lock per process, so threads gain nothing.

Model: `work` turns a job into bytes. The parent keeps some jobs for itself and gives the others to child processes
(`python -m superkernel.codegen.processes`, not multiprocessing: a user's script must not be imported again), pickled
over stdin; results come back over stdout. A child that fails costs time, never the result: its jobs are done by the
parent, which then meets the real error.

Invariant: results stand in the order of the jobs and do not depend on the number of processes. `work` is a function of
a module (or a partial of one) and without side effects.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

JOBS_WORTH_A_CHILD = 2  # a child takes about half a second to start
children_max: int | None = None
"""Set by who compiles in several processes already: children would take CPU time, and win nothing."""

Job = TypeVar("Job")


def run_jobs(
    work: Callable[[Job], bytes],
    jobs: Sequence[Job],
    report: Callable[[int], None] = lambda done: None,
    *,
    jobs_per_child: int = JOBS_WORTH_A_CHILD,
) -> list[bytes]:
    """`work` of each job. `report` is called with the number of finished jobs. Fewer than `jobs_per_child` jobs (at the
    least) are not worth another process. Raises what `work` raises."""
    children = max(0, min(len(os.sched_getaffinity(0)), len(jobs) // jobs_per_child) - 1)
    if children_max is not None:
        children = min(children, children_max)
    shares = [list(range(len(jobs)))[i :: children + 1] for i in range(children + 1)]
    started = [_Child(work, [jobs[i] for i in share]) for share in shares[1:]]
    done: dict[int, bytes] = {}
    try:
        for i in shares[0]:
            done[i] = work(jobs[i])
            report(len(done))
        for child, share in zip(started, shares[1:], strict=True):
            done.update(zip(share, child.results() or (), strict=False))
            report(len(done))
    finally:
        for child in started:
            child.close()
    for i in range(len(jobs)):
        if i not in done:
            done[i] = work(jobs[i])
            report(len(done))
    return [done[i] for i in range(len(jobs))]


class _Child:
    """A process that does some jobs."""

    def __init__(self, work: Callable[[Job], bytes], jobs: Sequence[Job]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdin is not None
            self._process.stdin.write(pickle.dumps((sys.path, pickle.dumps((work, list(jobs))))))
            self._process.stdin.close()
        except OSError:
            self.close()

    def results(self) -> list[bytes] | None:
        """What it made, or None where it failed."""
        if self._process is None or self._process.stdout is None:
            return None
        data = self._process.stdout.read()
        if self._process.wait() != 0:
            return None
        results: list[bytes] = pickle.loads(data)
        return results

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def main() -> int:
    """The child: work and jobs from stdin, results to stdout."""
    path, rest = pickle.load(sys.stdin.buffer)
    sys.path[:] = path  # before anything of the caller's is looked for
    work, jobs = pickle.loads(rest)
    sys.stdout.buffer.write(pickle.dumps([work(job) for job in jobs]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
