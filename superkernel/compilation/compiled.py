"""What a compilation works on and what it made, as data; each backend adds its own (`compiled.py` there).

Model: a `Job` is everything that decides the result. Planning makes it `Scheduled`, then `Planned`; a `Compilation`
is all of these with the proof, the code and what runs it. The pipeline fills it, stage by stage; kernels, reports,
explanations, saved files and experiments read it. It knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from superkernel.compilation.ineffective import idle_pins
from superkernel.core.arrays import owners
from superkernel.core.errors import InputError
from superkernel.core.options import Options
from superkernel.core.version import __version__
from superkernel.ir.graph import Graph
from superkernel.scheduler.schedule import PackedConstants
from superkernel.target.base import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superkernel.compilation.choice import KernelChooser
    from superkernel.ir.body import SubOperator
    from superkernel.registry.manifest import Manifest
    from superkernel.scheduler.grouping import Grouping
    from superkernel.scheduler.schedule import Schedule, Task


class PlanBoundary(Protocol):
    """The synchronisation ahead of a sub-operator's tasks; costs in ns."""

    @property
    def subop(self) -> int: ...
    @property
    def form(self) -> Enum: ...
    @property
    def reason(self) -> str: ...
    @property
    def cost_ns(self) -> float: ...
    @property
    def alternatives(self) -> Sequence[tuple[Enum, float]]: ...


class SyncPlan(Protocol):
    """What orders tasks, on whatever target; its `str` is its text form."""

    @property
    def tasks(self) -> Sequence[Task]: ...
    @property
    def boundaries(self) -> Sequence[PlanBoundary]: ...


class Proof(Protocol):
    """What a verifier checked, in numbers; `str` says it in a sentence."""

    @property
    def tasks(self) -> int: ...
    @property
    def conflicting_pairs(self) -> int: ...
    @property
    def cross_core_pairs(self) -> int: ...


class CompiledImage(Protocol):
    """Code and constants. `host_calls`: sub-operators that NumPy computes; `ir_texts`: by name, where kept."""

    @property
    def host_calls(self) -> Sequence[int]: ...
    @property
    def ir_texts(self) -> Mapping[str, str]: ...


class Executable(Protocol):
    """An image where it runs."""

    def run(self, io: Sequence[NDArray[Any]], /) -> None:
        """One launch on the table of inputs, outputs and states; outputs and states are written in place."""


TargetT = TypeVar("TargetT", bound=Target, covariant=True)
PlanT = TypeVar("PlanT", bound=SyncPlan, covariant=True)


@dataclass(frozen=True, eq=False)
class Job(Generic[TargetT]):
    """What is to be compiled, for what, and how: the graph as given, options with their defaults. `cores`: of the
    target, those that the kernel may use."""

    source: Graph
    target: TargetT
    cores: int
    options: Options


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A compilation as far as its schedule. `graph`: as it is compiled; `dumps`: names of option `dump` -> number among
    the outputs, behind the graph's own."""

    graph: Graph
    grouping: Grouping
    schedule: Schedule
    dumps: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Planned(Scheduled, Generic[PlanT]):
    """A compilation as far as its plan, which the proof is about."""

    plan: PlanT

    @property
    def units(self) -> dict[int, int]:
        """Units of work by sub-operator."""
        return {s.index: t.units for s, t in zip(self.schedule.subops, self.schedule.tilings, strict=True)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Compilation(Job[TargetT], Planned[PlanT], Generic[TargetT, PlanT]):
    """Job and plan, and what every compilation made of them."""

    certificate: Proof
    image: CompiledImage
    executable: Executable
    kernel_choice: Callable[[], KernelChooser]
    stage_ns: dict[str, int]
    version: str = __version__

    executor: ClassVar[str]
    """What runs it unless told otherwise."""
    cores_are: ClassVar[str] = "cores"

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of the compiled graph's outputs, each its own."""
        return names_of_outputs(self.graph)

    @cached_property
    def chooser(self) -> KernelChooser:
        """The choice of kernels, made when somebody asks for its reasons."""
        return self.kernel_choice()

    @property
    def objects(self) -> Mapping[str, bytes]:
        """Object code by cache key, where kernels can be saved."""
        return {}

    @property
    def symbols(self) -> tuple[tuple[str, ...], ...]:
        """Symbols of each sub-operator's kernel functions (`scheduler/symbols.py`); where it has no function: none."""
        return ((),) * len(self.schedule.subops)

    @property
    def function_bytes(self) -> Mapping[str, int]:
        """Bytes of code of each kernel function, by symbol, where there is machine code."""
        return {}

    def held(self) -> dict[Hashable, int]:
        """Bytes of the memory that it keeps as long as it lives, by what is the same where compilations share it."""
        parts = (self.source, self.graph, self.grouping)
        known = (part.constants for part in parts if not isinstance(part.constants, PackedConstants))
        return owners([*chain.from_iterable(c.values() for c in known), *self.source.states.values()])

    def idle_options(self) -> tuple[str, ...]:
        """The options that change nothing, on this target or for this graph, and why."""
        return idle_pins(self.options, self.schedule, lambda: self.chooser)

    def summary(self) -> dict[str, Any]:
        """Counts and sizes, plain data."""
        cores, plan, code = self._summaries()
        named = zip(self.output_names, self.graph.outputs, strict=True)
        return {
            "name": self.graph.name,
            **cores,
            "options_without_effect": list(self.idle_options()),
            "nodes": len(self.source.nodes),
            "sub_operators": len(self.schedule.subops),
            **plan,
            "arena_bytes": self.schedule.arena_bytes,
            "constant_bytes": sum(c.nbytes for c in self.schedule.constants),
            **code,
            "inputs": {n: str(t) for n, t in self.graph.inputs.items()},
            "outputs": {n: str(self.graph.types[v]) for n, v in named},
            "stage_ms": {name: round(ns / 1e6, 2) for name, ns in self.stage_ns.items()},
        }

    def _summaries(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """What a target adds to the summary: its cores, its plan, its code."""
        raise NotImplementedError

    def stage_text(self, stage: str) -> str:
        """The text of one stage. Raises InputError on another name."""
        texts = self._texts()
        if stage not in texts:
            raise InputError("no such stage", expected=", ".join(texts), found=repr(stage))
        return texts[stage]()

    def _texts(self) -> dict[str, Callable[[], str]]:
        return {
            "graph": lambda: str(self.source),
            "simplified": lambda: str(self.graph),
            "subops": lambda: str(self.grouping),
            "schedule": lambda: str(self.schedule),
            "plan": lambda: str(self.plan),
            "certificate": lambda: str(self.certificate),
        }

    def manifest(self) -> Manifest:
        """Kernels this model needs, for selective builds."""
        return self.chooser.manifest_of(self.graph.name, self.schedule.subops, self.symbols)

    def part_manifests(self) -> dict[str, Manifest]:
        """The same for each part of a graph with scopes: "" is what lies in none. Parts are models of their own."""
        parts: dict[str, list[SubOperator]] = {}
        for sub in self.schedule.subops:
            parts.setdefault(sub.scope or "", []).append(sub)
        return {
            part: self.chooser.manifest_of(f"{self.graph.name}/{part}", subops, [self.symbols[s.index] for s in subops])
            for part, subops in parts.items()
        }


def names_of_outputs(graph: Graph) -> tuple[str, ...]:
    """A value may be an output several times: later ones are numbered."""
    names: list[str] = []
    for name in graph.outputs:
        free, number = name, 0
        while free in names or (number and free in graph.outputs):
            number += 1
            free = f"{name}:{number}"
        names.append(free)
    return tuple(names)


AnyCompilation: TypeAlias = Compilation[Target, SyncPlan]
