"""The kinds of kernels: `HostKernel` and `AicoreKernel`. They do the same and answer with other types.

Model: `Kernel` has all behaviour. Whoever knows the target gets the kind from `compile`, others ask with `isinstance`;
a type checker then knows which report, explanation and certificate come back. What the kinds declare below is for it
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from superkernel.backends.host.compiled import HostCompiled
from superkernel.runtime.kernel import Kernel

if TYPE_CHECKING:
    from superkernel.backends.aicore.compiled import AicoreCompiled
    from superkernel.backends.aicore.explain import AicoreExplanation
    from superkernel.backends.aicore.report import SimReport
    from superkernel.backends.host.explain import Explanation
    from superkernel.backends.host.report import Report
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
def kernel_of(compiled: HostCompiled) -> HostKernel: ...
@overload
def kernel_of(compiled: AicoreCompiled) -> AicoreKernel: ...
def kernel_of(compiled: HostCompiled | AicoreCompiled) -> HostKernel | AicoreKernel:
    """The kernel of what was compiled, of its kind."""
    return HostKernel(compiled) if isinstance(compiled, HostCompiled) else AicoreKernel(compiled)
