"""Kernel families of the host: each module cuts the work of some kernels and declares them in its `KERNELS`."""

from superkernel.scheduler.hostcall import ReferenceKernel
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.target.cpu import CpuTarget

HOST_KERNELS = KernelTable(__name__, CpuTarget, ReferenceKernel.on(CpuTarget.kind))
"""All kernels of the host, the NumPy reference among them."""

family_of = HOST_KERNELS.family_of
