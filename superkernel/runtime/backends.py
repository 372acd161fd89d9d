"""What is asked of a kernel, answered for the host and for the accelerator: the one place that tells them apart.

Model: `Kernel` is the user's face and checks what it is given; a backend does what is different per target: run, time,
report, trace, explain, save. What a compilation made (`compiled.py`) knows nothing of these, so that imports run one
way: kernel -> backend -> report, explanation, file -> compilation -> stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.host.compiled import HostCompiled
from superkernel.compilation.compiled import Compilation

if TYPE_CHECKING:
    from superkernel.backends.aicore.compiled import AicoreCompiled
    from superkernel.backends.aicore.explain import AicoreExplanation
    from superkernel.backends.aicore.report import SimReport
    from superkernel.backends.host.explain import Explanation
    from superkernel.backends.host.report import Report
    from superkernel.display.tracing import Trace

WARMUP_ROUNDS = 5
Io = Sequence[NDArray[Any]]
"""The table of a launch: inputs, outputs, states."""
Recipe = tuple[Callable[..., Compilation], tuple[Any, ...]]


class HostBackend:
    """A kernel of the host. For each method see that of `Kernel`; states change."""

    def __init__(self, compiled: HostCompiled) -> None:
        self.compiled = compiled

    def run(self, io: Io) -> None:
        """One launch; outputs and states are written in place."""
        self.compiled.executable.run(io)

    def profile(self, io: Io, rounds: int, warm: bool = True) -> Report:
        """Runs are warm, whatever is asked for."""
        from superkernel.backends.host.profile import measure

        return measure(self.compiled, io, rounds)

    def time(self, io: Io, rounds: int) -> NDArray[np.int64]:
        return self.compiled.executable.time(io, rounds, WARMUP_ROUNDS)

    def trace(self, io: Io) -> Trace:
        from superkernel.backends.host.profile import traced

        return traced(self.compiled, io)

    def explain(self, node: str | int) -> Explanation:
        from superkernel.backends.host.explain import explain

        return explain(self.compiled, node)

    def save(self, path: str | PathLike[str]) -> None:
        from superkernel.backends.host.saved import save

        save(self.compiled, path)

    def recipe(self) -> Recipe:
        """What makes the kernel again in another process: a function of a module and its arguments."""
        from superkernel.backends.host.saved import compile_stored, objects_by_digest

        compiled = self.compiled
        return compile_stored, (compiled.source, compiled.cores, compiled.options, objects_by_digest(compiled))


class AicoreBackend:
    """An accelerator's kernel on the simulator. For each method see that of `Kernel`; states change."""

    def __init__(self, compiled: AicoreCompiled) -> None:
        self.compiled = compiled

    def run(self, io: Io) -> SimReport:
        """One fused run; outputs and states are written in place."""
        return self.profile(io, 0)

    def profile(self, io: Io, rounds: int, warm: bool = False) -> SimReport:
        """A fused run and, with `rounds` above 0, the baseline of single launches."""
        from superkernel.backends.aicore.measure import measure

        return measure(self.compiled, io, baseline=rounds > 0, warm=warm)

    def time(self, io: Io, rounds: int) -> NDArray[np.int64]:
        """Simulated ns of a fused run, the same every time."""
        return np.full(rounds, round(self.run(io).time_us * 1000), np.int64)

    def trace(self, io: Io) -> Trace:
        from superkernel.sim.trace import records, trace_of

        compiled = self.compiled
        run = compiled.executable.simulate(io, mode="timing", races=False, trace=True)
        names = {sub.index: sub.name for sub in compiled.schedule.subops}
        title = f"{compiled.graph.name} on {compiled.target.name}, simulated"
        return trace_of([records(launch.trace) for launch in run.launches], compiled.target, names, title)

    def explain(self, node: str | int) -> AicoreExplanation:
        from superkernel.backends.aicore.explain import explain_aicore

        return explain_aicore(self.compiled, node)

    def save(self, path: str | PathLike[str]) -> None:
        """The program with its constants as one ELF file, which names its target: for `superkernel sim run`, a
        disassembler, an emulator. Raises InputError on what is no file name, MachineError where the file cannot be
        written."""
        from superkernel.core.files import file_name, replacing

        name, data = file_name(path), self.compiled.image.whole_elf()
        with replacing(name, "the program") as file:
            file.write(data)

    def recipe(self) -> Recipe:
        """What makes the kernel again in another process: everything, since nothing depends on the machine."""
        from superkernel.compilation.pipeline_aicore import compile_for_aicore

        compiled = self.compiled
        return partial(compile_for_aicore, options=compiled.options), (compiled.source, compiled.target)


def backend_of(compiled: Compilation) -> HostBackend | AicoreBackend:
    """The backend for what was compiled."""
    if isinstance(compiled, HostCompiled):
        return HostBackend(compiled)
    from superkernel.backends.aicore.compiled import AicoreCompiled

    assert isinstance(compiled, AicoreCompiled)
    return AicoreBackend(compiled)
