"""What planning and proving a schedule cost as it grows: seconds and peak memory of planner and verifier.

    python bench/verification.py [--tasks 25000 100000] [--cores 2 16 64] [--shapes rows whole ...] [--targets host ...]

Schedules are made of nothing but byte accesses in an arena that is reused all the time:

    rows      every task reads and writes its part of the rows, every eighth sub-operator its neighbours' too
    columns   the same, but parts are columns of a matrix: strided accesses that interleave
    whole     every task reads all that the sub-operator before wrote: each core waits for every other
    apart     every core works in a stretch of its own: nothing is ever ordered across cores
    random    parts of random buffers, as long as they were written

`whole` has cores - 1 waits per task on the host, so that the plan itself is what grows there. Each figure comes from a
process of its own: CPU seconds, and how far its memory went up meanwhile, at its peak.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "ut")]


from superkernel.analysis.random_aicore import BufferOp, schedule_of  # noqa: E402
from superkernel.analysis.random_plans import schedule_of as host_schedule_of  # noqa: E402
from superkernel.core.tensor import Region  # noqa: E402
from superkernel.scheduler.aicore.schedule import AicoreSchedule  # noqa: E402
from superkernel.scheduler.families.aicore.base import AicoreKernelType  # noqa: E402
from superkernel.scheduler.schedule import MemoryAccess, Schedule, Space, Task  # noqa: E402
from superkernel.sync.aicore.planner import plan_aicore  # noqa: E402
from superkernel.sync.aicore.verify import verify_aicore  # noqa: E402
from superkernel.sync.planner import plan_sync  # noqa: E402
from superkernel.sync.verify import verify  # noqa: E402
from superkernel.target.aicore import AicoreTarget, load_target  # noqa: E402

BUFFERS, ROWS, PITCH = 8, 256, 8192
BUFFER_BYTES = ROWS * PITCH

Parts = list[tuple[MemoryAccess, ...]]


def _access(write: bool, buffer: int, region: Region, operand: int) -> MemoryAccess:
    return MemoryAccess(Space.ARENA, 0, write, (region.shifted(buffer * BUFFER_BYTES),), operand)


def _rows(cores: int, begin: int, end: int) -> Region:
    low, high = (max(0, min(cores, at)) * BUFFER_BYTES // cores for at in (begin, end))
    return Region(low, high - low)


def _columns(cores: int, begin: int, end: int) -> Region:
    low, high = (max(0, min(cores, at)) * PITCH // cores for at in (begin, end))
    return Region(low, high - low, PITCH, ROWS) if high - low < PITCH else Region(0, BUFFER_BYTES)


def _layers(cores: int, count: int, part: Callable[[int, int, int], Region], halo: int) -> Iterator[Parts]:
    for number in range(count):
        here, there = number % BUFFERS, (number - 1) % BUFFERS
        more = halo if number % 8 == 7 else 0
        yield [
            (
                *([_access(False, there, part(cores, c - more, c + 1 + more), 0)] if number else []),
                _access(True, here, part(cores, c, c + 1), 1),
            )
            for c in range(cores)
        ]


def _whole(cores: int, count: int) -> Iterator[Parts]:
    for number, parts in enumerate(_layers(cores, count, _rows, 0)):
        read = _access(False, (number - 1) % BUFFERS, Region(0, BUFFER_BYTES), 0)
        yield [(read, part[-1]) if number else part for part in parts]


def _random(cores: int, count: int) -> Iterator[Parts]:
    rng = random.Random(0)
    written: list[int] = []
    for _ in range(count):
        here = rng.randrange(BUFFERS)
        sources = [b for b in rng.sample(written, min(len(written), 2)) if b != here]
        cut = rng.choice([_rows, _columns])
        wide = rng.choice([0, 0, 1, 3])
        parts = []
        for c in range(cores):
            reads = [_access(False, b, cut(cores, c - wide, c + 1 + wide), n) for n, b in enumerate(sources)]
            parts.append((*reads, _access(True, here, cut(cores, c, c + 1), len(sources))))
        written = list(dict.fromkeys([*written, here]))
        yield parts


SHAPES: dict[str, Callable[[int, int], Iterator[Parts]]] = {
    "rows": lambda cores, count: _layers(cores, count, _rows, 1),
    "columns": lambda cores, count: _layers(cores, count, _columns, 1),
    "whole": _whole,
    "apart": lambda cores, count: _layers(cores, count, _rows, 0),
    "random": _random,
}


def host_schedule(shape: str, tasks: int, cores: int) -> Schedule:
    """Sub-operators with a task per core."""
    rows: list[Task] = []
    for subop, parts in enumerate(SHAPES[shape](cores, tasks // cores)):
        rows += [Task(len(rows) + c, subop, c, c, c + 1, part) for c, part in enumerate(parts)]
    return host_schedule_of(cores, rows)


def aicore_schedule(shape: str, tasks: int, cores: int) -> tuple[AicoreSchedule, AicoreTarget]:
    """Sub-operators of the vector cores, of which a group has two, with a task per core."""
    sizes = {"device.groups": cores // 2, "device.cube_cores": cores // 2, "device.vector_cores": cores}
    target = load_target("a3").replaced(sizes)
    ops = [BufferOp(AicoreKernelType.VECTOR, cores, (), 0)] * (tasks // cores)
    schedule = schedule_of(ops, target)
    parts = [part for layer in SHAPES[shape](cores, tasks // cores) for part in layer]
    for task, part in zip(schedule.tasks, parts, strict=True):
        object.__setattr__(task, "accesses", part)
    return schedule, target


def _memory_mb(name: str) -> float:
    """`VmHWM`: the most memory that this process had since its peak was forgotten; `VmRSS`: what it has now."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(name)).split()[1]) / 1024


def measure(target: str, shape: str, tasks: int, cores: int) -> dict[str, float]:
    """CPU seconds and MB of planner and verifier."""
    plan: Callable[[], Any]
    prove: Callable[[Any], object]
    if target == "host":
        made = host_schedule(shape, tasks, cores)
        plan, prove = (lambda: plan_sync(made)), verify
    else:
        schedule, description = aicore_schedule(shape, tasks, cores)
        plan, prove = (lambda: plan_aicore(schedule, description)), verify_aicore
    found, figures = _timed("plan", plan)
    return figures | _timed("verify", lambda: prove(found))[1]


def _timed(name: str, work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before, start = _memory_mb("VmRSS"), time.process_time()
    found = work()
    return found, {f"{name}_s": time.process_time() - start, f"{name}_mb": _memory_mb("VmHWM") - before}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[25_000, 100_000])
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--targets", nargs="+", choices=["host", "aicore"], default=["host", "aicore"])
    parser.add_argument("--one", action="store_true", help="measure the first of each in this process and print JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.targets[0], args.shapes[0], args.tasks[0], args.cores[0])))
        return 0
    columns = ("plan_s", "plan_mb", "verify_s", "verify_mb")
    print(f"{'target':8}{'shape':9}{'tasks':>8}{'cores':>7}" + "".join(f"{name:>11}" for name in columns))
    for target in args.targets:
        for shape in args.shapes:
            for tasks in args.tasks:
                for cores in args.cores:
                    words = ["--targets", target, "--shapes", shape, "--tasks", str(tasks), "--cores", str(cores)]
                    command = [sys.executable, __file__, "--one", *words]
                    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                    figures = "".join(f"{found[name]:11.{2 if name.endswith('s') else 0}f}" for name in columns)
                    print(f"{target:8}{shape:9}{tasks:8}{cores:7}{figures}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
