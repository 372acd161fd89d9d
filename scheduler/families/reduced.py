"""The host's kernels of reduced precision, whose rows `superkernel.registry.rows_reduced` has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from superkernel.core.formats import BF16, BF16X3, INT8, INT8X2, WEIGHTS8
from superkernel.registry.records import Capability
from superkernel.registry.rows_reduced import reduced_rows
from superkernel.scheduler.families.attention import AttentionFamily
from superkernel.scheduler.families.conv_nhwc import NhwcFamily
from superkernel.scheduler.families.matmul import MatmulFamily
from superkernel.scheduler.families.winograd import WinogradFamily
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.scheduler.tiling import KernelFamily


@dataclass(frozen=True, kw_only=True, eq=False)
class ReducedKernel(KernelDef):
    """A kernel whose rows stand elsewhere."""

    def rows(self) -> Iterable[Capability]:
        return (row for row in reduced_rows() if row.kernel == self.id)


FAMILIES: dict[str, tuple[KernelFamily, str]] = {
    "host.matmul.bf16": (MatmulFamily(BF16), "matmul"),
    "host.matmul.gemv_bf16": (MatmulFamily(BF16), "matmul"),
    "host.matmul.tf32": (MatmulFamily(BF16X3), "matmul"),
    "host.matmul.int8": (MatmulFamily(INT8), "matmul"),
    "host.matmul.gemv_int8": (MatmulFamily(INT8X2, WEIGHTS8), "matmul"),
    "host.conv.bf16": (MatmulFamily(BF16), "matmul"),
    "host.conv.int8": (MatmulFamily(INT8), "matmul"),
    "host.conv.nhwc_bf16": (NhwcFamily(BF16), "conv_nhwc"),
    "host.conv.nhwc_int8": (NhwcFamily(INT8), "conv_nhwc"),
    "host.conv.winograd2_bf16": (WinogradFamily(2, BF16), "winograd"),
    "host.attention.bf16": (AttentionFamily(BF16), "attention"),
}

KERNELS = tuple(
    ReducedKernel(
        id=kernel,
        ops=("conv" if ".conv." in kernel else kernel.split(".")[1],),
        family=family,
        emitter=emitter,
        micro="",
        layout="channels_last" if ".conv." in kernel else None,
    )
    for kernel, (family, emitter) in FAMILIES.items()
)
