"""A kernel of an accelerator, on the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.core.errors import UnsupportedError, Violation, raise_all
from superkernel.core.files import file_name, replacing
from superkernel.runtime.kernel import Array, Io, Kernel, Reconstructor, checked_count
from superkernel.target import certificate_note

if TYPE_CHECKING:
    from superkernel.backends.aicore.critical import CriticalReport
    from superkernel.backends.aicore.executable import SimExecutable
    from superkernel.backends.aicore.explain import AicoreExplanation
    from superkernel.backends.aicore.qemu import QemuExecutable, QemuRun
    from superkernel.backends.aicore.qemu_schedule import EngineSchedule
    from superkernel.backends.aicore.report import SimReport
    from superkernel.display.tracing import Trace
    from superkernel.ir.body import SubOperator
    from superkernel.runtime.result import RunResult
    from superkernel.sync.aicore.verify import AicoreCertificate

    Inputs = Mapping[str, Any] | Sequence[Any] | None

EMULATOR = "qemu"


class AicoreKernel(Kernel):
    """A kernel of an accelerator, on the simulator. See `Kernel`."""

    _compiled: AicoreCompiled
    _executable: SimExecutable

    if TYPE_CHECKING:

        def __init__(self, compiled: AicoreCompiled, states: Mapping[str, NDArray[Any]] | None = None) -> None: ...

        @property
        def certificate(self) -> AicoreCertificate: ...

        def run(
            self,
            inputs: Inputs = None,
            *,
            executor: str | None = None,
            profile: bool = False,
            delays: int = 0,
            **named: Any,
        ) -> RunResult[SimReport]: ...

        def report(
            self, inputs: Inputs = None, *, rounds: int = 100, warm: bool = False, **named: Any
        ) -> SimReport: ...

    @property
    def executors(self) -> tuple[str, ...]:
        """See `Kernel.executors`."""
        own, reference = super().executors
        return own, EMULATOR, reference

    def emulate(
        self,
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
        schedule: EngineSchedule | None = None,
        *,
        log: bool = False,
        count: bool = False,
    ) -> tuple[dict[str, Array], QemuRun]:
        """Run the program once on the emulator: outputs by name, and counts. `schedule` (qemu_schedule.py) says when
        engine commands are carried out: at once, as late as legal, or at random; `log` keeps all commands, `count`
        counts instructions. Raises MachineError without an emulator, WatchdogError where the program does not end."""
        results = self._new_outputs()
        io = [*map(self._unaliased, self._arrays(inputs).values()), *results, *self._states.values()]
        run = self._emulating().run(io, schedule or self._emulated(0), log=log, count=count)
        return dict(zip(self._output_types, self._counting(results), strict=True)), run

    def commands(self) -> dict[str, frozenset[str]]:
        return dict(self._compiled.image.commands)

    def firmware_bytes(self, commands: frozenset[str] | None = None) -> int:
        from superkernel.backends.aicore.qemu import firmware_of

        return firmware_of(self._compiled.target, commands).image.code_bytes

    def _emulating(self) -> QemuExecutable:
        """The executable of the emulator; with a firmware for its own kernels alone where a manifest limits them."""
        from superkernel.backends.aicore.qemu import QemuExecutable

        return QemuExecutable(self._executable, selective=bool(self._compiled.options.manifest))

    def emulation(self, inputs: Mapping[str, Any] | Sequence[Any] | None = None) -> tuple[QemuExecutable, list[Array]]:
        """The executable of the emulator, and a table of copies of inputs, new outputs and copies of states for it."""
        given, states = self._arrays(inputs).values(), self._states.values()
        return self._emulating(), [
            *(np.array(a) for a in given), *self._new_outputs(), *(np.array(a) for a in states)
        ]  # fmt: skip

    def critical(
        self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, confirm: int = 5, **named: Any
    ) -> CriticalReport:
        """The critical path: what the time of a simulated run consists of, slack of each boundary, and
        what its synchronisation costs, predicted for all and tried out for the `confirm` costliest. States stay as they
        are."""
        from superkernel.backends.aicore.critical import critical

        self._require_times()
        arrays = self._arrays_or_random(inputs, named)
        with self._kept_states():
            return critical(
                self._compiled, self._io(list(arrays.values())), confirm=checked_count("confirm", confirm, 0)
            )

    def explain(self, node: str | int) -> AicoreExplanation:
        """See `Kernel.explain`."""
        from superkernel.backends.aicore.explain import explain_aicore

        return explain_aicore(self._compiled, node)

    def save(self, path: str | PathLike[str]) -> None:
        """The program with its constants as one ELF file, which names its target and its launches and carries its
        certificate: for `superkernel sim run`, a disassembler, an emulator. Raises UnsupportedError where NumPy
        computes sub-operators between launches, InputError on what is no file name, MachineError where the file cannot
        be written."""
        subops, image = self._compiled.schedule.subops, self._compiled.image
        raise_all(UnsupportedError, [_needs_numpy(subops[index]) for index in image.host_calls])
        name = file_name(path)
        data = image.whole_elf(certificate_note.note_bytes(str(self.certificate), asdict(self.certificate)))
        with replacing(name, "the program") as file:
            file.write(data)

    def _launch(self, io: Io) -> SimReport | None:
        return self._launch_late(io, 0)

    def _launch_late(self, io: Io, seed: int) -> SimReport | None:
        from superkernel.backends.aicore.measure import measure

        self._executable.require_data()
        if self._executable.mode == "functional":
            self._executable.simulate(io, mode="functional", delays=seed)
            return None
        return measure(self._compiled, io, baseline=False, delays=seed)

    def _require_times(self) -> None:
        self._executable.require_times()

    def _measure(self, io: Io, rounds: int, warm: bool) -> SimReport:
        """A fused run and, with `rounds` above 0, the baseline of single launches."""
        from superkernel.backends.aicore.measure import measure
        from superkernel.backends.aicore.page import PageSource

        source = PageSource(self._compiled, [array.copy() for array in io], warm)
        return replace(measure(self._compiled, io, baseline=rounds > 0, split=True, warm=warm), source=source)

    def _times(self, io: Io, rounds: int) -> NDArray[np.int64]:
        """Simulated ns of a fused run, the same every time, with what NumPy took between launches."""
        from superkernel.backends.aicore.measure import measure

        return np.full(rounds, round(measure(self._compiled, io, baseline=False).time_us * 1000), np.int64)

    def _traced(self, io: Io) -> Trace:
        from superkernel.backends.aicore.page import traced

        run = self._compiled.executable.simulate(io, mode="timing", races=False, trace=True)
        return traced(self._compiled, run)

    def _reconstructor(self) -> Reconstructor:
        """Everything is made again: nothing depends on the machine."""
        from superkernel.backends.aicore.variants import compile_again

        compiled = self._compiled
        return compile_again, (compiled.source, compiled.target, compiled.options)

    def _run_on(self, executor: str, arrays: Mapping[str, Array], delays: int) -> dict[str, Array]:
        if executor != EMULATOR:
            return super()._run_on(executor, arrays, delays)
        return self.emulate(arrays, self._emulated(delays))[0]

    def _emulated(self, seed: int) -> EngineSchedule:
        """How a run on the emulator goes, with delays of a seed."""
        from superkernel.backends.aicore.qemu_schedule import WATCHDOG_S, EngineSchedule

        target, watchdog_s = self._compiled.target, self._compiled.options.watchdog_ms / 1000 or WATCHDOG_S
        if not seed:
            return EngineSchedule(watchdog_s=watchdog_s)
        return EngineSchedule.delayed(seed, target.cores + target.device.aicpu_harts, watchdog_s)


def _needs_numpy(sub: SubOperator) -> Violation:
    """A sub-operator that keeps a program from being saved."""
    return Violation(
        "a saved program has no NumPy, which computes this between two launches",
        f"sub-operator {sub.index} ({sub.name!r})",
        "a kernel for every operator",
        f"operator {sub.body.op!r} without one",
        hint="explain() says why it has none; the compiled kernel itself runs it",
    )


KERNEL = AicoreKernel
