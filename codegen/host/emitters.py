"""The IR of host kernels, and which emitter writes it: `emit(kb, body, tiling)` of the module that the kernel's
declaration names.

An emitter writes the whole function through the builder and returns; the caller finishes it. What its parameter
`tiling` is annotated with are the tilings that it takes; it is not asked where they have no units. Modules are imported
on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import get_type_hints

from llvmlite import ir

from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.outside import outside
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.tiling import Tiling
from superkernel.target.cpu import CpuTarget

Emitter = Callable[[KernelBuilder, Body, Tiling], None]


def emit_ir(kernel: str, body: Body, tiling: Tiling, cpu: CpuTarget, name: str = "kernel") -> str:
    """IR text of a module with the one kernel function."""
    found = tiling.representative(body, cpu)
    if found is None:
        return emit_shared(kernel, body, tiling, cpu, name, None)
    return emit_shared(kernel, found.body, found.tiling, cpu, name, found.sizes)


def emit_shared(
    kernel: str, body: Body, tiling: Tiling, cpu: CpuTarget, name: str, sizes: Mapping[str, int] | None
) -> str:
    """The same of a representative, with the contents of its table of sizes; None: it stands for itself alone."""
    module = ir.Module(name="kernel")
    kb = KernelBuilder(module, name, len(body.operands), cpu, sizes)
    emitter_of(kernel)(kb, body, tiling)
    kb.finish()
    return str(module)


def emitter_of(kernel: str) -> Emitter:
    """The emitter of a kernel id. Raises InternalError on an unknown id."""
    emitter = HOST_KERNELS[kernel].emitter
    return emitter_in(emitter) if isinstance(emitter, str) else outside(kernel, emitter)


@cache
def emitter_in(module: str) -> Emitter:
    """The emitter of a module. It raises InternalError for a tiling that is not its own."""
    write: Emitter = import_module(f"superkernel.codegen.host.{module}").emit
    takes = get_type_hints(write)["tiling"]

    def emit(kb: KernelBuilder, body: Body, tiling: Tiling) -> None:
        if not isinstance(tiling, takes):
            raise InternalError("wrong tiling for an emitter", location=module, found=type(tiling).__name__)
        if tiling.units:
            write(kb, body, tiling)

    return emit
