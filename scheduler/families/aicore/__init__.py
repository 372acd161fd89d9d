"""Kernel families of the accelerator by kernel id: how each cuts its work. Modules are imported on first use.

`MODULES` also names the emitters' modules in `codegen/aicore/kernels`: a family and its emitter share a name.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from superkernel.core.errors import InternalError
from superkernel.scheduler.tiling import Family

MODULES: dict[str, str] = {
    "aicore.matmul": "matmul",
    "aicore.conv": "conv",
    "aicore.attention": "attention",
    "aicore.pointwise": "pointwise",
    "aicore.movement": "movement",
    "aicore.gather": "gather",
    "aicore.kv_update": "update",
    "aicore.norm": "rows",
    "aicore.softmax": "rows",
    "aicore.reduce": "rows",
    "aicore.scan": "rows",
    "aicore.pool": "pool",
    "aicore.rope": "rope",
    "aicore.grouped_matmul": "grouped",
    "aicore.tiling": "tiling",
    "aicore.scalar": "scalar",
}
CONTROL_UNIT = "aicore.scalar"
"""What no engine computes, by a control unit: element by element, where it is small."""


@cache
def family_of(kernel: str) -> Family:
    """The family that serves a kernel id; each module has `FAMILY: Family` or `FAMILIES: tuple[Family, ...]`."""
    module = MODULES.get(kernel)
    if module is None:
        raise InternalError(f"no kernel family for {kernel!r}")
    found = import_module(f"superkernel.scheduler.families.aicore.{module}")
    for family in getattr(found, "FAMILIES", None) or (found.FAMILY,):
        if kernel in family.kernels:
            return family  # type: ignore[no-any-return]
    raise InternalError(f"module {module!r} does not serve kernel {kernel!r}")
