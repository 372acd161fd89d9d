"""What a linked program does, hart by hart: its code is run where nothing is carried out and nothing waits.

See csrc/sim/device/program_recorder.h, which does it, for the model and for what it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.core.errors import MachineError, VerificationError, Violation, raise_all
from superkernel.sim.device import read_program
from superkernel.target.aicore import AicoreTarget
from superkernel.target.sections import all_fields

INSTRUCTIONS_MAX = 4_000_000_000  # of a hart in a launch
NOTHING = 2**64 - 1
"""In `uses`: an operand that was not touched, or not loaded."""

DeclaredRow = tuple[int, bool, int, int, int, int]
"""An operand that a call may touch: number, whether it is written, address, bytes of a run, stride, count of runs."""


class InitialData(Protocol):
    """Bytes of memory at the start."""

    @property
    def address(self) -> int:
        """Where they begin."""

    @property
    def nbytes(self) -> int:
        """How many."""

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes, one-dimensional."""


def _bytes_of(part: InitialData) -> memoryview:
    return part.data.data


class StepKind(IntEnum):
    """First word of a step; what the others hold is said in program_recorder.h."""

    CALL, RETURNED, CROSS_SET, CROSS_WAIT, NOTIFY, WAIT_MEMORY, PREFETCH = range(7)


@dataclass(frozen=True)
class RecordedHart:
    """One hart in one launch. `steps`: rows of 6 words; `arguments` by call; `uses`: rows of call, operand, waits,
    fenced."""

    steps: NDArray[np.uint64]
    arguments: Sequence[tuple[int, ...]]
    uses: NDArray[np.int64]


class ProgramRecording:
    """A program in a device's memory, of which launches can be recorded one after the other.

    `program`: an ELF file. `functions`: address and number of arguments of those whose calls are kept. `data`: what
    memory holds beside the program; outside private memory asked for its bytes when they are loaded. Raises
    MachineError where there is not enough memory."""

    def __init__(
        self, target: AicoreTarget, program: bytes, functions: Sequence[tuple[int, int]],
        data: Iterable[InitialData] = (),
    ) -> None:  # fmt: skip
        image = read_program(program)
        assert image.private_address is not None
        fields = {path: target.value(path) for path in all_fields()}
        try:
            self._recorder = _core.ProgramRecorder(
                fields, image.entry, image.private_address, list(image.segments), list(functions), INSTRUCTIONS_MAX
            )
        except MemoryError as error:
            raise MachineError("not enough memory for the device's global memory", location="map.ram_bytes") from error
        private_end = image.private_address + target.control.private_bytes * (target.cores + target.device.aicpu_harts)
        for part in data:
            if image.private_address <= part.address < private_end:
                self._recorder.write(part.address, part.data.data)
            elif part.nbytes:
                self._recorder.view(part.address, part.nbytes, partial(_bytes_of, part))

    def launch(
        self, number: int, on_call: Callable[[int, int, tuple[int, ...]], Iterable[DeclaredRow]]
    ) -> list[RecordedHart]:
        """All harts of a launch. `on_call`: what a call (hart, function, arguments) may touch. Raises VerificationError
        with what the program does wrong."""
        found = self._recorder.launch(number, on_call)
        raise_all(
            VerificationError, [Violation(m, f"launch {number}, {w}", e, f) for m, w, e, f in self._recorder.wrong]
        )
        return [
            RecordedHart(
                np.frombuffer(steps, np.uint64).reshape(-1, 6), arguments, np.frombuffer(uses, np.int64).reshape(-1, 4)
            )
            for steps, arguments, uses in found
        ]

    @property
    def work(self) -> Mapping[str, int]:
        """What was executed: instructions, and commands."""
        return {"instructions": self._recorder.executed, "commands": self._recorder.commands}
