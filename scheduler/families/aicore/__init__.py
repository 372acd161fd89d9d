"""Kernel families of the accelerator: each module cuts the work of some kernels and declares them in its `KERNELS`."""

from superkernel.scheduler.hostcall import ReferenceKernel
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.target.aicore import AicoreTarget

AICORE_KERNELS = KernelTable(__name__, AicoreTarget, ReferenceKernel.on(AicoreTarget.kind))
"""All kernels of the accelerator, the NumPy reference on the driving machine among them."""

family_of = AICORE_KERNELS.family_of
