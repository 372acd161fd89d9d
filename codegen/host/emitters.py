"""Which emitter writes the code of which host kernel: kernel id -> `emit(kb, body, tiling)`.

An emitter writes the whole function through the builder and returns; the caller finishes it. Modules are imported on
first use.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from superkernel.body import Body
from superkernel.codegen.host.builder import KernelBuilder
from superkernel.errors import InternalError
from superkernel.scheduler.tiling import Tiling

Emitter = Callable[[KernelBuilder, Body, Tiling], None]

_MODULES: dict[str, str] = {
    "host.pointwise": "pointwise",
    "host.transpose": "transpose",
    "host.concat": "movement",
    "host.pad": "movement",
    "host.gather": "movement",
    "host.tile": "movement",
    "host.index": "indexing",
    "host.reduce": "reduce",
    "host.argreduce": "reduce",
    "host.cumsum": "reduce",
    "host.softmax": "rowwise",
    "host.norm": "rowwise",
    "host.lrn": "rowwise",
    "host.matmul.packed": "matmul",
    "host.matmul.gemv": "matmul",
    "host.matmul.dynamic": "matmul",
    "host.matmul.generic": "matmul_generic",
    "host.conv.igemm": "conv",
    "host.conv.depthwise": "depthwise",
    "host.conv.generic": "conv_generic",
    "host.conv.transpose": "conv_generic",
    "host.pool": "pool",
    "host.attention": "attention",
    "host.rope": "rope",
    "host.kv_update": "update",
}


def emitter_of(kernel: str) -> Emitter:
    """The emitter of a kernel id; each module has `EMIT: dict[str, Emitter]`. Raises InternalError on an unknown id."""
    module = _MODULES.get(kernel)
    if module is None:
        raise InternalError(f"no emitter for kernel {kernel!r}")
    emit: Emitter = import_module(f"superkernel.codegen.host.{module}").EMIT[kernel]
    return emit
