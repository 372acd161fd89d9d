"""How the work of one sub-operator is cut: the interface between kernel families, scheduler and emitters.

Model: a `Tiling` cuts a body into `units` indivisible pieces of work, numbered 0..units-1 along ONE axis (rows,
columns, panels, images x channels, ...). A core executes a contiguous range [begin, end) of units with one call of
the kernel function. The tiling says for any range exactly which bytes of which operand are read and written; sync and
verification rest on that, and tests hold each load and store of the emitted kernel to it.

One thing is not declared: the gaps of a load that is picked apart. Its first and its last byte are declared reads, what
lies between belongs to the operand, and values of gaps are dropped. So a race there has no effect (in LLVM's memory
model too, where it leaves those bytes undefined), and to declare them would make tasks wait for nothing.

A tiling is a frozen dataclass of plain values: together with the `Body` it determines the machine code. Units, accesses
and packing ask nothing of a target; time does, and so `CostedTiling` and `KernelFamily` are generic in their kind of
target. Architecture invariant: families know nothing of cores, addresses or other sub-operators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Never, TypeVar

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError, WorkspaceError
from superkernel.core.formats import NumberFormat
from superkernel.core.frozen import frozen
from superkernel.core.tensor import Region, TensorType
from superkernel.ir.body import Body, SubOperator, View
from superkernel.ops.opdef import Array
from superkernel.target.base import Target

TargetT = TypeVar("TargetT", bound=Target, contravariant=True)


@frozen()
class Access:
    """Bytes of one operand (relative to its start) that a unit range reads or writes. For packed constants: of the
    packed form."""

    operand: int
    write: bool
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class Pack(ABC):
    """A compile-time transformation of a constant operand (weights into panels). Frozen and printable: part of the
    cache key."""

    @abstractmethod
    def apply(self, array: Array) -> Array:
        """The packed bytes as a contiguous array (any shape); its first byte will be 64-byte aligned."""

    def packed_bytes(self, kind: TensorType) -> int:
        """Size of the packed form of an array of that type. The default packs zeros to see; override where that is
        slow."""
        return int(self.apply(np.broadcast_to(np.zeros((), kind.dtype.numpy), kind.shape)).nbytes)


@dataclass(frozen=True)
class Representative:
    """The body and the tiling that stand for all that differ from them in some sizes, and these `sizes` of one of them,
    in the order of the table that its code finds them in. Code is emitted from body and tiling alone, so that all that
    have the same share it; whatever of them stands for several is too large to be right for any."""

    body: Body
    tiling: Tiling
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Tiling(ABC):
    """One way to cut a body. Subclasses add their block sizes as fields; all fields must be hashable and print
    canonically."""

    @property
    @abstractmethod
    def units(self) -> int:
        """Number of work units, >= 1 (0 only where the output is empty)."""

    def named(self, body: Body) -> tuple[str, Mapping[str, int]] | None:
        """What the cut adds to the kernel's canonical name: an operator ("": the row's), and its tile's sizes by field;
        None: nothing."""
        return None

    @property
    def format(self) -> NumberFormat | None:
        """The number format that products are computed in; None: kernels that know their element types only."""
        return None

    @property
    def scratch_bytes(self) -> int:
        """Per-core scratch memory the kernel needs."""
        return 0

    @abstractmethod
    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        """What units [begin, end) read and write."""

    def packs(self, body: Body) -> Mapping[int, Pack]:
        """Operand index -> packing, for constant operands that the kernel wants in another layout."""
        return {}

    def representative(self, body: Body, target: Target) -> Representative | None:
        """What the code of the body, cut so, is emitted from where other sizes share it; None: from these themselves.
        Two with equal representatives compute by the same instructions."""
        return None

    def align(self, body: Body, unit: int) -> int:
        """The nearest unit at which a core boundary is better placed (e.g. on a cache line); default: any unit."""
        return unit


@dataclass(frozen=True)
class CostedTiling(Tiling, Generic[TargetT]):
    """A tiling with the time that it takes on a kind of target."""

    @abstractmethod
    def cost_ns(self, body: Body, begin: int, end: int, target: TargetT) -> float:
        """Estimated time of one core for the range, caches warm for activations, weights from L2/L3 as they fit."""

    def stored_bytes(self, body: Body, begin: int, end: int) -> int | None:
        """How many bytes the range stores at most, where that is less than what `accesses` names: where they go may be
        known at run time only. None: all of these."""
        return None


class CannotCut(UnsupportedError):
    """The kernel chosen for a sub-operator turns out not to do for it: `sub`, and the kernel's own words."""

    def __init__(self, sub: SubOperator, error: UnsupportedError) -> None:
        super().__init__(violations=error.violations)
        self.sub, self.error = sub, error


class KernelFamily(ABC, Generic[TargetT]):
    """A kernel family on one kind of target: tilings for bodies (scheduler side). The emitter with the same kernel id
    lives in codegen."""

    on_control_unit: ClassVar[bool] = False
    """Whether a control unit computes it, element by element, and no engine."""
    any_view: ClassVar[bool] = False
    """Whether the kernel reads every input through any affine view."""
    view_slots: ClassVar[tuple[int, ...]] = ()
    """Anchor slots that it reads through any affine view."""
    stores_only: ClassVar[bool] = False
    """Whether it stores its results as they are, row-major: no program behind them, no view."""
    prologue_slots: ClassVar[tuple[int, ...]] = ()
    """Anchor slots in front of which it evaluates a pointwise program while reading."""

    @abstractmethod
    def tilings(self, kernel: str, body: Body, target: TargetT) -> Sequence[CostedTiling[TargetT]]:
        """Candidate tilings, best guess first (the scheduler weighs cost_ns and sync). Never empty for a legal body.
        All compute the same bits: which one is taken depends on the number of cores."""

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        """Whether the kernel reads anchor slot `slot` through this view without a copy. Dense views are always
        accepted."""
        return self.any_view or slot in self.view_slots or view.is_dense

    def reads_any_order(self, kernel: str, slot: int) -> bool:
        """Whether a kernel of channels-last images reads anchor slot `slot` as well where it lies otherwise."""
        return False

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        """Whether the kernel evaluates a pointwise program in front of anchor slot `slot` while reading it."""
        return slot in self.prologue_slots

    def prologue_may_store(self, kernel: str, op: str, slot: int) -> bool:
        """Whether the kernel evaluates such a program exactly once per element, so that it may also store (a residual
        sum in front of a norm that others read too)."""
        return False

    def accepts_epilogue(self, kernel: str, target: TargetT) -> bool:
        """Whether the kernel evaluates a pointwise program on its results where it runs on this target."""
        return not self.stores_only

    def accepts_store(self, kernel: str, op: str, view: View, dtype: DType) -> bool:
        """Whether the epilogue can store through this view of the anchor's result. Row-major is always accepted, by
        kernels that compute images under the channels-last policy dense channels-last views instead."""
        return not self.stores_only


TilingT = TypeVar("TilingT", bound=Tiling)


def within_workspace(tilings: Sequence[TilingT], limit_bytes: int | None) -> Sequence[TilingT]:
    """The tilings that keep to a limit of working memory per core; None: there is no limit."""
    return tilings if limit_bytes is None else [t for t in tilings if t.scratch_bytes <= limit_bytes]


def raise_workspace(sub: SubOperator, tilings: Sequence[Tiling], limit_bytes: int | None) -> Never:
    """No tiling of a sub-operator keeps to the limit: say what the most modest would need. Raises CannotCut."""
    least = min(tiling.scratch_bytes for tiling in tilings)
    location, found = f"sub-operator {sub.name!r}, kernel {sub.kernel}", f"{limit_bytes} bytes"
    hint = f"more working memory (option 'max_workspace_bytes', region 'tcm' of the target): >= {least} bytes"
    message = "every cut of the kernel needs more working memory than it may have"
    error = WorkspaceError(message, location=location, expected=f">= {least} bytes", found=found, hint=hint)
    raise CannotCut(sub, error) from None


def pack_bytes(pack: Pack | None, array: Array) -> NDArray[np.uint8]:
    """The bytes of a constant operand as the kernel will see them."""
    packed = np.ascontiguousarray(array if pack is None else pack.apply(array))
    return packed.reshape(-1).view(np.uint8)
