"""The host's kernels of reduced precision, whose rows `superkernel.registry.rows_reduced` has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

from superkernel.registry.records import Capability
from superkernel.registry.rows_reduced import reduced_rows
from superkernel.scheduler.kerneldef import KernelDef

MODULES: dict[str, str] = {
    "host.matmul.bf16": "matmul",
    "host.matmul.gemv_bf16": "matmul",
    "host.matmul.tf32": "matmul",
    "host.matmul.int8": "matmul",
    "host.matmul.gemv_int8": "matmul",
    "host.conv.bf16": "matmul",
    "host.conv.int8": "matmul",
    "host.conv.nhwc_bf16": "conv_nhwc_reduced",
    "host.conv.nhwc_int8": "conv_nhwc_int8",
    "host.conv.winograd2_bf16": "winograd_reduced",
    "host.attention.bf16": "attention_reduced",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ReducedKernel(KernelDef):
    """A kernel whose rows stand elsewhere."""

    def rows(self) -> Iterable[Capability]:
        return (row for row in reduced_rows() if row.kernel == self.id)


KERNELS = tuple(
    ReducedKernel(
        id=kernel,
        ops=("conv" if ".conv." in kernel else kernel.split(".")[1],),
        family=import_module(f"superkernel.scheduler.families.{module}").FAMILY,
        emitter=module,
        micro="",
        layout="channels_last" if ".conv." in kernel else None,
    )
    for kernel, module in MODULES.items()
)
