"""Why this kernel: everything a selection decided, as text and as JSON.

Model: an explanation keeps the facts and the masks of the selection that made it and spells out candidates, failures
and scores when they are read, with the very clauses that decided. It therefore shows all candidates, and costs the
selection almost nothing.

Invariant: `eligible` + `rejected` are all rows of the operator; a rejected candidate has at least one failure, an
eligible one none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from superkernel.registry.facts import Problem
from superkernel.registry.predicates import Failure, Reason
from superkernel.registry.records import Capability, KernelRole, Requirement, plain
from superkernel.registry.score import SOURCES, Score, deciding_element

_ELSEWHERE = frozenset({Reason.DTYPE, Reason.CPU_FEATURE})  # hide a candidate from the text where one was chosen
_NEAREST = 3  # rejected kernels that a fallback's reason names


class Candidate(NamedTuple):
    """One row: its score where it was eligible, its failures where not."""

    row: Capability
    score: Score | None
    failures: tuple[Failure, ...]


class Fallback(NamedTuple):
    """That a less preferred role was taken, and why: `kind` is the role taken."""

    kind: str
    reason: str


class TransformUse(NamedTuple):
    """A transform of the chosen kernel on this problem."""

    kind: str
    slot: int
    amortised: bool
    bytes: int


class Change(NamedTuple):
    """One difference between two explanations."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.after}"


@dataclass(frozen=True, eq=False)
class KernelExplanation:
    """See the module docstring. `ranking` and `rejecting` spell out the two lists of candidates; `elapsed_ns` is the
    time the selection took."""

    requirement: Requirement
    chosen: Capability
    ranking: Callable[[], list[Candidate]] = field(repr=False)
    rejecting: Callable[[], list[Candidate]] = field(repr=False)
    facts: Problem = field(repr=False)
    better_roles: bool
    elapsed_ns: int

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and deep copies: the candidates as they are, without the registry that spells them out."""
        lists: dict[str, Any] = {"ranking": partial(list, self.eligible), "rejecting": partial(list, self.rejected)}
        return {**vars(self), **lists}

    @property
    def score(self) -> Score:
        """The figures of the chosen row."""
        found = next(c.score for c in self.eligible if c.row is self.chosen)
        assert found is not None
        return found

    @property
    def workspace_bytes(self) -> tuple[tuple[str, int], ...]:
        """What the chosen kernel needs per memory region, by name."""
        estimate = self.facts.estimate_of(self.chosen.kernel)
        return () if estimate is None else tuple(sorted(estimate.workspace.items()))

    @cached_property
    def eligible(self) -> tuple[Candidate, ...]:
        """All eligible candidates, best first."""
        return tuple(self.ranking())

    @cached_property
    def rejected(self) -> tuple[Candidate, ...]:
        """All rejected candidates by id, each with every clause it failed."""
        return tuple(self.rejecting())

    @property
    def runner_up(self) -> Candidate | None:
        """The second-best candidate, None where there was no choice."""
        return self.eligible[1] if len(self.eligible) > 1 else None

    @property
    def decided_by(self) -> str | None:
        """The score element that put the winner before the runner-up."""
        second = self.runner_up
        if second is None or second.score is None:
            return None
        return deciding_element(self.score, second.score, self.requirement.policy.objective)

    @cached_property
    def fallback(self) -> Fallback | None:
        """Set where a better role exists but was not eligible, or where the operator has the reference only."""
        role = self.chosen.role
        if not self.better_roles:
            return Fallback(role.value, "the operator has no kernel") if role is KernelRole.REFERENCE else None
        steps = []
        for better in KernelRole:
            if better.rank >= role.rank:
                break
            steps += [f"no {better.value} kernel: {self._nearest(better)}"] if self._of_role(better) else []
        return Fallback(role.value, "; ".join(steps)) if steps else None

    def _of_role(self, role: KernelRole) -> list[Candidate]:
        return [c for c in self.rejected if c.row.role is role]

    def _nearest(self, role: KernelRole) -> str:
        """Per kernel of a role, what the variants that came nearest ask for: their demands on one field are joined."""
        kernels: dict[str, list[Candidate]] = {}
        for candidate in self._of_role(role):
            kernels.setdefault(candidate.row.kernel, []).append(candidate)
        texts = []
        for kernel, candidates in sorted(kernels.items(), key=lambda item: min(len(c.failures) for c in item[1])):
            fewest = min(len(c.failures) for c in candidates)
            demands: dict[tuple[str, str, str], set[str]] = {}
            for failure in (f for c in candidates if len(c.failures) == fewest for f in c.failures):
                demands.setdefault((failure.reason.value, failure.field, failure.actual), set()).add(failure.required)
            asked = [
                f"{reason}: {field} must be {' | '.join(sorted(required))}, is {actual}"
                for (reason, field, actual), required in demands.items()
            ]
            texts.append(f"{kernel} ({', '.join(asked)})")
        more = len(texts) - _NEAREST
        return ", ".join(texts[:_NEAREST]) + (f" and {more} more" if more > 0 else "")

    @cached_property
    def transforms(self) -> tuple[TransformUse, ...]:
        """What happens to operands ahead of the kernel, with the bytes it writes."""
        estimate, used = self.facts.estimate_of(self.chosen.kernel), []
        for t in self.chosen.transforms:
            known = {} if estimate is None else estimate.packed if t.amortised else {t.slot: estimate.temporary_bytes}
            used.append(TransformUse(t.kind, t.slot, t.amortised, known.get(t.slot, 0)))
        return tuple(used)

    @property
    def transfer_bytes(self) -> int:
        """Bytes that cross between generated code and the reference per call."""
        return int(self.facts["bytes"]) if self.chosen.role is KernelRole.REFERENCE else 0

    def to_json(self, cached: bool | None = None) -> dict[str, Any]:
        """Everything, as plain data. `cached` is added where it is known."""
        second, fallback = self.runner_up, self.fallback
        return {
            "requirement": {**self.requirement.problem(), "key": self.requirement.key},
            "chosen": {"id": self.chosen.id, "kernel": self.chosen.kernel, "name": self.chosen.name},
            "role": self.chosen.role.value,
            "score": self.score._asdict(),
            "time_source": SOURCES[self.score.source],
            "runner_up": None if second is None else second.row.id,
            "decided_by": self.decided_by,
            "eligible": [{"id": c.row.id, "score": c.score._asdict()} for c in self.eligible if c.score is not None],
            "rejected": [{"id": c.row.id, "failures": [_failure_data(f) for f in c.failures]} for c in self.rejected],
            "fallback": None if fallback is None else fallback._asdict(),
            "workspace_bytes": dict(self.workspace_bytes),
            "transforms": [t._asdict() for t in self.transforms],
            "transfer_bytes": self.transfer_bytes,
            "determinism": self.chosen.determinism.value,
            "numeric": {"class": self.chosen.numeric.value, "error_ulps": self.chosen.error_ulps},
            "policy": {
                name: plain(getattr(self.requirement.policy, name))
                for name in type(self.requirement.policy).__dataclass_fields__
            },
            "cached": cached,
            "elapsed_ns": self.elapsed_ns,
        }

    @property
    def text(self) -> str:
        """The explanation for people."""
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        score, second = self.score, self.runner_up
        lines = [
            str(self.requirement),
            f"chosen     {self.chosen.id}  ({self.chosen.name})",
            f"role       {self.chosen.role.value}, {self.chosen.determinism.value}, {self.chosen.numeric.value} "
            f"within {self.chosen.error_ulps:g} ulp",
            f"time       {score.time_ns:.0f} ns ({SOURCES[score.source]})",
        ]
        if second is not None and second.score is not None:
            detail = self.decided_by or ""
            ours, theirs = getattr(score, detail), getattr(second.score, detail)
            lines.append(f"runner-up  {second.row.id}: {detail} {_figure(theirs)} against {_figure(ours)}")
        if self.fallback is not None:
            lines.append(f"fallback   {self.fallback.kind}: {self.fallback.reason}")
        lines += [f"workspace  {region}: {count} bytes" for region, count in self.workspace_bytes]
        for use in self.transforms:
            when = "once, when compiling" if use.amortised else "per call"
            lines.append(f"transform  {use.kind} of input {use.slot}: {use.bytes} bytes, {when}")
        if self.transfer_bytes:
            lines.append(f"transfer   {self.transfer_bytes} bytes to and from the reference per call")
        for candidate in self.eligible[1:]:
            assert candidate.score is not None
            lines.append(f"eligible   {candidate.row.id}: {candidate.score.time_ns:.0f} ns")
        elsewhere = 0
        for candidate in self.rejected:
            if self.fallback is None and any(failure.reason in _ELSEWHERE for failure in candidate.failures):
                elsewhere += 1
                continue
            lines.append(f"rejected   {candidate.row.id}")
            lines += [f"             {failure}" for failure in candidate.failures]
        if elsewhere:
            lines.append(f"rejected   {elsewhere} rows for other dtypes or machines (the JSON form lists them)")
        lines.append(f"selected in {self.elapsed_ns / 1000:.1f} us")
        return lines


def _failure_data(failure: Failure) -> dict[str, str]:
    return {**failure._asdict(), "reason": failure.reason.value}


def _figure(value: float | int | str) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def diff(a: KernelExplanation, b: KernelExplanation) -> tuple[Change, ...]:
    """What is different from a to b: problem, choice, score, workspace, and each candidate that changed sides or
    failures."""
    changes: list[Change] = []

    def compare(what: str, before: object, after: object) -> None:
        if before != after:
            changes.append(Change(what, str(before), str(after)))

    before_facts, after_facts = a.facts, b.facts
    for name in sorted({*before_facts, *after_facts}):
        compare(f"fact {name}", before_facts.get(name, "absent"), after_facts.get(name, "absent"))
    compare("chosen", a.chosen.id, b.chosen.id)
    for name in ("pinned", "role", "time_ns", "workspace_bytes", "code_bytes"):
        compare(f"score {name}", getattr(a.score, name), getattr(b.score, name))
    compare("decided by", a.decided_by, b.decided_by)
    compare("workspace", dict(a.workspace_bytes), dict(b.workspace_bytes))
    before, after = _standings(a), _standings(b)
    for row_id in sorted({*before, *after}):
        compare(f"candidate {row_id}", before.get(row_id, "no candidate"), after.get(row_id, "no candidate"))
    return tuple(changes)


def _standings(explanation: KernelExplanation) -> dict[str, str]:
    found = {c.row.id: "eligible" for c in explanation.eligible}
    for c in explanation.rejected:
        found[c.row.id] = "rejected: " + ", ".join(f"{f.reason.value} {f.field}" for f in c.failures)
    return found
