"""Whether a run on the simulator did everything: what no race and no deadlock tells of.

A sub-operator that a core leaves out, or a store that a kernel leaves out, may go unnoticed where its memory held
something before: the next reader takes old bytes. Here each task is held against the device's counters: its core went
into the kernel, and its engines wrote at least as many bytes of global memory as the task declares to write. In
functional mode the device counts no bytes: there only the first is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from superkernel.codegen.aicore.program_spec import PHASE_BODY
from superkernel.core.errors import SimulationError, Violation
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.schedule import Schedule, Space, Task
from superkernel.sim.counters import LaunchResult


def check_finished(schedule: Schedule, launches: Sequence[LaunchResult], *, counted: bool = True) -> None:
    """Raises SimulationError ("unfinished") with every task that was not done. `counted`: the launches have
    counters of bytes."""
    written: dict[tuple[int, int], int] = {}
    for launch in launches:
        for core in launch.cores:
            counts = core.table.bytes_written(PHASE_BODY)
            written.update({(subop, core.core): count for subop, count in counts.items()})
    wrong = [v for task in schedule.tasks for v in _left_undone(schedule, task, written, counted)]
    if wrong:
        raise SimulationError(kind="unfinished", violations=tuple(wrong))


def _left_undone(
    schedule: Schedule, task: Task, written: dict[tuple[int, int], int], counted: bool
) -> Iterator[Violation]:
    tiling = schedule.tilings[task.subop]
    if not isinstance(tiling, AicoreTiling):
        return
    where = f"core {task.core}, sub-operator {task.subop} ({schedule.subops[task.subop].name})"
    found = written.get((task.subop, task.core))
    units = f"units {task.begin} to {task.end}"
    if found is None:
        yield Violation(
            "a sub-operator did not run on a core that has units of it", where, units, "it was never entered"
        )
        return
    declared = sum(
        r.length * r.count for a in task.accesses if a.write and a.space is not Space.SCRATCH for r in a.regions
    )
    if counted and tiling.engines_write_all and found < declared:
        yield Violation(
            "a sub-operator did not write all that it declares", f"{where}, {units}", f"{declared} bytes", f"{found}"
        )
