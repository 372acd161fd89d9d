"""How a run on the emulator is to go: when engines carry commands out, who is slowed down, what is left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeVar

from superkernel.codegen.firmware.memory import TIMINGS
from superkernel.core.errors import InputError
from superkernel.target.engines.model import Engine

Timing = Literal["now", "late", "random"]
WATCHDOG_S: Final = 120.0
PAUSES_US: Final = (0, 50, 500)  # of what `EngineSchedule.delayed` draws: a hart may pause at each command
T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """What is wrong with a program on purpose, on one hart, in each launch.

    Commands for order (set_flag, wait_flag, drain, cross_set, cross_wait, notify, wait_memory) are numbered from 0 in
    the order in which the hart's control unit issues them. `leave_out`: one or two numbers that are not carried out;
    `unwaited`: a cross_wait that takes its count without waiting for it; `forget` (setter, waiter, flag): all commands
    of a flag between two engines."""

    hart: int
    leave_out: tuple[int, ...] = ()
    unwaited: int | None = None
    forget: tuple[Engine, Engine, int] | None = None

    def __post_init__(self) -> None:
        if len(self.leave_out) > 2 or any(n < 0 for n in (self.hart, *self.leave_out, self.unwaited or 0)):
            raise InputError(
                "no such fault", expected="a hart and at most two numbers of commands, from 0", found=str(self)
            )


@dataclass(frozen=True)
class EngineSchedule:
    """When commands leave their queues; `seed` draws the chances of `random`. `watchdog_s`: wall-clock of a launch.

    With timing `late`, `eager` (hart, engine) names engines that carry their commands out as soon as they can all the
    same, `slow` harts that sleep for `pause_us` ahead of each command that reaches global memory, `patient` harts that
    wait for `patience_us` before they believe that others need a signal which stands in a queue. All of these are
    legal: a right program gives the same results. `fault` is for tests of what tests notice."""

    timing: Timing = "now"
    seed: int = 0
    watchdog_s: float = WATCHDOG_S
    eager: tuple[tuple[int, Engine], ...] = ()
    slow: tuple[int, ...] = ()
    pause_us: int = 0
    patient: tuple[int, ...] = ()
    patience_us: int = 0
    fault: Fault | None = None

    def __post_init__(self) -> None:
        if self.timing not in TIMINGS:
            raise InputError("no such timing", expected=", ".join(TIMINGS), found=repr(self.timing))
        if (
            not 0 < self.watchdog_s < 1e6
            or not 0 <= self.seed < 1 << 63
            or not all(0 <= us < 1 << 20 for us in (self.pause_us, self.patience_us))
        ):
            raise InputError(
                "out of range", location="watchdog_s, seed, pause_us, patience_us",
                expected="above 0; from 0 to 2^63 - 1; from 0 to 2^20 - 1",
                found=f"{self.watchdog_s}, {self.seed}, {self.pause_us}, {self.patience_us}",
            )  # fmt: skip
        if self.eager and self.timing != "late":
            raise InputError("eager engines need timing late", location="eager", found=self.timing)

    @classmethod
    def delayed(cls, seed: int, harts: int, watchdog_s: float = WATCHDOG_S) -> EngineSchedule:
        """A schedule that a seed draws: engines late or at random, some eager, some harts slow, some patient."""
        drawn = Random(seed)
        chance = drawn.random()

        def some(among: Iterable[T]) -> tuple[T, ...]:
            return tuple(each for each in among if drawn.random() < chance)

        timing: Timing = drawn.choice(("late", "random"))
        eager = some((hart, engine) for hart in range(harts) for engine in Engine) if timing == "late" else ()
        pause_us, patience_us = drawn.choice(PAUSES_US), drawn.choice(PAUSES_US)
        return cls(timing, seed, watchdog_s, eager, some(range(harts)), pause_us, some(range(harts)), patience_us)

    def __str__(self) -> str:
        return f"{self.timing}:{self.seed}" if self.timing == "random" else self.timing


AT_ONCE: Final = EngineSchedule()
