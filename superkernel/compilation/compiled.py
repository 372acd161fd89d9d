"""What a compilation made, as data; each backend adds its own (`compiled.py` there).

Model: the pipeline fills it, stage by stage; kernels, reports, explanations, saved files and experiments read it. It
knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from superkernel.compilation.ineffective import idle_options
from superkernel.core.errors import InputError
from superkernel.core.options import Options
from superkernel.core.version import __version__
from superkernel.ir.graph import Graph

if TYPE_CHECKING:
    from superkernel.compilation.choice import KernelChooser
    from superkernel.scheduler.grouping import Grouping
    from superkernel.scheduler.schedule import Schedule
    from superkernel.sync.aicore.plan import AicorePlan
    from superkernel.sync.aicore.verify import AicoreCertificate
    from superkernel.sync.plan import Plan
    from superkernel.sync.verify import Certificate


@dataclass(kw_only=True)
class Compilation:
    """What every compilation made. `source`: the graph as given, `graph`: as it was compiled."""

    source: Graph
    graph: Graph
    options: Options
    grouping: Grouping
    kernel_choice: Callable[[], KernelChooser]
    schedule: Schedule
    plan: Plan | AicorePlan
    certificate: Certificate | AicoreCertificate
    stage_ns: dict[str, int]
    version: str = __version__
    dumps: Mapping[str, int] = field(default_factory=dict)  # name -> number among the outputs, behind the graph's own
    output_names: tuple[str, ...] = field(init=False)

    executor: ClassVar[str]

    def __post_init__(self) -> None:
        self.output_names = names_of_outputs(self.graph)

    @cached_property
    def chooser(self) -> KernelChooser:
        """The choice of kernels, made when somebody asks for its reasons."""
        return self.kernel_choice()

    def idle_options(self) -> tuple[str, ...]:
        """The options that change nothing: on this target, then for this graph."""
        return idle_options(self.options, self.schedule, lambda: self.chooser, host=self.executor == "host")

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

    def manifest(self) -> Any:
        """Kernels this model needs, for selective registration."""
        return self.chooser.manifest(self.graph.name, [s.body for s in self.schedule.subops])


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
