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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from superkernel.body import Body
from superkernel.errors import InputError, UnsupportedError, Violation, raise_all
from superkernel.registry.canonical import digest
from superkernel.registry.eligibility import clauses_of
from superkernel.registry.explanation import Candidate, Explanation, Fallback
from superkernel.registry.facts import facts_of
from superkernel.registry.models import BYTES_MODELS, COST_MODELS, workspace_of
from superkernel.registry.predicates import Clause, Facts, FactValue, Failure, Reason, matches_any, show
from superkernel.registry.records import Capability, KernelRole, Policy, Requirement, row_data
from superkernel.registry.requirement import requirement_of
from superkernel.registry.score import Score, scores_of, sort_key
from superkernel.registry.timings import TimingDatabase
from superkernel.target.cpu import CpuTarget

REGISTRY_VERSION = 1
_MEMO_LIMIT = 50_000


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen kernel. `cached`: this answer came from the registry's cache."""

    kernel: str
    row: Capability
    requirement: Requirement
    explanation: Explanation
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


class _OperatorIndex:
    """The rows of one operator, ordered by id, with their clauses as bits."""

    def __init__(self, rows: tuple[Capability, ...]) -> None:
        self.rows = rows
        bits: dict[Clause, int] = {}
        self.masks: list[int] = []
        self.counts: list[int] = []
        for row in rows:
            mask = 0
            own = clauses_of(row)
            for clause in own:
                mask |= 1 << bits.setdefault(clause, len(bits))
            self.masks.append(mask)
            self.counts.append(len(own))
        self.clauses = tuple(bits)
        self._checks: tuple[tuple[int, str, Callable[[FactValue, Facts], bool]], ...] = tuple(
            (1 << bit, clause.field, clause.test.holds) for bit, clause in enumerate(self.clauses)
        )
        self._excluded: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[int, Reason]] = {}
        self.roles = tuple(row.role.rank for row in rows)

    def failed_bits(self, facts: Facts) -> int:
        """The mask of clauses that do not hold."""
        failed, get = 0, facts.get
        for bit, field, holds in self._checks:
            if not holds(get(field), facts):
                failed |= bit
        return failed

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

    def failures(self, i: int, failed: int, facts: Facts, policy: Policy) -> tuple[Failure, ...]:
        """Every reason why row i is out."""
        mask = self.masks[i] & failed
        found = [c.failure(facts) for bit, c in enumerate(self.clauses) if mask >> bit & 1]
        reason = self.excluded(policy).get(i)
        if reason is Reason.DENIED:
            found.append(Failure(reason, "policy.deny", "without a pattern that matches", show(policy.deny)))
        elif reason is Reason.ALLOWED:
            found.append(Failure(reason, "policy.allow", "empty or with a pattern that matches", show(policy.allow)))
        return tuple(found)


class Registry:
    """A set of rows to choose from. Raises InputError on two rows with one id and on unknown models.

    `restricted_to`: set on a registry cut down by a manifest; a miss then names the key and how to regenerate the
    manifest.
    """

    def __init__(
        self, rows: Iterable[Capability], timings: TimingDatabase | None = None, restricted_to: str | None = None
    ) -> None:
        self.rows = tuple(sorted(rows, key=lambda r: r.id))
        self.timings = timings
        self.restricted_to = restricted_to
        _check_rows(self.rows)
        self._by_op: dict[str, list[Capability]] = {}
        for row in self.rows:
            for op in row.ops:
                self._by_op.setdefault(op, []).append(row)
        self._indexes: dict[str, _OperatorIndex] = {}
        self._cache: dict[Requirement, Selection] = {}
        self._memo: dict[tuple[int, int, int], tuple[Selection, Body, CpuTarget, Policy]] = {}

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators with at least one row."""
        return tuple(sorted(self._by_op))

    def rows_of(self, op: str) -> tuple[Capability, ...]:
        """The rows that serve an operator, by id."""
        return tuple(self._by_op.get(op, ()))

    @property
    def digest(self) -> str:
        """Hash of all rows; does not depend on the order of registration."""
        return digest([row_data(row) for row in self.rows])

    def select_body(self, body: Body, target: CpuTarget, policy: Policy) -> Selection:
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
        facts = facts_of(requirement)
        failed, excluded = index.failed_bits(facts), index.excluded(policy)
        eligible = [i for i, mask in enumerate(index.masks) if not mask & failed]
        if excluded:
            eligible = [i for i in eligible if i not in excluded]
        if not eligible:
            raise self._unsupported(requirement, index, failed, facts)
        leading, rest = _leading(index, eligible, policy)
        scored = self._scores(requirement, index, leading, facts)
        scored.sort(key=lambda pair: sort_key(pair[1], policy.objective))
        chosen, score = scored[0]

        def evaluate_rest() -> list[Candidate]:
            others = self._scores(requirement, index, rest, facts)
            others.sort(key=lambda pair: sort_key(pair[1], policy.objective))
            return [Candidate(index.rows[i], s, ()) for i, s in others]

        def evaluate_rejected() -> list[Candidate]:
            out = [i for i in range(len(index.rows)) if index.masks[i] & failed or i in excluded]
            return [Candidate(index.rows[i], None, index.failures(i, failed, facts, policy)) for i in out]

        row = index.rows[chosen]
        explanation = Explanation(
            requirement=requirement,
            chosen=row,
            score=score,
            leading=tuple(Candidate(index.rows[i], s, ()) for i, s in scored),
            following=evaluate_rest,
            rejecting=evaluate_rejected,
            workspace_bytes=tuple(sorted(workspace_of(row, facts).items())),
            facts=facts,
            better_roles=any(rank < row.role.rank for rank in index.roles),
            elapsed_ns=time.perf_counter_ns() - start_ns,
        )
        return Selection(row.kernel, row, requirement, explanation)

    def _scores(
        self, requirement: Requirement, index: _OperatorIndex, which: list[int], facts: Facts
    ) -> list[tuple[int, Score]]:
        rows = [(index.rows[i], index.counts[i]) for i in which]
        measured: list[float | None] = []
        if self.timings is not None and rows:
            key, device = requirement.problem_key, self.timings.device_of(requirement.platform)
            measured = [self.timings.lookup(key, row.id, device) for row, _ in rows]
        return list(zip(which, scores_of(rows, facts, requirement.policy, measured), strict=True))

    def _unsupported(
        self, requirement: Requirement, index: _OperatorIndex, failed: int, facts: Facts
    ) -> UnsupportedError:
        place, wrong = f"operator {requirement.op!r}", []
        for i, row in enumerate(index.rows):
            for failure in index.failures(i, failed, facts, requirement.policy):
                message = f"{row.id} is not eligible ({failure.reason.value}: {failure.field})"
                wrong.append(Violation(message, place, failure.required, failure.actual))
        if self.restricted_to is not None:
            hint = f"regenerate the manifest: superkernel kernels dump MODEL -o {self.restricted_to}"
            found = f"requirement {requirement.key}"
            message = "no kernel of this selective build is eligible"
            wrong.insert(0, Violation(message, place, f"a kernel for {requirement}", found, hint))
        else:
            hint = (
                'fallback="warn" would run it on the NumPy reference' if requirement.policy.fallback == "forbid" else ""
            )
            found = f"{len(index.rows)} candidates, all rejected"
            wrong.insert(0, Violation("no kernel is eligible", place, f"a kernel for {requirement}", found, hint))
        return UnsupportedError(violations=wrong)


def _leading(index: _OperatorIndex, eligible: list[int], policy: Policy) -> tuple[list[int], list[int]]:
    """The eligible rows that are level in what outranks time (pinned, then role), and the others."""

    def standing(i: int) -> tuple[int, int]:
        pinned = bool(policy.pin) and matches_any(policy.pin, index.rows[i].names)
        return (0 if pinned else 1, index.roles[i])

    standings = [standing(i) for i in eligible] if policy.pin else [(1, index.roles[i]) for i in eligible]
    best = min(standings)
    leading = [i for i, s in zip(eligible, standings, strict=True) if s == best]
    return leading, [i for i, s in zip(eligible, standings, strict=True) if s != best]


def _check_rows(rows: tuple[Capability, ...]) -> None:
    wrong: list[Violation] = []
    for before, row in pairwise(rows):
        if before.id == row.id:
            wrong.append(Violation("two rows share an id", location=f"kernel {row.id!r}"))
    tables: tuple[tuple[str, Any], ...] = (
        ("cost", COST_MODELS),
        ("workspace", BYTES_MODELS),
        ("persistent", BYTES_MODELS),
    )
    for row in rows:
        for name, table in tables:
            model = getattr(row, name)
            if model is not None and model not in table:
                wrong.append(Violation(f"unknown {name} model", f"kernel {row.id!r}", ", ".join(table), repr(model)))
        if not row.ops:
            wrong.append(Violation("serves no operator", location=f"kernel {row.id!r}"))
    raise_all(InputError, wrong)
