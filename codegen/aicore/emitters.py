"""Which emitter writes the code of an accelerator kernel: `emit(kb, body, tiling)` of the module that its declaration
names.

An emitter writes the whole function of the role `kb.role` through the layer and returns. Modules are imported on first
use.
"""

from __future__ import annotations

from importlib import import_module

from superkernel.codegen.aicore.emission import Emitter
from superkernel.scheduler.families.aicore import AICORE_KERNELS


def emitter_of(kernel: str) -> Emitter:
    """The emitter of a kernel id. Raises InternalError on an unknown id."""
    emit: Emitter = import_module(f"superkernel.codegen.aicore.kernels.{AICORE_KERNELS[kernel].emitter}").emit
    return emit
