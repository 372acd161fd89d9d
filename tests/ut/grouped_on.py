"""Graphs grouped for a target, by the kernels that its registry takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from superkernel.compilation.choice import KernelChooser
from superkernel.core.options import Options
from superkernel.ir.body import Body
from superkernel.ir.graph import Graph
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.group import group
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.scheduler.layout import storage_policy
from superkernel.scheduler.storage import StoragePolicy
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget, cpu_target

TargetT = TypeVar("TargetT", bound=Target)
AVX2 = cpu_target("x86_64-unknown-linux-gnu", "avx2", ())


def chooser_on(target: TargetT, kernels: KernelTable[TargetT], **options: Any) -> KernelChooser:
    """The registry's choice, NumPy's without a warning."""
    return KernelChooser(target, Options(**{"fallback": "allow", **options}), kernels.registry)


def grouped_on(
    graph: Graph,
    target: TargetT,
    kernels: KernelTable[TargetT],
    family: KernelFamily[TargetT] | None = None,
    choose: Callable[[Body], str] | None = None,
    storage: StoragePolicy | None = None,
    **options: Any,
) -> Grouping:
    """A grouping by the registry's kernels, or by those of `choose`. `family` answers in place of each kernel's own."""
    chosen = Options(**options)
    choose = choose or chooser_on(target, kernels, **options).choose
    families = kernels.family_of if family is None else lambda _: family
    return group(graph, choose, target, chosen, families, storage or storage_policy(graph, choose, target, chosen))


def host_group(graph: Graph, family: KernelFamily[CpuTarget] | None = None, **given: Any) -> Grouping:
    """`grouped_on` a CPU with AVX2."""
    return grouped_on(graph, AVX2, HOST_KERNELS, family, **given)
