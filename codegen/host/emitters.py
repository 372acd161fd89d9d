"""Which emitter writes the code of which host kernel: kernel id -> `emit(kb, body, tiling)`.

An emitter writes the whole function through the builder and returns; the caller finishes it. It lives in the module
that has the name of its family's (`scheduler/families`); modules are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from superkernel.codegen.host.builder import KernelBuilder
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families import MODULES
from superkernel.scheduler.tiling import Tiling

Emitter = Callable[[KernelBuilder, Body, Tiling], None]


def emitter_of(kernel: str) -> Emitter:
    """The emitter of a kernel id; each module has `EMIT: dict[str, Emitter]`. Raises InternalError on an unknown id."""
    module = MODULES.get(kernel)
    if module is None:
        raise InternalError(f"no emitter for kernel {kernel!r}")
    emit: Emitter = import_module(f"superkernel.codegen.host.{module}").EMIT[kernel]
    return emit
