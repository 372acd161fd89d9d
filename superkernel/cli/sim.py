"""`superkernel sim run`: one program with all its numbers, or several with a line each.

Model: a directory stands for the ELF files in it, in the order of their names. With several programs each one runs
whatever became of those before it; a file that cannot be run is a line as well, and the exit status is that of the
first program that did not succeed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superkernel.cli import sim_run
from superkernel.core.counted import counted
from superkernel.core.errors import InputError, SuperKernelError
from superkernel.core.files import is_elf, is_file, is_folder

if TYPE_CHECKING:
    from superkernel.sim.accelerator import AcceleratorResult
    from superkernel.sim.program import ProgramResult


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One of several programs: its result, or why it could not be run."""

    program: str
    exit_status: int
    result: ProgramResult | AcceleratorResult | None
    error: SuperKernelError | None = None

    def line(self) -> str:
        """For a terminal; what the program printed stands before its line."""
        if self.result is None:
            return f"ERROR {self.program}: {self.error}"
        *console, verdict = self.result.head().splitlines()
        word, _, reason = verdict.partition(": ")
        return "\n".join([*console, f"{word} {self.program}: {reason}"])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        body = self.error.to_json() if self.error is not None else self.result.to_json() if self.result else {}
        return {"program": self.program, "exit_status": self.exit_status, **body}


def programs(words: Sequence[str]) -> tuple[str, ...]:
    """The files that the command line names; of a directory all ELF files, and what is called .elf whatever it is.
    Raises InputError for a directory without programs."""
    names: list[str] = []
    for word in words:
        if not is_folder(word):
            names.append(word)
            continue
        found = [str(path) for path in sorted(Path(word).iterdir()) if is_file(path) and _is_program(path)]
        if not found:
            raise InputError("no program in the directory", location=f"directory {word!r}", expected="ELF files")
        names += found
    return tuple(names)


def _is_program(path: Path) -> bool:
    """ELF files; and what cannot be read, to be told of when it is its turn."""
    return path.suffix == ".elf" or is_elf(path) or not os.access(path, os.R_OK)


def run(args: argparse.Namespace, statuses: Mapping[str, int], show: Callable[[Any, str], None]) -> int:
    """Runs what the arguments name and shows it, as data and as text; returns the exit status. `statuses` has those of
    errors by their category."""
    names = programs(args.programs)
    if names == tuple(args.programs) and len(names) == 1:
        result = sim_run.run(args, names[0])
        show(result.to_json(), result.text())
        return result.exit_status
    runs = []
    for name in names:
        runs.append(_attempt(args, name, statuses))
        if not args.json:
            print(runs[-1].line(), flush=True)
    passed = sum(each.exit_status == 0 for each in runs)
    data = {"programs": [each.to_json() for each in runs], "passed": passed, "failed": len(runs) - passed}
    show(data, f"{counted(len(runs), 'program')}: {passed} passed, {len(runs) - passed} failed")
    return next((each.exit_status for each in runs if each.exit_status != 0), 0)


def _attempt(args: argparse.Namespace, name: str, statuses: Mapping[str, int]) -> ProgramRun:
    try:
        result = sim_run.run(args, name)
    except SuperKernelError as error:
        return ProgramRun(name, statuses[error.category], None, error)
    return ProgramRun(name, result.exit_status, result)
