"""What a kernel demands, as small objects that both decide and print: an explanation cannot drift from the logic.

Model: a requirement is flattened to *facts* (name -> plain value, see `facts.py`). A `Clause` says which test a fact
must pass and under which `Reason` its failure is filed. A kernel is eligible where all its clauses hold.

Invariants: clauses are hashable values; evaluating one has no effects; the enum of reasons is closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple

FactValue = Any  # bool, int, float, str, None, DType, tuple or frozenset of these
Facts = Mapping[str, FactValue]


class Reason(Enum):
    """Why a kernel is not eligible. Closed: tools may switch over it."""

    DTYPE = "dtype"
    LAYOUT = "layout"
    RANK = "rank"
    SHAPE = "shape"
    STRIDE = "stride"
    PADDING = "padding"
    GROUPS = "groups"
    ALIGNMENT = "alignment"
    ATTRIBUTE = "attribute"
    CONSTANT = "constant"  # an operand must be known when compiling, or must not
    ACTIVATION = "activation"
    CPU_FEATURE = "cpu-feature"
    DEVICE = "device"
    CORE_TYPE = "core-type"
    WORKSPACE = "workspace"
    DETERMINISM = "determinism"
    TOLERANCE = "tolerance"
    PRECISION = "precision"  # narrower than the policy allows
    FALLBACK = "fallback"  # the policy forbids the reference
    ALLOWED = "allowed"  # not among the policy's allow patterns
    DENIED = "denied"  # among its deny patterns


class Failure(NamedTuple):
    """One failed clause of one candidate."""

    reason: Reason
    field: str
    required: str
    actual: str

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.field} must be {self.required}, is {self.actual}"


class Test(ABC):
    """A test of one fact. `facts` is there for tests whose bound depends on other facts."""

    __slots__ = ()
    __test__ = False  # no pytest class
    passes_absent: ClassVar[bool] = False
    """True of tests that an absent fact always passes (limits nobody set): they are not evaluated then."""
    asks_kernel: ClassVar[bool] = False
    """True of tests that ask the kernel itself: they are evaluated where all others hold, since a kernel can only tell
    of problems that it computes."""

    @abstractmethod
    def holds(self, value: FactValue, facts: Facts) -> bool:
        """True where the value passes."""

    @abstractmethod
    def required(self, facts: Facts) -> str:
        """The demand in words, to stand behind "must be"."""


@dataclass(frozen=True, slots=True)
class OneOf(Test):
    """The value is one of a set."""

    values: frozenset[FactValue]

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return value in self.values

    def required(self, facts: Facts) -> str:
        return " | ".join(sorted(map(show, self.values - {None}))) or "absent"


@dataclass(frozen=True, slots=True)
class Within(Test):
    """A number between two inclusive bounds, None = open."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: FactValue, facts: Facts) -> bool:
        if value is None:
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def required(self, facts: Facts) -> str:
        if self.low is not None and self.high is not None:
            return f"{self.low}..{self.high}"
        return f">= {self.low}" if self.high is None else f"<= {self.high}"


@dataclass(frozen=True, slots=True)
class Includes(Test):
    """A set that has at least these members (CPU features)."""

    members: frozenset[FactValue]

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return bool(value is not None and value >= self.members)

    def required(self, facts: Facts) -> str:
        return "a superset of " + show(self.members)


@dataclass(frozen=True, slots=True)
class Among(Test):
    """A set with members from these only (fused operators, dtypes of a program)."""

    members: frozenset[FactValue]

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return value is None or value <= self.members

    def required(self, facts: Facts) -> str:
        return "a subset of " + show(self.members)


@dataclass(frozen=True, slots=True)
class Clause:
    """`facts[field]` must pass `test`."""

    reason: Reason
    field: str
    test: Test

    def holds(self, facts: Facts) -> bool:
        """True where the demand is met."""
        return self.test.holds(facts.get(self.field), facts)

    def failure(self, facts: Facts) -> Failure:
        """The printed form, for a clause that does not hold."""
        return Failure(self.reason, self.field, self.test.required(facts), show(facts.get(self.field)))

    def __str__(self) -> str:
        return f"{self.field} {self.test.required({})}"


def one_of(reason: Reason, field: str, *values: FactValue) -> Clause:
    """Clause: the field is one of `values`."""
    return Clause(reason, field, OneOf(frozenset(values)))


def within(reason: Reason, field: str, low: float | None = None, high: float | None = None) -> Clause:
    """Clause: the field lies between two inclusive bounds."""
    return Clause(reason, field, Within(low, high))


def show(value: FactValue) -> str:
    """A value in a form that does not depend on hash order."""
    if isinstance(value, (frozenset, set)):
        return "{" + ", ".join(sorted(map(show, value))) + "}"
    if value is None:
        return "absent"
    return str(value)


def matches_any(patterns: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """True where one of the names fits one of the shell-like patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
