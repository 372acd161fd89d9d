"""The records of the registry: what a kernel can do, what a computation needs, and what policy governs the choice.

Model: a `Capability` is one row: pure data, everything about one kernel variant on one instruction-set tier. What
depends on the problem (time, workspace) is an `Estimate`, which the registry is given a function for. A `Requirement`
is one problem on one platform under one policy. `selection.py` brings the two together.

Invariants: all records are frozen; a row's canonical name is a view of its fields (`lint.py`); the requirement's key is
the same in every process and for every order of registration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.core.option import HOST
from superkernel.core.options import OPTIONS, Options
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body
from superkernel.ops.opdef import AttrValue
from superkernel.registry.canonical import digest
from superkernel.registry.predicates import Clause
from superkernel.target.base import Target, identity_of


class KernelRole(Enum):
    """How much a kernel is made for its problem. Selection prefers them in this order."""

    TUNED = "tuned"
    GENERIC = "generic"
    REFERENCE = "reference"

    @property
    def rank(self) -> int:
        """0 is preferred."""
        return _ROLE_RANK[self]


_ROLE_RANK = {role: rank for rank, role in enumerate(KernelRole)}


class Determinism(Enum):
    """What is promised of two runs on equal inputs."""

    NONE = "none"
    RUN_TO_RUN = "run-to-run"  # equal bits on the same machine with the same number of cores
    BITWISE = "bitwise"  # equal bits for any number of cores

    @property
    def rank(self) -> int:
        """Higher promises more."""
        return _DETERMINISM_RANK[self]


_DETERMINISM_RANK = {level: rank for rank, level in enumerate(Determinism)}


class NumericClass(Enum):
    """Where a kernel's rounding error comes from."""

    EXACT = "exact"  # moves, integers: the reference's bits
    ROUNDED = "rounded"  # a bounded number of roundings per element
    ACCUMULATED = "accumulated"  # a sum whose error may grow with its length


@dataclass(frozen=True, slots=True)
class Transform:
    """Work on an operand ahead of the kernel: pack, im2col, reorder, quantise. Amortised: once when compiling, else per
    call."""

    kind: str
    slot: int
    amortised: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a kernel takes for a problem on one core, cut the best way it knows.

    time_ns: caches warm for activations; `measured` on this machine, or by a model, whose time is `modelled_ns` anyway.
    workspace: bytes per memory region (`scratch`: of a core, while it runs; `packed`: persistent copies of constants).
    packed: the latter per input slot. constant_bytes: of all constants, packed or as they are.
    """

    time_ns: float
    workspace: Mapping[str, int] = field(default_factory=dict)
    packed: Mapping[int, int] = field(default_factory=dict)
    measured: bool = False
    modelled_ns: float = 0.0
    constant_bytes: int = 0

    @property
    def temporary_bytes(self) -> int:
        """Of all regions, while it runs."""
        return sum(count for region, count in self.workspace.items() if region != "packed")


@dataclass(frozen=True, slots=True)
class Capability:
    """One kernel variant. `kernel` is the id by which families and emitters know it; `id` is unique among rows.

    input_dtypes: per input slot, the last one for all further slots; an absent optional input always passes.
    limits: everything else it demands of the problem (shape, stride, constness, ...).
    sources: of a kernel from outside, a digest of what it is made from.
    """

    id: str
    kernel: str
    ops: tuple[str, ...]
    name: str
    role: KernelRole
    input_dtypes: tuple[frozenset[DType], ...] = ()
    accumulator: DType | None = None
    layouts: frozenset[str] = frozenset({"dense", "view", "program"})
    limits: tuple[Clause, ...] = ()
    tier: str | None = None
    features: frozenset[str] = frozenset()
    device: str | None = "cpu"
    core_type: str | None = None
    tile: tuple[tuple[str, int], ...] = ()
    transforms: tuple[Transform, ...] = ()
    determinism: Determinism = Determinism.BITWISE
    numeric: NumericClass = NumericClass.ROUNDED
    error_ulps: float = 4.0
    code_bytes: int = 4096
    sources: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What the patterns of a policy are matched against."""
        return (self.id, self.kernel, self.name)


ALL_CORES = "all"
"""Core type of a platform that has every type its device knows."""

_CHOICES = {
    "objective": OPTIONS["objective"].choices,
    "fallback": OPTIONS["fallback"].choices,
    "precision": OPTIONS["precision"].choices_on(HOST),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What governs the choice. Patterns are shell-like and match a row's id, kernel or canonical name.

    max_workspace_bytes: of one core. tolerance: relative error that is acceptable. fallback: whether the reference may
    be taken. precision: what f32 problems may be computed in on a CPU; `auto`: f32, or what a problem
    itself allows. tcm_bytes, flash_bytes: what a target with such memories has for a kernel's working memory on one
    core, and for the constants packed for it.
    """

    objective: str = "latency"
    determinism: Determinism = Determinism.NONE
    max_workspace_bytes: int | None = None
    tolerance: float | None = None
    fallback: str = "warn"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    pin: tuple[str, ...] = ()
    precision: str = "auto"
    tcm_bytes: int | None = None
    flash_bytes: int | None = None

    def __post_init__(self) -> None:
        wrong: list[Violation] = []
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                found = repr(getattr(self, name))
                wrong.append(Violation("not a legal choice", f"policy {name!r}", " | ".join(choices), found))
        for name in ("max_workspace_bytes", "tolerance", "tcm_bytes", "flash_bytes"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                wrong.append(Violation("negative", f"policy {name!r}", "a number >= 0, or None", repr(value)))
        for name in ("allow", "deny", "pin"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(p, str) for p in value):
                wrong.append(Violation("not a tuple of patterns", f"policy {name!r}", "tuple of str", repr(value)))
        raise_all(InputError, wrong)

    @staticmethod
    def of(options: Options, target: Target | None = None) -> Policy:
        """The policy that compile options express, within the memories of a target."""
        regions = {} if target is None else target.regions()
        workspace, tolerance = options.max_workspace_bytes, options.tolerance
        return Policy(
            options.objective,
            Determinism(options.determinism),
            max_workspace_bytes=None if isinstance(workspace, str) else workspace,
            tolerance=None if isinstance(tolerance, str) else tolerance,
            fallback=options.fallback,
            allow=options.allow,
            deny=options.deny,
            pin=options.pin,
            precision=options.precision if options.precision in _CHOICES["precision"] else "auto",
            tcm_bytes=regions.get("tcm"),
            flash_bytes=regions.get("flash"),
        )

    @property
    def workspace_max(self) -> int | None:
        """What a kernel may use on one core while it runs; None: any amount."""
        limits = [limit for limit in (self.max_workspace_bytes, self.tcm_bytes) if limit is not None]
        return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class Platform:
    """Where it will run. `core_type`: the one there is to run on, None on devices with one kind of core, `ALL_CORES`
    where any will do."""

    target: Target
    core_type: str | None = None

    @property
    def device(self) -> str:
        """The kind of target whose kernels run there."""
        return self.target.kernel_kind


@dataclass(frozen=True, slots=True)
class TensorNeed:
    """One input: `source` is "dense", "view" (strided or broadcast) or "program" (computed by a prologue)."""

    type: TensorType
    constant: bool = False
    source: str = "dense"
    strides: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = ["const"] * self.constant + ([self.source] if self.source != "dense" else [])
        return " ".join([*words, str(self.type)])


@dataclass(frozen=True, slots=True)
class Requirement:
    """One problem. `program` are the pointwise operators fused around the anchor (or, for op "pointwise", all there
    is), `program_steps` each with the element types of its operand and its result. `layout`: how images lie,
    "row_major" or "channels_last". `program_body`: the whole program, for op "pointwise"."""

    op: str
    inputs: tuple[TensorNeed | None, ...]
    outputs: tuple[TensorType, ...]
    attrs: tuple[tuple[str, AttrValue], ...]
    platform: Platform
    policy: Policy = Policy()
    program: frozenset[str] = frozenset()
    program_dtypes: frozenset[DType] = frozenset()
    program_steps: frozenset[tuple[str, DType, DType]] = frozenset()
    layout: str = "row_major"
    program_body: Body | None = None
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = (self.op, self.inputs, self.outputs, self.attrs, self.platform, self.policy, self.program)
        rest = (self.program_dtypes, self.program_steps, self.layout, self.program_body)
        object.__setattr__(self, "_hash", hash((*parts, *rest)))

    def __hash__(self) -> int:
        return self._hash

    def problem(self) -> dict[str, Any]:
        """What is to be computed, without platform and policy, as canonical plain data."""
        return {
            "op": self.op,
            "inputs": [None if i is None else [str(i), list(i.strides)] for i in self.inputs],
            "outputs": [str(t) for t in self.outputs],
            "attrs": {name: plain(value) for name, value in self.attrs},
            "program": sorted(self.program),
            "program_dtypes": sorted(d.value for d in self.program_dtypes),
            "program_steps": sorted([op, a.value, b.value] for op, a, b in self.program_steps),
            **({"layout": self.layout} if self.layout != "row_major" else {}),
        }

    @property
    def key(self) -> str:
        """Canonical key of the whole requirement, the same in every process."""
        policy = self.policy
        return digest(
            {
                "problem": self.problem(),
                "target": [*identity_of(self.platform.target), self.platform.device, self.platform.core_type],
                "policy": {name: plain(getattr(policy, name)) for name in Policy.__dataclass_fields__},
            }
        )

    def __str__(self) -> str:
        args = ", ".join("_" if i is None else str(i) for i in self.inputs)
        attrs = "".join(f"; {name}={plain(value)}" for name, value in self.attrs)
        attrs += "; layout=channels_last" if self.layout == "channels_last" else ""
        program = " + {" + ", ".join(sorted(self.program)) + "}" if self.program else ""
        return f"{self.op}({args}{attrs}){program} -> {', '.join(map(str, self.outputs))}"


Estimator = Callable[[str, Requirement], Estimate | None]
"""What the kernel of an id takes for a problem for which it is eligible; None where that is not known."""


def plain(value: Any) -> Any:
    """A record's value as JSON data."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (frozenset, set)):
        return sorted((plain(v) for v in value), key=str)
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, Transform):
        return {name: plain(getattr(value, name)) for name in Transform.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return value


def row_data(row: Capability) -> dict[str, Any]:
    """A row as canonical plain data: what its content hash covers."""
    data = {name: plain(getattr(row, name)) for name in Capability.__dataclass_fields__}
    data["limits"] = [[c.reason.value, str(c)] for c in row.limits]
    return data
