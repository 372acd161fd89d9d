"""A kernel of the CPU at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.host.bound import BoundKernel, prepare_direct_calls
from superkernel.backends.host.compiled import HostCompiled
from superkernel.core.errors import UnsupportedError
from superkernel.runtime.buffers import check_aliasing, checked_inputs, checked_outputs
from superkernel.runtime.inputs import bind_arguments
from superkernel.runtime.kernel import Io, Kernel, Reconstructor

if TYPE_CHECKING:
    from superkernel.backends.host.executable import HostExecutable
    from superkernel.backends.host.explain import Explanation
    from superkernel.backends.host.report import Report
    from superkernel.display.tracing import Trace
    from superkernel.runtime.result import RunResult
    from superkernel.sync.verify import Certificate

    Inputs = Mapping[str, Any] | Sequence[Any] | None

WARMUP_ROUNDS = 5


class HostKernel(Kernel):
    """A kernel of the CPU at hand. See `Kernel`."""

    _compiled: HostCompiled
    _executable: HostExecutable

    def __init__(self, compiled: HostCompiled, states: Mapping[str, NDArray[Any]] | None = None) -> None:
        super().__init__(compiled, states)
        if not compiled.dumps and not self._counted:
            inputs, outputs = tuple(self._input_types.values()), tuple(self._output_types.values())
            prepare_direct_calls(self, compiled.executable, inputs, outputs, tuple(self._states.values()))

    if TYPE_CHECKING:

        @property
        def certificate(self) -> Certificate: ...

        def run(
            self,
            inputs: Inputs = None,
            *,
            executor: str | None = None,
            profile: bool = False,
            delays: int = 0,
            **named: Any,
        ) -> RunResult[Report]: ...

        def report(self, inputs: Inputs = None, *, rounds: int = 100, warm: bool = False, **named: Any) -> Report: ...

    def bind(self, *args: Any, outputs: Mapping[str, Any] | None = None, **named: Any) -> BoundKernel:
        """Fix the buffers that `bound.run()`, `run_bound()` and the C function `bound.function_address` work on.
        Inputs by position or name (one called `outputs`: by position); outputs by name, new ones where none is given.
        Arrays are used as they are, never copied: they must have exactly the declared dtype and shape, in C order, and
        what is written must not share memory with anything else. The last binding stays alive with the kernel.
        Raises InputError, UnsupportedError with option `dump` and where extents of results are data."""
        given = checked_inputs(self._input_types, bind_arguments(self._input_types, args, named))
        if self._compiled.dumps:
            raise UnsupportedError("a kernel with dumps has no fixed buffers", location=f"kernel {self.name!r}")
        self._require_fixed_extents("fixed buffers")
        results = checked_outputs(self._output_types, outputs)
        check_aliasing(given, results, self._states)
        bound = BoundKernel(self._executable, self.name, given, results, self._states)
        self._bound = bound
        return bound

    def explain(self, node: str | int) -> Explanation:
        """See `Kernel.explain`."""
        from superkernel.backends.host.explain import explain

        return explain(self._compiled, node)

    def save(self, path: str | PathLike[str]) -> None:
        """See `Kernel.save`."""
        from superkernel.backends.saved import save

        image = self._compiled.image
        save(self._compiled, image.objects, path, list(image.constants.image()))

    def _launch_late(self, io: Io, seed: int) -> None:
        self._executable.run_late(io, seed)

    def _measure(self, io: Io, rounds: int, warm: bool) -> Report:
        """Raises UnsupportedError where warm runs are asked for: there are no others."""
        if warm:
            hint = "leave it out: launches of the host are warm, and so are their reports"
            where = f"kernel {self.name!r}"
            raise UnsupportedError(
                "only an accelerator's reports are of a first or a second run", location=where, hint=hint
            )
        from superkernel.backends.host.profile import measure
        from superkernel.backends.host.variants import barriers_of

        return measure(self._compiled, io, rounds, barriers_of(self._compiled) if rounds else {})

    def _times(self, io: Io, rounds: int) -> NDArray[np.int64]:
        return self._executable.time(io, rounds, WARMUP_ROUNDS)

    def _traced(self, io: Io) -> Trace:
        from superkernel.backends.host.profile import traced

        return traced(self._compiled, io)

    def _reconstructor(self) -> Reconstructor:
        from superkernel.backends.saved import by_digest, compile_stored

        made = self._compiled
        return compile_stored, (made.target.kind, made.source, made.cores, made.options, by_digest(made.image.objects))


KERNEL = HostKernel
