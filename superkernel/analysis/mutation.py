"""Mutants of a program's synchronisation on the emulator: is a wait, a set or a flag that is missing noticed?

Model. One unmutated run is logged; its order (qemu_order.py) says what each link between commands is for. A
mutant leaves out one thing: a single set or wait, both commands of a flag between two engines, what a core waits for
(its count is taken without waiting), a drain. It runs in timings that are legal and as bad as can be: everything as
late as can be, but the engine or core that no longer waits is early, and the others sleep ahead of what reaches global
memory. A mutant is noticed by wrong numbers, by harts that wait for ever, or by flags that overflow or are left over.

A mutant is *equivalent* where every pair of commands that share a byte or a flag keeps its order without the link; why
is said. Equivalent mutants are run as well: one that is noticed contradicts the order, as one that is neither
equivalent nor noticed does not speak for the timings. Runs of the program as it is, in random legal timings, must
notice nothing.

Invariant: mutants, seeds and timings depend on the program and the seed alone; what the harts of a run do meanwhile
does not, so that a mutant may be noticed in one way or another.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from superkernel.backends.aicore.qemu_log import Logged
from superkernel.backends.aicore.qemu_order import LaunchOrder, OrderLink
from superkernel.backends.aicore.qemu_schedule import EngineSchedule, Fault
from superkernel.core.counted import counted
from superkernel.core.errors import SimulationError, UnsupportedError, WatchdogError
from superkernel.target.engines.model import ENGINES_OF, CoreType, Engine

if TYPE_CHECKING:
    from superkernel.backends.aicore.kernel import AicoreKernel

KINDS: Final = ("set", "wait", "cross set", "cross wait", "flag", "cross order", "drain")
WAYS: Final = ("numbers", "watchdog", "flags", "trap")
WATCHDOG_S: Final = 60.0
PAUSE_US: Final = 200
PATIENCE_US: Final = 1000
PAUSE_SCALES: Final = (1, 8, 64)  # a busy machine needs longer pauses for one hart to come ahead of another
UNNOTICED: Final = "unnoticed"
_SINGLE = {"set_flag": "set", "wait_flag": "wait", "cross_set": "cross set", "cross_wait": "cross wait"}
_IMPLIED = "implied by other synchronisation"
_NO_BYTES = "orders no commands that share a byte or a flag"


@dataclass(frozen=True)
class SyncMutant:
    """One thing left out. `equivalent`: why nothing can notice; empty where something must."""

    kind: str
    fault: Fault
    place: str
    attempts: tuple[EngineSchedule, ...]
    equivalent: str = ""


@dataclass(frozen=True)
class Tried:
    """A mutant and what noticed it: one of WAYS, or UNNOTICED."""

    mutant: SyncMutant
    noticed: str


@dataclass(frozen=True)
class MutationTable:
    """What became of all mutants of a model, and of `runs` runs of the program as it is."""

    model: str
    target: str
    tried: tuple[Tried, ...]
    runs: int
    false_alarms: tuple[str, ...]

    @property
    def needed(self) -> list[Tried]:
        """Mutants that something must notice."""
        return [t for t in self.tried if not t.mutant.equivalent]

    @property
    def missed(self) -> list[Tried]:
        """Mutants that something should have noticed and nothing did."""
        return [t for t in self.needed if t.noticed == UNNOTICED]

    @property
    def contradictions(self) -> list[Tried]:
        """Equivalent mutants that were noticed all the same."""
        return [t for t in self.tried if t.mutant.equivalent and t.noticed != UNNOTICED]

    @property
    def caught(self) -> float:
        """The part of the mutants that something must notice which something noticed."""
        return 1 - len(self.missed) / max(1, len(self.needed))

    @property
    def ok(self) -> bool:
        """At least 99 % are caught, no equivalent mutant is noticed, and the program itself raises no alarm."""
        return self.caught >= 0.99 and not self.contradictions and not self.false_alarms

    def to_json(self) -> dict[str, Any]:
        """The machine-readable form."""
        kinds = {
            kind: dict(Counter("equivalent" if t.mutant.equivalent else t.noticed for t in self._of(kind)))
            for kind in KINDS
        }
        return {
            "model": self.model, "target": self.target, "ok": self.ok, "mutants": len(self.needed),
            "caught": self.caught, "kinds": kinds, "missed": [t.mutant.place for t in self.missed],
            "equivalent": [
                {"kind": t.mutant.kind, "place": t.mutant.place, "reason": t.mutant.equivalent}
                for t in self.tried if t.mutant.equivalent
            ],
            "contradictions": [t.mutant.place for t in self.contradictions],
            "runs": self.runs, "false_alarms": list(self.false_alarms),
        }  # fmt: skip

    def _of(self, kind: str) -> list[Tried]:
        return [t for t in self.tried if t.mutant.kind == kind]

    def text(self) -> str:
        """A table."""
        heads = ("mutants", *WAYS, "missed", "equivalent")
        lines = [
            f"{self.model} on {self.target}: {counted(len(self.needed), 'mutant')}, {100 * self.caught:.1f} % noticed; "
            f"{counted(len(self.false_alarms), 'false alarm')} in {counted(self.runs, 'run')}",
            f"{'left out':12}" + "".join(f"{head:>12}" for head in heads),
        ]
        for kind in KINDS:
            rows = self._of(kind)
            needed = [t.noticed for t in rows if not t.mutant.equivalent]
            numbers = (
                len(needed), *(needed.count(way) for way in WAYS), needed.count(UNNOTICED), len(rows) - len(needed)
            )  # fmt: skip
            lines.append(f"{kind:12}" + "".join(f"{n:>12}" for n in numbers))
        reasons = Counter(t.mutant.equivalent for t in self.tried if t.mutant.equivalent)
        lines += [f"equivalent: {count} {reason}" for reason, count in sorted(reasons.items())]
        lines += [f"missed: {t.mutant.kind}, {t.mutant.place}" for t in self.missed]
        lines += [f"noticed, but equivalent: {t.mutant.kind}, {t.mutant.place}" for t in self.contradictions]
        return "\n".join([*lines, *(f"false alarm: {text}" for text in self.false_alarms)])


def check_mutable(kernel: AicoreKernel) -> None:
    """Raises UnsupportedError where a program has more than one launch: happens-before is known within one, and what
    a launch leaves undone, the start of the next makes up for."""
    found = kernel.summary()
    launches, why = found["launches"], "; ".join(found["scopes"])
    if launches == 1:
        return
    raise UnsupportedError(
        "mutants of a program with more than one launch", location=f"kernel {kernel.name!r}", expected="one launch",
        found=f"{launches} launches: {why}",
        hint="launches='fused' and no scopes make one of all operators that have a kernel",
    )  # fmt: skip


class MutationTest:
    """Tries a compiled accelerator program. Raises UnsupportedError where it has more than one launch."""

    def __init__(self, kernel: AicoreKernel, inputs: Any, *, watchdog_s: float = WATCHDOG_S) -> None:
        self.kernel, self.watchdog_s = kernel, watchdog_s
        self.executable, self._io = kernel.emulation(inputs)
        check_mutable(kernel)
        self.target = self.executable.program.target
        io = self._fresh()
        run = self.executable.run(io, EngineSchedule("late", watchdog_s=watchdog_s), log=True)
        self.expected = [a.tobytes() for a in io]
        self.order = LaunchOrder(run.logs[0], self.target)
        self.groups = self._all_mutants()

    def _fresh(self) -> list[Any]:
        return [a.copy() for a in self._io]

    # Mutants ----------------------------------------------------------------------------------------------------------

    def _all_mutants(self) -> dict[str, list[Callable[[], SyncMutant]]]:
        """Of each kind all there are, not made yet."""
        groups: dict[str, list[Callable[[], SyncMutant]]] = defaultdict(list)
        for c in self.order.commands:
            if (kind := _SINGLE.get(c.command.name)) is not None:
                groups[kind].append(partial(self._single, kind, c))
        for link in self.order.links:
            kind = "cross order" if link.kind == "cross" else link.kind
            groups[kind].append(partial(self._of_link, kind, link))
        return groups

    def _single(self, kind: str, c: Logged) -> SyncMutant:
        attempts = (EngineSchedule("late", watchdog_s=self.watchdog_s, fault=(fault := Fault(c.hart, (c.order,)))),)
        return SyncMutant(kind, fault, f"{c.place}: {c.command}", attempts)

    def _of_link(self, kind: str, link: OrderLink) -> SyncMutant:
        waiter = link.commands[-1]
        fault = Fault(waiter.hart, tuple(c.order for c in link.commands))
        if kind == "cross order":
            fault = Fault(waiter.hart, unwaited=waiter.order)
        reason = ""
        if not self.order.without([link]):
            reason = _IMPLIED if self.order.implied(link) else _NO_BYTES
        place = " -> ".join(f"{c.place}: {c.engine.title}: {c.command}" for c in link.commands)
        return SyncMutant(kind, fault, place, tuple(self._attempts(kind, link, fault)), reason)

    def _attempts(self, kind: str, link: OrderLink, fault: Fault) -> Iterable[EngineSchedule]:
        """Legal timings in which what no longer waits is early and what it waited for is late."""
        hart, waiter = fault.hart, link.commands[-1]
        others = tuple(h for h in range(self.target.cores) if h != hart)
        own = tuple((hart, e) for e in self._engines(hart))

        def late(eager: Sequence[tuple[int, Engine]], slow: tuple[int, ...] = (), pause_us: int = 0) -> EngineSchedule:
            patient = (hart,) if kind == "flag" else slow
            return EngineSchedule("late", 0, self.watchdog_s, tuple(eager), slow, pause_us, patient, PATIENCE_US, fault)

        if kind == "flag":
            setter = link.commands[0].engine
            yield late([(h, e) for h, e in own if e is not setter])
            if waiter.engine is not Engine.CONTROL:
                yield late([(hart, waiter.engine)])
            yield late([(h, e) for h, e in own if e is not setter], others, PAUSE_US)
            yield late([])
        else:
            yield late(own, others, PAUSE_US)
            yield late([], others, PAUSE_US)
            for producer in sorted({self._hart_of(a) for a, _ in link.edges} - {hart}):
                rest = [(h, e) for h in range(self.target.cores) if h != producer for e in self._engines(h)]
                yield late(rest, (producer,), 5 * PAUSE_US)

    def _engines(self, hart: int) -> list[Engine]:
        kind = CoreType.AIC if self.target.is_cube(hart) else CoreType.AIV
        return [e for e in ENGINES_OF[kind] if e not in (Engine.CONTROL, Engine.SDMA)]

    def _hart_of(self, node: int) -> int:
        return next(c.hart for c in self.order.commands if self.order.done(c) == node)

    def draw(self, needed: int, seed: int) -> list[SyncMutant]:
        """Mutants of all kinds in turn, each at most once, until `needed` of them are not equivalent."""
        rng = random.Random(seed)
        left = {kind: rng.sample(group, len(group)) for kind in KINDS if (group := self.groups.get(kind))}
        found: list[SyncMutant] = []
        while left and needed > 0:
            for kind in list(left):
                if needed > 0:
                    found.append(mutant := left[kind].pop()())
                    needed -= not mutant.equivalent
                    if not left[kind]:
                        del left[kind]
        return found

    # Runs -------------------------------------------------------------------------------------------------------------

    def outcome(self, schedule: EngineSchedule) -> str:
        """What notices a run."""
        io = self._fresh()
        try:
            self.executable.run(io, schedule)
        except WatchdogError:
            return "watchdog"
        except SimulationError as error:
            if error.kind in ("deadlock", "undrained"):
                return "watchdog"
            return "flags" if error.kind in ("leftover_flag", "flag_overflow", "cross_overflow") else "trap"
        return UNNOTICED if [a.tobytes() for a in io] == self.expected else "numbers"

    def try_mutant(self, mutant: SyncMutant) -> Tried:
        """Run a mutant until something notices it, with ever longer pauses; an equivalent one in its first timing."""
        scales, attempts = ((1,), mutant.attempts[:1]) if mutant.equivalent else (PAUSE_SCALES, mutant.attempts)
        for scale in scales:
            for schedule in attempts:
                pause_us, patience_us = schedule.pause_us * scale, schedule.patience_us * scale
                slower = replace(schedule, pause_us=pause_us, patience_us=patience_us)
                if (noticed := self.outcome(slower)) != UNNOTICED:
                    return Tried(mutant, noticed)
        return Tried(mutant, UNNOTICED)

    def unmutated(self, number: int, seed: int) -> EngineSchedule:
        """The number-th legal timing: now, late, random, and late with some eager engines and slow cores."""
        rng = random.Random(f"{seed} {number}")
        if number < 2:
            return EngineSchedule(("now", "late")[number], watchdog_s=WATCHDOG_S)
        if number % 2:
            return EngineSchedule("random", rng.getrandbits(40), WATCHDOG_S)
        every = [(h, e) for h in range(self.target.cores) for e in self._engines(h)]
        slow = tuple(h for h in range(self.target.cores) if rng.random() < 0.3)
        return EngineSchedule(
            "late",
            0,
            self.watchdog_s,
            tuple(rng.sample(every, len(every) // 2)),
            slow,
            rng.choice((0, 50)),
            tuple(h for h in range(self.target.cores) if rng.random() < 0.3),
            300,
        )

    def table(self, needed: int, runs: int = 0, *, seed: int = 0, jobs: int = 2) -> MutationTable:
        """Try `needed` mutants that are not equivalent (or all there are), and `runs` runs of the program as it is."""
        with ThreadPoolExecutor(jobs) as pool:
            tried = list(pool.map(self.try_mutant, self.draw(needed, seed)))
            plain = [self.unmutated(n, seed) for n in range(runs)]
            outcomes = list(pool.map(self.outcome, plain))
        alarms = tuple(f"{schedule}: {o}" for schedule, o in zip(plain, outcomes, strict=True) if o != UNNOTICED)
        return MutationTable(self.kernel.name, self.target.name, tuple(tried), runs, alarms)
