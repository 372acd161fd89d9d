"""Which emitter writes the code of which accelerator kernel: kernel id -> `emit(kb, body, tiling)`.

An emitter writes the whole function of the role `kb.role` through the layer and returns. It lives in the module of
`codegen/aicore/kernels` that has the name of its family's module; modules are imported on first use.
"""

from __future__ import annotations

from importlib import import_module

from superkernel.codegen.aicore.emission import Emitter
from superkernel.core.errors import InternalError
from superkernel.scheduler.families.aicore import MODULES


def emitter_of(kernel: str) -> Emitter:
    """The emitter of a kernel id; each module has `EMIT: dict[str, Emitter]`. Raises InternalError on an unknown id."""
    module = MODULES.get(kernel)
    if module is None:
        raise InternalError(f"no emitter for kernel {kernel!r}")
    emit: Emitter = import_module(f"superkernel.codegen.aicore.kernels.{module}").EMIT[kernel]
    return emit
