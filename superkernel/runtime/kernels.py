"""The kinds of kernels: `HostKernel` and `AicoreKernel`. They do the same and answer with other types.

Model: `Kernel` has all behaviour. Whoever knows the target gets the kind from `compile`, others ask with `isinstance`;
a type checker then knows which report, explanation and certificate come back. What the kinds declare below is for it
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from superkernel.compilation.compiled import Compiled
from superkernel.runtime.kernel import Kernel

if TYPE_CHECKING:
    from superkernel.analysis.explain import Explanation
    from superkernel.analysis.explain_aicore import AicoreExplanation
    from superkernel.analysis.report import Report
    from superkernel.analysis.sim_report import SimReport
    from superkernel.compilation.compiled_aicore import AicoreCompiled
    from superkernel.runtime.result import RunResult
    from superkernel.sync.aicore.verify import AicoreCertificate
    from superkernel.sync.verify import Certificate

    Inputs = Mapping[str, Any] | Sequence[Any] | None


class HostKernel(Kernel):
    """A kernel of the CPU at hand. See `Kernel`."""

    if TYPE_CHECKING:

        @property
        def certificate(self) -> Certificate: ...

        def run(
            self, inputs: Inputs = None, *, executor: str | None = None, profile: bool = False, **named: Any
        ) -> RunResult[Report]: ...

        def report(self, inputs: Inputs = None, *, rounds: int = 100, warm: bool = False, **named: Any) -> Report: ...

        def explain(self, node: str | int) -> Explanation: ...


class AicoreKernel(Kernel):
    """A kernel of an accelerator, on the simulator. See `Kernel`."""

    if TYPE_CHECKING:

        @property
        def certificate(self) -> AicoreCertificate: ...

        def run(
            self, inputs: Inputs = None, *, executor: str | None = None, profile: bool = False, **named: Any
        ) -> RunResult[SimReport]: ...

        def report(
            self, inputs: Inputs = None, *, rounds: int = 100, warm: bool = False, **named: Any
        ) -> SimReport: ...

        def explain(self, node: str | int) -> AicoreExplanation: ...


@overload
def kernel_of(compiled: Compiled) -> HostKernel: ...
@overload
def kernel_of(compiled: AicoreCompiled) -> AicoreKernel: ...
def kernel_of(compiled: Compiled | AicoreCompiled) -> HostKernel | AicoreKernel:
    """The kernel of what was compiled, of its kind."""
    return HostKernel(compiled) if isinstance(compiled, Compiled) else AicoreKernel(compiled)
