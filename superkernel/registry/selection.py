"""Choosing a kernel: index by operator, filter by clauses, order by score, explain.

Model: the rows of an operator form an index in which each distinct clause has one bit. Selecting evaluates every
distinct clause once, which gives a mask of failed bits; a row is eligible where its own mask does not meet it. So the
full explanation (which clauses every rejected candidate failed) costs one `and` per row, and is spelt out only when
somebody reads it.

The cache has two levels: by identity of body, target and policy (the warm path of the compiler), and by requirement.
Invariant: the choice depends on the set of rows and on the requirement only, not on the order of registration or on
earlier calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from superkernel.core.counted import counted
from superkernel.core.errors import (
    DeterminismError,
    InputError,
    PolicyError,
    ToleranceError,
    UnsupportedError,
    Violation,
    WorkspaceError,
    raise_all,
)
from superkernel.core.options import OPTIONS
from superkernel.ir.body import Body
from superkernel.registry.canonical import digest
from superkernel.registry.eligibility import clauses_of
from superkernel.registry.explanation import Candidate, Fallback, KernelExplanation
from superkernel.registry.facts import Problem, facts_of
from superkernel.registry.predicates import Clause, Facts, FactValue, Failure, Reason, matches_any, show
from superkernel.registry.records import Capability, Estimator, KernelRole, Policy, Requirement, row_data
from superkernel.registry.requirement import requirement_of
from superkernel.registry.score import LEVEL, NO_TIME, score_of, sort_key, times_of
from superkernel.target.base import Target

REGISTRY_VERSION = 2
_MEMO_LIMIT = 1_024
"""Answers kept per level; a full cache is emptied, so that a process that compiles many models does not grow."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen kernel. `cached`: this answer came from the registry's cache."""

    kernel: str
    row: Capability
    requirement: Requirement
    explanation: KernelExplanation
    cached: bool = False

    @property
    def fallback(self) -> Fallback | None:
        """Set where a better role exists for the operator but was not eligible, or where only the reference does."""
        return self.explanation.fallback

    @property
    def warning(self) -> str | None:
        """What the user must be told: the reference was taken and the policy is "warn"."""
        if self.row.role is not KernelRole.REFERENCE or self.requirement.policy.fallback != "warn":
            return None
        crossing = self.explanation.transfer_bytes
        reason = self.fallback.reason if self.fallback else ""
        return f"{self.requirement.op} runs on the NumPy reference ({crossing} bytes cross per call): {reason}"


_Check = tuple[int, str, Callable[[FactValue, Facts], bool]]
_Failed = tuple[int, int]  # masks over the clauses, and over those that are limits of the policy


def _checks_of(clauses: tuple[Clause, ...]) -> list[_Check]:
    return [(1 << bit, clause.field, clause.test.holds) for bit, clause in enumerate(clauses)]


def _mask(bits: dict[Clause, int], clauses: list[Clause]) -> int:
    """The clauses as a mask; new ones get the next bit."""
    mask = 0
    for clause in clauses:
        mask |= 1 << bits.setdefault(clause, len(bits))
    return mask


def _bits_of(mask: int) -> Iterable[int]:
    """Positions of the ones, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _OperatorIndex:
    """The rows of one operator, ordered by id, with their clauses as bits."""

    def __init__(self, rows: tuple[Capability, ...]) -> None:
        self.rows = rows
        bits: dict[Clause, int] = {}
        limit_bits: dict[Clause, int] = {}
        self.masks: list[int] = []
        self.limit_masks: list[int] = []
        self.counts: list[int] = []
        for row in rows:
            own = clauses_of(row)
            self.masks.append(_mask(bits, [c for c in own if not c.test.passes_absent]))
            self.limit_masks.append(_mask(limit_bits, [c for c in own if c.test.passes_absent]))
            self.counts.append(len(own))
        self._clauses, self._limits = tuple(bits), tuple(limit_bits)
        self._checks = _checks_of(self._clauses)
        self._limit_checks: dict[str, list[_Check]] = {}
        self._own_checks: dict[str, list[_Check]] = {}
        for clause, check in zip(self._limits, _checks_of(self._limits), strict=True):
            checks = self._own_checks if clause.test.asks_kernel else self._limit_checks
            checks.setdefault(check[1], []).append(check)
        self._excluded: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[int, Reason]] = {}
        self.roles = tuple(row.role.rank for row in rows)
        self.best_role = min(self.roles, default=0)

    def failed_bits(self, facts: Facts) -> _Failed:
        """Which clauses do not hold."""
        failed, limits, get = 0, 0, facts.get
        for bit, field, holds in self._checks:
            if not holds(get(field), facts):
                failed |= bit
        for field, checks in self._limit_checks.items():
            value = get(field)
            if value is not None:
                for bit, _, holds in checks:
                    if not holds(value, facts):
                        limits |= bit
        for field, checks in self._own_checks.items():
            value = get(field)
            if value is not None:
                asked = self._asked((failed, limits))
                limits |= sum(bit for bit, _, holds in checks if bit & asked and not holds(value, facts))
        return failed, limits

    def _asked(self, failed: _Failed) -> int:
        """The limits of the rows that all else leaves."""
        mask = 0
        for i in self.eligible(failed):
            mask |= self.limit_masks[i]
        return mask

    def eligible(self, failed: _Failed) -> list[int]:
        """Rows none of whose clauses failed."""
        bits, limits = failed
        found = [i for i, mask in enumerate(self.masks) if not mask & bits]
        return [i for i in found if not self.limit_masks[i] & limits] if limits else found

    def excluded(self, policy: Policy) -> dict[int, Reason]:
        """Rows that the patterns of the policy exclude."""
        if not policy.allow and not policy.deny:
            return {}
        key = (policy.allow, policy.deny)
        found = self._excluded.get(key)
        if found is None:
            found = {}
            for i, row in enumerate(self.rows):
                if matches_any(policy.deny, row.names):
                    found[i] = Reason.DENIED
                elif policy.allow and not matches_any(policy.allow, row.names):
                    found[i] = Reason.ALLOWED
            self._excluded[key] = found
        return found

    def failures(self, i: int, failed: _Failed, facts: Facts, policy: Policy) -> tuple[Failure, ...]:
        """Every reason why row i is out."""
        mask, limits = self.masks[i] & failed[0], self.limit_masks[i] & failed[1]
        found = [self._clauses[bit].failure(facts) for bit in _bits_of(mask)]
        found += [self._limits[bit].failure(facts) for bit in _bits_of(limits)]
        reason = self.excluded(policy).get(i)
        if reason is Reason.DENIED:
            found.append(Failure(reason, "policy.deny", "without a pattern that matches", show(policy.deny)))
        elif reason is Reason.ALLOWED:
            found.append(Failure(reason, "policy.allow", "empty or with a pattern that matches", show(policy.allow)))
        return tuple(found)


class Registry:
    """A set of rows to choose from. Raises InputError on two rows with one id and on rows without operators.

    `estimator`: says what kernels take; asked where several are eligible, or somebody sets a limit or wants to know.
    """

    def __init__(
        self,
        rows: Iterable[Capability],
        estimator: Estimator | None = None,
    ) -> None:
        self.rows = tuple(sorted(rows, key=lambda r: r.id))
        self.estimator = estimator
        _check_rows(self.rows)
        self._by_op: dict[str, list[Capability]] = {}
        for row in self.rows:
            for op in row.ops:
                self._by_op.setdefault(op, []).append(row)
        self._indexes: dict[str, _OperatorIndex] = {}
        self._cache: dict[Requirement, Selection] = {}
        self._memo: dict[tuple[int, int, int], tuple[Selection, Body, Target, Policy]] = {}

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators with at least one row."""
        return tuple(sorted(self._by_op))

    def rows_of(self, op: str) -> tuple[Capability, ...]:
        """The rows that serve an operator, by id."""
        return tuple(self._by_op.get(op, ()))

    @cached_property
    def digest(self) -> str:
        """Hash of all rows; does not depend on the order of registration."""
        return digest([row_data(row) for row in self.rows])

    def select_body(self, body: Body, target: Target, policy: Policy) -> Selection:
        """`select` of the body's requirement, remembered by identity."""
        key = (id(body), id(target), id(policy))
        found = self._memo.get(key)
        if found is not None:
            return found[0]
        selection = self.select(requirement_of(body, target, policy))
        if len(self._memo) >= _MEMO_LIMIT:
            self._memo.clear()
        # The objects are kept with the answer: while they live, nothing else can have their identities.
        self._memo[key] = (selection if selection.cached else replace(selection, cached=True), body, target, policy)
        return selection

    def select(self, requirement: Requirement) -> Selection:
        """The best eligible kernel. Raises UnsupportedError with every failed clause of every candidate where none
        is."""
        found = self._cache.get(requirement)
        if found is not None:
            return found
        selection = self._select(requirement)
        if len(self._cache) >= _MEMO_LIMIT:
            self._cache.clear()
        self._cache[requirement] = replace(selection, cached=True)
        return selection

    def _index(self, op: str) -> _OperatorIndex:
        index = self._indexes.get(op)
        if index is None:
            index = self._indexes[op] = _OperatorIndex(self.rows_of(op))
        return index

    def _select(self, requirement: Requirement) -> Selection:
        start_ns = time.perf_counter_ns()
        index, policy = self._index(requirement.op), requirement.policy
        facts = facts_of(requirement, self.estimator)
        failed, excluded = index.failed_bits(facts), index.excluded(policy)
        eligible = index.eligible(failed)
        if excluded:
            eligible = [i for i in eligible if i not in excluded]
        if not eligible:
            raise self._unsupported(requirement, index, failed, facts)
        leading, rest = _leading(index, eligible, policy)
        able = _able(index, leading, facts)
        row = self._best(requirement, index, able, facts)

        def evaluate_eligible() -> list[Candidate]:
            return [c for rows in (able, rest) for c in self._rank(requirement, index, rows, facts)]

        def evaluate_rejected() -> list[Candidate]:
            left = {*able, *rest}
            found = [(i, index.failures(i, failed, facts, policy)) for i in range(len(index.rows)) if i not in left]
            return [Candidate(index.rows[i], None, failures or (UNCUT,)) for i, failures in found]

        explanation = KernelExplanation(
            requirement=requirement,
            chosen=row,
            ranking=evaluate_eligible,
            rejecting=evaluate_rejected,
            facts=facts,
            better_roles=index.best_role < row.role.rank,
            elapsed_ns=time.perf_counter_ns() - start_ns,
        )
        return Selection(row.kernel, row, requirement, explanation)

    def _best(self, requirement: Requirement, index: _OperatorIndex, leading: list[int], facts: Problem) -> Capability:
        """The best of rows that are level in what outranks time. Rows of one kernel need no estimate: theirs is one."""
        rows = [index.rows[i] for i in leading]
        if len({row.kernel for row in rows}) == 1:
            policy, ranked = requirement.policy, zip(leading, rows, strict=True)
            scores = [score_of(row, index.counts[i], policy, NO_TIME, 0.0, False, None) for i, row in ranked]
            best = min(scores, key=lambda score: sort_key(score, policy.objective))
            return rows[scores.index(best)]
        return self._rank(requirement, index, leading, facts)[0].row

    def _rank(
        self, requirement: Requirement, index: _OperatorIndex, which: list[int], facts: Problem
    ) -> list[Candidate]:
        """The candidates with their scores, best first."""
        policy, rows = requirement.policy, [index.rows[i] for i in which]
        estimates = [facts.estimate_of(row.kernel) for row in rows]
        source, times_ns = times_of(estimates)
        level_ns = LEVEL[source] * min(times_ns, default=0.0)
        found = []
        for i, row, estimate, time_ns in zip(which, rows, estimates, times_ns, strict=True):
            score = score_of(row, index.counts[i], policy, source, time_ns, time_ns > level_ns, estimate)
            found.append((sort_key(score, policy.objective), Candidate(row, score, ())))
        return [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])]

    def _unsupported(
        self, requirement: Requirement, index: _OperatorIndex, failed: _Failed, facts: Facts
    ) -> UnsupportedError:
        """Why nothing is left, as the type that says what: the limit that the nearest candidate fails, if limits are
        all that it fails."""
        place = f"operator {requirement.op!r}"
        rows = [(row, index.failures(i, failed, facts, requirement.policy)) for i, row in enumerate(index.rows)]
        wrong = [
            Violation(f"{row.id} is not eligible ({f.reason.value}: {f.field})", place, f.required, f.actual)
            for row, failures in rows
            for f in failures
        ]
        expected, kind = f"a kernel for {requirement}", UnsupportedError
        message, found, hint = "no kernel is eligible", f"{counted(len(rows), 'candidate')}, all rejected", ""
        near = [(row, failures) for row, failures in rows if all(f.reason in LIMITS for f in failures)]
        if near:
            row, failures = min(near, key=lambda pair: (len(pair[1]), pair[0].role.rank, pair[0].id))
            kind = next((LIMITS[f.reason] for f in failures if LIMITS[f.reason] is not PolicyError), PolicyError)
            message, hint = "the options leave no kernel", "; ".join(_remedy(f) for f in failures)
            found += f"; the nearest is {row.id} ({'; '.join(map(str, failures))})"
        elif requirement.policy.fallback == "forbid":
            hint = 'fallback="warn" (command line: --option fallback=warn) would run it on the NumPy reference'
        return kind(violations=[Violation(message, place, expected, found, hint), *wrong])


UNCUT = Failure(Reason.SHAPE, "cuts", "at least 1", "0")
"""What a kernel lacks whose clauses hold and which cannot cut the problem all the same."""
LIMITS: Mapping[Reason, type[PolicyError]] = {
    Reason.WORKSPACE: WorkspaceError,
    Reason.DETERMINISM: DeterminismError,
    Reason.TOLERANCE: ToleranceError,
    Reason.ALLOWED: PolicyError,
    Reason.DENIED: PolicyError,
}
"""Reasons that are of the policy alone -> the error where nothing else is in the way."""


def _remedy(failure: Failure) -> str:
    """What to ask for instead."""
    option = failure.field.removeprefix("policy.")
    return f"option {option!r}: {failure.required}" if option in OPTIONS else str(failure)


def _leading(index: _OperatorIndex, eligible: list[int], policy: Policy) -> tuple[list[int], list[int]]:
    """The eligible rows that are level in what outranks time (pinned, then role), and the others."""

    def standing(i: int) -> tuple[int, int]:
        pinned = bool(policy.pin) and matches_any(policy.pin, index.rows[i].names)
        return (0 if pinned else 1, index.roles[i])

    standings = [standing(i) for i in eligible] if policy.pin else [(1, index.roles[i]) for i in eligible]
    best = min(standings)
    leading = [i for i, s in zip(eligible, standings, strict=True) if s == best]
    return leading, [i for i, s in zip(eligible, standings, strict=True) if s != best]


def _able(index: _OperatorIndex, which: list[int], facts: Problem) -> list[int]:
    """Of rows of several kernels those that can cut the problem, which clauses need not say all about; all of them,
    where none can or nobody estimates."""
    if len({index.rows[i].kernel for i in which}) == 1:
        return which
    return [i for i in which if facts.estimate_of(index.rows[i].kernel) is not None] or which


def _check_rows(rows: tuple[Capability, ...]) -> None:
    wrong: list[Violation] = []
    for before, row in pairwise(rows):
        if before.id == row.id:
            wrong.append(Violation("two rows share an id", location=f"kernel {row.id!r}"))
    for row in rows:
        if not row.ops:
            wrong.append(Violation("serves no operator", location=f"kernel {row.id!r}"))
    raise_all(InputError, wrong)
