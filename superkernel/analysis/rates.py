"""How often the verifiers are wrong: over random plans and mutants of them, held against all executions of each.

Model: of each *family* plans are made at random, planned, and changed. What a plan or a mutant is, the search of its
executions says, which shares nothing with the verifiers: *broken*, where conflicting accesses can come in another order
than the global one, where nobody can go on, or where a counter or flag ends wrong; else *harmless*. A verifier that
accepts what is broken is wrong (a *false accept*), and one that refuses what is harmless is too strict (a *false
reject*). `held_back` decides for all; where a plan has at most STATES_MAX states, `all_states` looks at each of them
too, and only what it calls harmless counts as such.

All families go on together, by rounds; processes of their own try a few plans of one family at a time. An interrupt
leaves the counts of whole rounds, and what is left is a run of its own.

Invariants: plan n of a family follows from seed, family and n alone. Counts do not depend on rounds or processes. A
failure is shrunk to the smallest plan that still fails: without any further task, core, step or access it would not.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from superkernel.codegen import processes
from superkernel.core.errors import InputError, InternalError
from superkernel.sync.executions import System, all_states, held_back

MUTANTS: Final = 8  # of each plan
STATES_MAX: Final = 1 << 15
FALSE_REJECTS_MAX: Final = 0.02
SHOWN: Final = 1  # failures of a kind in a family that are shrunk and shown
ROUND: Final = 10  # plans of each family: a second or two of work
CHUNK: Final = 5  # plans that a process tries at a time

P = TypeVar("P")


@dataclass(frozen=True)
class PlanFamily(Generic[P]):
    """Plans of one kind. `make` draws one."""

    name: str
    what: str
    make: Callable[[random.Random], P]


@dataclass(frozen=True)
class Subject(Generic[P]):
    """A verifier under test. `refusal`: why it refuses a plan, empty where it accepts; `mutants`: all there are, by
    what was done; `smaller`: plans with one thing less."""

    target: str
    families: tuple[PlanFamily[P], ...]
    refusal: Callable[[P], str]
    system: Callable[[P], System]
    mutants: Callable[[P], Iterator[tuple[str, P]]]
    smaller: Callable[[P], Iterator[P]]
    text: Callable[[P], str]

    def truth(self, plan: P) -> tuple[str, bool]:
        """What goes wrong in some execution, or an empty text; whether its states tell that it is harmless: all were
        looked at, and nothing is in vain, which a verifier may refuse or accept."""
        system = self.system(plan)
        wrong = held_back(system)
        if system.states > STATES_MAX:
            return wrong, False
        if bool(other := all_states(system)) != bool(wrong):
            raise InternalError("the two searches of executions differ", found=f"{wrong!r} and {other!r}")
        return wrong, not system.useless


@dataclass(frozen=True)
class WrongVerdict:
    """A verdict that is wrong. `shrunk`: the smallest plan of which it still is, as text; `replay`: a command line."""

    kind: str  # "false accept", "false reject", "plan refused", "plan broken"
    what: str
    verdict: str
    truth: str
    shrunk: str
    replay: str

    def __str__(self) -> str:
        said = self.verdict or "accepted"
        shown = "\n".join(f"    {line}" for line in self.shrunk.splitlines())
        truth = self.truth or "nothing goes wrong"
        return f"{self.kind}: {self.what}\n  verifier: {said}\n  executions: {truth}\n  {self.replay}\n{shown}"


@dataclass
class RateRow:
    """What became of one family. Of plans and mutants: `broken` or not by their executions; `caught`: those of the
    broken ones that the verifier refuses; `harmless`: of at most STATES_MAX states; `refused`: those of them that the
    verifier refuses; `reasons`: why."""

    family: str
    what: str
    plans: int = 0
    mutants: int = 0
    broken: int = 0
    caught: int = 0
    harmless: int = 0
    refused: int = 0
    plans_wrong: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def false_accepts(self) -> int:
        """Broken plans and mutants that are accepted."""
        return self.broken - self.caught

    def __add__(self, other: RateRow) -> RateRow:
        names = ("plans", "mutants", "broken", "caught", "harmless", "refused", "plans_wrong", "seconds")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return replace(self, **sums, reasons=self.reasons + other.reasons)

    def cells(self) -> tuple[str, ...]:
        """The row of a table: `HEADS`."""
        score = f"{100 * self.caught / self.broken:.2f} %" if self.broken else "-"
        rejects = f"{100 * self.refused / self.harmless:.2f} %" if self.harmless else "-"
        numbers = (self.plans, self.mutants, self.broken, self.caught)
        return (
            self.family, *map(str, numbers), score, str(self.false_accepts), str(self.harmless), str(self.refused),
            rejects, f"{self.seconds:.0f}",
        )  # fmt: skip


HEADS: Final = (
    "family", "plans", "mutants", "broken", "caught", "score", "false accepts", "harmless", "refused", "false rejects",
    "s",
)  # fmt: skip


@dataclass(frozen=True)
class TargetRates:
    """Of one target. `whole`: the sum of the rows; `rest`: where an interrupt came first, the command line of what is
    left."""

    target: str
    seed: int
    rows: tuple[RateRow, ...]
    failures: tuple[WrongVerdict, ...]
    rest: str = ""

    @property
    def whole(self) -> RateRow:
        """All families together."""
        total = RateRow("all", "")
        for row in self.rows:
            total = total + row
        return total

    @property
    def ok(self) -> bool:
        """Nothing broken is accepted, no plan of a planner is broken or refused, and of what is harmless at most
        FALSE_REJECTS_MAX is refused."""
        whole = self.whole
        rejects = whole.refused <= FALSE_REJECTS_MAX * whole.harmless
        return whole.false_accepts == 0 and whole.plans_wrong == 0 and rejects

    def text(self) -> str:
        """A table, the reasons of false rejects, and the failures."""
        cells = [HEADS, *(row.cells() for row in (*self.rows, self.whole))]
        widths = [max(len(row[n]) for row in cells) for n in range(len(HEADS))]
        lines = [f"target {self.target}, seed {self.seed}"]
        for row in cells:
            rest = (text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
            lines.append("  ".join([row[0].ljust(widths[0]), *rest]))
        lines += [f"refused though harmless: {n} for {why!r}" for why, n in self.whole.reasons.most_common()]
        lines += [f"interrupted; what is left: {self.rest}"] if self.rest else []
        return "\n".join([*lines, *map(str, self.failures)])

    def to_json(self) -> dict[str, Any]:
        """The machine-readable form."""

        def figures(row: RateRow) -> dict[str, Any]:
            return {**vars(row), "reasons": dict(row.reasons), "false_accepts": row.false_accepts}

        return {
            "target": self.target, "seed": self.seed, "ok": self.ok, "whole": figures(self.whole),
            "families": [figures(row) for row in self.rows], "failures": [vars(f) for f in self.failures],
            "rest": self.rest or None,
        }  # fmt: skip


class RatesInterrupted(KeyboardInterrupt):
    """An interrupt while rates were counted. `found`: what was counted by then."""

    def __init__(self, found: TargetRates) -> None:
        super().__init__()
        self.found = found


def rates(
    subject: Subject[P],
    plans: int,
    seed: int = 0,
    *,
    family: str | None = None,
    first: int = 0,
    mutants: int = MUTANTS,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TargetRates:
    """Try `plans` plans in all, as many of each family (or of the one that is named), from plan number `first` on, with
    up to `mutants` mutants of each, in `jobs` processes (this one, where it is 1; at most one per CPU). `progress` is
    called with the plans that were tried, and all of them. Raises InputError for a family that there is not, and
    RatesInterrupted for KeyboardInterrupt."""
    names = [f.name for f in subject.families]
    if family is not None and family not in names:
        raise InputError("no such family of plans", expected=", ".join(names), found=family)
    if plans < 1 or first < 0:
        raise InputError("not a number of plans", expected="at least 1", found=str(plans))
    if jobs < 1:
        raise InputError("not a number of processes", expected="at least 1", found=str(jobs))
    chosen = [f for f in subject.families if family in (None, f.name)]
    counts = [(plans + len(chosen) - 1 - number) // len(chosen) for number in range(len(chosen))]
    so_far = [_Tried(RateRow(f.name, f.what)) for f in chosen]
    done = 0  # plans of each family, in whole rounds

    def found(rest: str = "") -> TargetRates:
        rows, failures = tuple(one.row for one in so_far), tuple(f for one in so_far for f in one.failures)
        return TargetRates(subject.target, seed, rows, failures, rest)

    try:
        while done < counts[0]:
            ends = [min(done + ROUND, count) for count in counts]
            chunks = [
                (number, range(first + at, first + min(at + CHUNK, ends[number])))
                for number in sorted(range(len(chosen)), key=lambda n: -so_far[n].row.seconds)  # the longest first
                for at in range(done, ends[number], CHUNK)
            ]
            trials = [_Trial(subject, chosen[n], seed, mutants, some, so_far[n].failures) for n, some in chunks]
            before = sum(one.row.plans for one in so_far)
            merged = list(so_far)
            for (number, _), one in zip(chunks, _all_tried(trials, jobs), strict=True):
                merged[number] = merged[number].with_more(one)
                progress(before := before + one.row.plans, plans)
            so_far, done = merged, done + ROUND
    except KeyboardInterrupt:
        left = plans - sum(one.row.plans for one in so_far)
        raise RatesInterrupted(found(_again(subject.target, family, seed, first + done, left))) from None
    return found()


def _all_tried(trials: Sequence[_Trial[P]], jobs: int) -> Iterator[_Tried]:
    if jobs == 1:
        yield from map(_Trial.run, trials)
    else:
        yield from processes.run_for_values(_Trial.run, trials, jobs_per_child=1, helpers=jobs)


def untried(subject: Subject[Any], plans: int, seed: int, family: str | None, first: int) -> TargetRates:
    """Where an interrupt came before any plan was tried."""
    return TargetRates(subject.target, seed, (), (), _again(subject.target, family, seed, first, plans))


def _again(target: str, family: str | None, seed: int, first: int, plans: int) -> str:
    chosen = "" if family is None else f" --family {family!r}"
    return f"superkernel verify --rates --target {target}{chosen} --seed {seed} --first {first} --plans {plans}"


def _listed(kind: str, reason: str, failures: Sequence[WrongVerdict]) -> bool:
    """Whether enough of that kind are known."""
    return sum(f.kind == kind and reason_of(f.verdict) == reason for f in failures) >= SHOWN


@dataclass
class _Tried:
    """Plans of one family that were tried."""

    row: RateRow
    failures: list[WrongVerdict] = field(default_factory=list)

    def with_more(self, other: _Tried) -> _Tried:
        """Both together; of each kind of failure as many as are shown."""
        failures = list(self.failures)
        for one in other.failures:
            if not _listed(one.kind, reason_of(one.verdict), failures):
                failures.append(one)
        return _Tried(self.row + other.row, failures)


@dataclass
class _Trial(Generic[P]):
    """Plans of one family that are to be tried, by `numbers`. `known`: its failures so far."""

    subject: Subject[P]
    family: PlanFamily[P]
    seed: int
    mutants: int
    numbers: range
    known: list[WrongVerdict]

    def run(self) -> _Tried:
        """Try them."""
        self.row, self.failures = RateRow(self.family.name, self.family.what), list[WrongVerdict]()
        start = time.process_time()
        for number in self.numbers:
            self._plan(number)
        self.row.seconds = time.process_time() - start
        return _Tried(self.row, self.failures)

    def _plan(self, number: int) -> None:
        """Plan number so and so, and mutants of it."""
        rng = random.Random(f"{self.seed} {self.subject.target} {self.family.name} {number}")
        plan = self.family.make(rng)
        self.row.plans += 1
        self._judge(number, "the plan as it is", plan, unchanged=True)
        tried = list(self.subject.mutants(plan))
        for what, mutant in rng.sample(tried, min(self.mutants, len(tried))):
            self.row.mutants += 1
            self._judge(number, what, mutant)

    def _judge(self, number: int, what: str, plan: P, *, unchanged: bool = False) -> None:
        refusal = self.subject.refusal(plan)
        truth, whole = self.subject.truth(plan)
        kind = ""
        if truth:
            self.row.broken += 1
            self.row.caught += bool(refusal)
            kind = "" if refusal else "false accept"
        elif whole or unchanged:
            self.row.harmless += 1
            self.row.refused += bool(refusal)
            kind = "false reject" if refusal else ""
        if unchanged and (truth or refusal):
            self.row.plans_wrong += 1
            kind = kind or "plan broken"
        reason = reason_of(refusal) if refusal else ""
        if kind == "false reject":
            self.row.reasons[reason] += 1
        if kind and not _listed(kind, reason, (*self.known, *self.failures)):
            self._fail(kind, number, what, plan)

    def _fail(self, kind: str, number: int, what: str, plan: P) -> None:
        subject = self.subject
        before = reason_of(subject.refusal(plan))

        def fails(smaller: P) -> bool:
            refusal, truth = subject.refusal(smaller), subject.truth(smaller)[0]
            return reason_of(refusal) == before and bool(truth) == (kind != "false reject")

        small = shrunk(plan, subject.smaller, fails)
        replay = (
            f"superkernel verify --rates --target {subject.target} --family {self.family.name!r} --seed {self.seed} "
            f"--first {number} --plans 1"
        )
        verdict, truth = subject.refusal(small), subject.truth(small)[0]
        self.failures.append(WrongVerdict(kind, what, verdict, truth, subject.text(small), replay))


def shrunk(plan: P, smaller: Callable[[P], Iterator[P]], fails: Callable[[P], bool]) -> P:
    """The plan with one thing less after the other, as long as it fails. What could not be left out is tried again only
    when all else was."""
    kept = left = 0
    while True:
        candidates = islice(smaller(plan), kept, None)
        number, less = next(((n, one) for n, one in enumerate(candidates, kept) if fails(one)), (0, None))
        if less is not None:
            plan, kept, left = less, number, left + 1
        elif left:
            kept = left = 0
        else:
            return plan


def reason_of(refusal: str) -> str:
    """A refusal without its numbers."""
    return re.sub(r"\d+", "N", refusal)
