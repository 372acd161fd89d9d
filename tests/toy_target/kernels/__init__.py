"""Kernels of the interpreter: each module cuts the work of some and computes it."""

from superkernel.scheduler.kernel_table import KernelTable
from toy_target.target import ToyTarget

TOY_KERNELS = KernelTable(__name__, ToyTarget)
