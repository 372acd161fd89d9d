"""What a recorder has seen harts of a linked program do: the words that it is told in.

Model: per launch and hart a straight line of `Seen`, in the program's order (csrc/sim/device/program_recorder.h): calls
of kernels, each with the task that it is, signals, waits, prefetches. What a kernel does to flags and words stands
between its `Called` and its `Returned`; of its accesses stands there what they can be sure of (`Use`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from superkernel.scheduler.schedule import Task
from superkernel.sync.aicore.plan import Mode


class Use(NamedTuple):
    """Of an operand in a call, at the least: how many waits of the launch its core had passed at its accesses, and how
    many of the launch's calls had their stores complete at its loads. None: there were none."""

    waits: int | None
    fenced: int | None


@dataclass(frozen=True, slots=True)
class Called:
    """A kernel began. `number`: of its core's calls in the launch, from 0. `told`: of operands that it then did not
    touch, since data say how much of them it needs, the flags that it was told to take ahead of them."""

    task: Task
    number: int
    uses: Mapping[int, Use]
    told: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Returned:
    """It returned to the program."""


@dataclass(frozen=True, slots=True)
class SetFlag:
    """A cross-core flag was set. `complete`: of so many calls of the launch all accesses are complete when it is
    seen."""

    flag: int
    mode: Mode
    complete: int


@dataclass(frozen=True, slots=True)
class TakeFlag:
    """A cross-core flag was waited for."""

    flag: int


@dataclass(frozen=True, slots=True)
class Count:
    """A word in memory gets a value, or with `add` so much more. `complete`: see `SetFlag`."""

    word: int
    value: int
    add: bool
    complete: int


@dataclass(frozen=True, slots=True)
class AwaitWord:
    """A word in memory was waited for."""

    word: int
    value: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """SDMA was told to bring bytes of the constants into L2."""

    offset: int
    nbytes: int


Seen: TypeAlias = Called | Returned | SetFlag | TakeFlag | Count | AwaitWord | Fetch
Lines: TypeAlias = Sequence[Sequence[Sequence[Seen]]]
"""By launch and hart."""


@dataclass(frozen=True)
class Shape:
    """Of the device, and of the flags that there are for a plan."""

    cube_cores: int
    vector_cores: int
    groups: int
    aicpu: bool  # whether the hart behind the cores computes tilings
    flags: int
    flag_count_max: int
