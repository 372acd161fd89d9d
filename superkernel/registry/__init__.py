"""The kernel registry: one row per kernel variant, and the choice among them with its reasons.

    registry = default_registry()
    selection = registry.select_body(body, target, Policy.of(options))
    selection.kernel              # id for scheduler.families.family_of and codegen.host.emitters.emitter_of
    selection.explanation.text    # every candidate and every clause it failed

Files, in reading order: predicates (clauses), records (rows and requirements), facts, models (time, bytes),
eligibility, score, selection, explanation; names and lint; rows_host, rows_reduced, rows_aicore; manifest, timings;
commands.
Architecture invariant: the registry knows kernels by id only and imports neither scheduler nor codegen.
"""

from __future__ import annotations

from functools import cache

from superkernel.registry.explanation import Candidate, Change, Explanation, Fallback, diff
from superkernel.registry.predicates import Clause, Failure, Reason
from superkernel.registry.records import Capability, Determinism, KernelRole, Platform, Policy, Requirement, TensorNeed
from superkernel.registry.requirement import parse_requirement, requirement_of
from superkernel.registry.selection import Registry, Selection
from superkernel.registry.timings import TimingDatabase
from superkernel.target.aicore import AicoreTarget
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget

__all__ = [
    "Candidate",
    "Capability",
    "Change",
    "Clause",
    "Determinism",
    "Explanation",
    "Failure",
    "Fallback",
    "KernelRole",
    "Platform",
    "Policy",
    "Reason",
    "Registry",
    "Requirement",
    "Selection",
    "TensorNeed",
    "TimingDatabase",
    "aicore_registry",
    "default_registry",
    "diff",
    "parse_requirement",
    "registry_for",
    "requirement_of",
]


@cache
def default_registry() -> Registry:
    """The registry of everything this version has for the host."""
    from superkernel.registry.rows_host import host_rows
    from superkernel.registry.rows_reduced import reduced_rows

    return Registry((*host_rows(), *reduced_rows()))


@cache
def aicore_registry() -> Registry:
    """The registry of everything this version has for the accelerator."""
    from superkernel.registry.rows_aicore import aicore_rows

    return Registry(aicore_rows())


def registry_for(target: Target) -> Registry:
    """The registry of a target's rows."""
    return {CpuTarget.kind: default_registry, AicoreTarget.kind: aicore_registry}[target.kind]()
