"""A microcontroller's kernel as users hold it: it explains itself, and is exported; what runs, runs elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superkernel.backends.microcontroller.compiled import MicrocontrollerCompiled, NotHere
from superkernel.runtime.kernel import Kernel

if TYPE_CHECKING:
    from superkernel.backends.host.explain import Explanation


class MicrocontrollerKernel(Kernel):
    """What it leaves out, reports and saved kernels among it, the base class refuses."""

    _compiled: MicrocontrollerCompiled
    _executable: NotHere

    def explain(self, node: str | int) -> Explanation:
        """See `Kernel.explain`."""
        from superkernel.backends.host.explain import explain

        return explain(self._compiled, node)


KERNEL = MicrocontrollerKernel
