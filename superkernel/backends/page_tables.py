"""Tables that the pages of all targets have."""

from __future__ import annotations

from collections.abc import Iterable

from superkernel.compilation.kernel_uses import KernelUse
from superkernel.display.page import PageTable


def kernels_table(uses: Iterable[KernelUse]) -> PageTable:
    """Why each kernel was chosen, and what it takes and promises."""
    rows = tuple(
        (
            use.subop, use.name, use.row, use.role, use.why + (f"; {use.fallback}" if use.fallback else ""),
            use.workspace_bytes, use.transfer_bytes, use.determinism, use.computed_in,
        )
        for use in uses
    )  # fmt: skip
    head = ("", "sub-operator", "kernel", "role", "why", "workspace bytes", "NumPy bytes", "repeats", "computed in")
    return PageTable("Why these kernels", head, rows)
