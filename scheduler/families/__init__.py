"""Kernel families of the host by kernel id: how each cuts its work. Modules are imported on first use.

`MODULES` also names the emitters' modules in `codegen/host`: a family and its emitter share a name.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from superkernel.core.errors import InternalError
from superkernel.scheduler.tiling import Family

MODULES: dict[str, str] = {
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
    "host.matmul.bf16": "matmul_reduced",
    "host.matmul.gemv_bf16": "matmul_reduced",
    "host.matmul.tf32": "matmul_reduced",
    "host.matmul.int8": "matmul_reduced",
    "host.matmul.gemv_int8": "matmul_reduced",
    "host.conv.igemm": "conv",
    "host.conv.depthwise": "depthwise",
    "host.conv.nhwc": "conv_nhwc",
    "host.conv.winograd2": "winograd",
    "host.conv.winograd4": "winograd",
    "host.conv.depthwise_nhwc": "window_nhwc",
    "host.pool_nhwc": "window_nhwc",
    "host.conv.bf16": "conv_reduced",
    "host.conv.int8": "conv_reduced",
    "host.conv.nhwc_bf16": "conv_nhwc_reduced",
    "host.conv.nhwc_int8": "conv_nhwc_int8",
    "host.conv.winograd2_bf16": "winograd_reduced",
    "host.conv.generic": "conv_generic",
    "host.conv.transpose": "conv_generic",
    "host.pool": "pool",
    "host.attention": "attention",
    "host.attention.bf16": "attention_reduced",
    "host.rope": "rope",
    "host.kv_update": "update",
    "host.grouped_matmul": "grouped",
    "host.tiling": "grouped",
}


@cache
def family_of(kernel: str) -> Family:
    """The family that serves a kernel id; each module has `FAMILY: Family` or `FAMILIES: tuple[Family, ...]`."""
    module = MODULES.get(kernel)
    if module is None:
        raise InternalError(f"no kernel family for {kernel!r}")
    found = import_module(f"superkernel.scheduler.families.{module}")
    for family in getattr(found, "FAMILIES", None) or (found.FAMILY,):
        if kernel in family.kernels:
            return family  # type: ignore[no-any-return]
    raise InternalError(f"module {module!r} does not serve kernel {kernel!r}")
