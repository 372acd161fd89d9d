"""What every target is, whatever its kind: a frozen description that code may ask without knowing which it holds.

Model: a target is data alone, hashable; equal targets give equal code. `kind` names the backend that compiles for it
(`superkernel.backends`) and the kernels of the registry that run on it. What grouping has to know of a target stands
here as properties of the kind; figures belong to each target's own class, which only code of that kind sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar


class Target(ABC):
    """See the module docstring."""

    kind: ClassVar[str]
    """Name of the backend, and the `device` of the kernels' rows."""
    core_types: ClassVar[bool] = False
    """Whether there are cores of several types, each with kernels of its own."""
    separates_scopes: ClassVar[bool] = False
    """Whether scopes and types of kernels that nodes name decide what may be one kernel."""
    image_layouts: ClassVar[tuple[str, ...]] = ("row_major",)
    """The layouts that there are kernels of images for (`scheduler/storage.py`); of several, a policy takes one for a
    graph, and the registry sees it."""
    image_ranks: ClassVar[tuple[int, ...]] = (3, 4)
    """Dimensions of the images that they are for, batch and channels included."""
    computes_integers: ClassVar[bool] = False
    """Whether products of quantised values are worth computing in integers: there are kernels for zero points and for
    convolutions."""
    signed_integers: ClassVar[bool] = False
    """Whether integers are multiplied as signed bytes only, without zero points."""
    tables_beside: ClassVar[bool] = False
    """Whether tilings that depend on data may be computed beside the cores that run kernels (option `tiling`)."""

    begins_inside: ClassVar[bool] = False
    """Whether what a kernel reads may begin anywhere inside a buffer, so that kernels which differ in that alone are
    one. Where it is not, code may count on how whole buffers are aligned."""

    @property
    def kernel_kind(self) -> str:
        """The kind whose kernels run on it, as their rows name it."""
        return self.kind

    @property
    def layouts_compete(self) -> bool:
        """Whether the layout of images is a choice."""
        return len(self.image_layouts) > 1

    @abstractmethod
    def identity(self) -> tuple[str, str, str]:
        """Triple, tier and features: what two equal targets share in every process."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What clauses of the registry may ask, by name."""

    def measured_ns(self, code: Callable[[], str], constants_bytes: int) -> float | None:
        """What was measured of all units of a kernel function on one core of this machine; None where nothing was.
        `code`: the text that determines the function; `constants_bytes`: that it reads."""
        return None

    def regions(self) -> Mapping[str, int]:
        """Memories that a program must fit into, and their bytes, by name; none: the system has enough."""
        return {}

    def extensions(self) -> frozenset[str]:
        """Names of the instruction-set extensions that code may use."""
        return frozenset()


@lru_cache(maxsize=64)
def identity_of(target: Target) -> tuple[str, str, str]:
    """`Target.identity`, remembered: some digest a whole description."""
    return target.identity()
