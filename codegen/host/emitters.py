"""Which emitter writes the code of a host kernel: `emit(kb, body, tiling)` of the module that its declaration names.

An emitter writes the whole function through the builder and returns; the caller finishes it. Modules are imported on
first use.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from superkernel.codegen.host.builder import KernelBuilder
from superkernel.ir.body import Body
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.tiling import Tiling

Emitter = Callable[[KernelBuilder, Body, Tiling], None]


def emitter_of(kernel: str) -> Emitter:
    """The emitter of a kernel id. Raises InternalError on an unknown id."""
    return emitter_in(HOST_KERNELS[kernel].emitter)


def emitter_in(module: str) -> Emitter:
    """The emitter of a module."""
    emit: Emitter = import_module(f"superkernel.codegen.host.{module}").emit
    return emit
