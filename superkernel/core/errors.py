"""Every error a user of SuperKernel can meet.

Model: one exception class per category, because the category says whose move it is: `UserError` (fix the input),
`UnsupportedError` (the input is fine, this version cannot do it), `InternalError` (fix SuperKernel), `MachineError`
(fix the machine: disk, permissions, compiler, CPU). Each carries where (node, value, core), what was expected, what
was found and a hint. Checks collect `Violation`s and raise them all at once with `raise_all`.

Invariant: nothing in the package raises a bare `Exception`, and no error text is thrown away when one error leads to
another (`raise ... from error`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong, with its place. `str()` is one line, a hint behind it."""

    message: str
    location: str = ""  # e.g. "node 'fc1', input 0", "core 1, boundary 7", "file 'm.onnx'"
    expected: str = ""
    found: str = ""
    hint: str = ""

    def within(self, where: str) -> Violation:
        """The same with `where` in front of its place."""
        return replace(self, location=f"{where}, {self.location}" if self.location else where)

    def __str__(self) -> str:
        text = f"{self.location}: {self.message}" if self.location else self.message
        if self.expected:
            text += f"; expected {self.expected}"
        if self.found:
            text += f"; found {self.found}"
        if self.hint:
            text += f" (hint: {self.hint})"
        return text


class SuperKernelError(Exception):
    """Base of all errors of the package. `violations` holds every finding, first the one to fix first."""

    category = "internal"

    def __init__(
        self,
        message: str = "",
        *,
        location: str = "",
        expected: object = "",
        found: object = "",
        hint: str = "",
        violations: Sequence[Violation] = (),
    ) -> None:
        if not violations:
            violations = (Violation(message, location, str(expected), str(found), hint),)
        self.violations: tuple[Violation, ...] = tuple(violations)
        self.message = message or self.violations[0].message
        super().__init__(self._text())

    def _text(self) -> str:
        if len(self.violations) == 1:
            return str(self.violations[0])
        lines = [f"{len(self.violations)} problems"] + [f"  {v}" for v in self.violations]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The machine-readable form that the command line prints with --json."""
        return {
            "error": type(self).__name__,
            "category": self.category,
            "violations": [asdict(v) for v in self.violations],
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), violations=self.violations), ()


class UserError(SuperKernelError):
    """The input is wrong: fix the input."""

    category = "user"


class GraphError(UserError):
    """A graph that does not hold together: cycle, unknown operator, wrong shape, duplicate name."""


class InputError(UserError):
    """A call with missing, unknown or ill-typed arrays or options."""


class DataError(UserError):
    """Values that only a run knows are out of the range that an operator demands (counts, lengths)."""


class FileFormatError(UserError):
    """A file that cannot be read as what its name says: corrupt, truncated, of another schema version."""


class UnsupportedError(SuperKernelError):
    """The input is legal, but this version, or the chosen policy, cannot run it."""

    category = "unsupported"


class PolicyError(UnsupportedError):
    """There are kernels, but what the options allow leaves none: limits and patterns; names the nearest candidate."""


class WorkspaceError(PolicyError):
    """Every kernel needs more working memory than it may have (`max_workspace_bytes`, the target's regions)."""


class DeterminismError(PolicyError):
    """No kernel promises what option `determinism` asks for."""


class ToleranceError(PolicyError):
    """No kernel's bound of the error is below option `tolerance`."""


class DeadlineError(PolicyError):
    """By estimate a run takes longer than option `deadline_us` allows."""


class ManifestError(UnsupportedError):
    """A model needs a kernel that the manifest of a selective build does not list; names its key."""


class InternalError(SuperKernelError):
    """SuperKernel contradicts itself; please report it with the text."""


class VerificationError(InternalError):
    """The independent verifier rejected a plan: the compilation stops, nothing is run."""


class RaceError(InternalError):
    """A run that is watched (option `debug`) touched memory that it must not, or in no order."""


class LinkError(InternalError):
    """The accelerator's program cannot be put together from its objects: symbols, relocations, placement."""


class SimulationError(InternalError):
    """A program for the accelerator went wrong on the simulator: the launch stops.

    `kind` says how, by a name of `superkernel.sim.device.FAILURE_KINDS` ("race", "deadlock", "undefined_command", ...).
    The first violation is the finding; for a deadlock the others are the waiters.
    """

    kind = ""

    def __init__(self, message: str = "", *, kind: str = "", **fields: Any) -> None:
        super().__init__(message, **fields)
        self.kind = kind

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "kind": self.kind}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), kind=self.kind, violations=self.violations), ()


class MachineError(SuperKernelError):
    """The machine refuses: no memory, unwritable cache, missing compiler or CPU feature."""

    category = "environment"


class WatchdogError(SuperKernelError):
    """A kernel did not finish within the watchdog time, or no core of it can go on; says who waits for whom."""


class RegressionError(SuperKernelError):
    """A model does worse than it did: slower, with more memory, or without a kernel that it had, beyond the limits."""


class OutputChangedError(RegressionError):
    """A model's outputs are not what they were, or are promised less firmly, beyond the limits."""


def raise_all(kind: type[SuperKernelError], violations: Sequence[Violation]) -> None:
    """Raise `kind` with all `violations`; returns where there are none."""
    if violations:
        raise kind(violations=violations)
