"""LLVM's library, loaded. llvmlite says of what the system refuses that a file cannot be found, and not why."""

from __future__ import annotations

from superkernel.core.errors import MachineError

try:
    import llvmlite.binding as llvm
except (OSError, MemoryError) as error:
    raise MachineError(
        "LLVM cannot be loaded",
        found=str(error.__context__ or error),
        hint="it takes some 300 MB of the address space (ulimit -v)",
    ) from error

__all__ = ["llvm"]
