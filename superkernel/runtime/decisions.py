"""Why a node runs as it does: what every backend says of the sub-operator that computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from superkernel.compilation.compiled import AnyCompilation
from superkernel.core.errors import InputError
from superkernel.core.option import did_you_mean
from superkernel.display import notebook
from superkernel.registry.explanation import KernelExplanation


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """The decisions about one sub-operator, and their reasons, as far as they are the same for all targets.
    `alternatives`: wider forms of synchronisation with their cost in ns."""

    subop: int
    name: str
    nodes: tuple[str, ...]
    kernel: str
    symbols: tuple[str, ...]
    selection: KernelExplanation
    grouping: tuple[str, ...]
    options: tuple[str, ...]
    placement: str
    tasks: tuple[str, ...]
    form: str
    reason: str
    cost_ns: float
    alternatives: tuple[tuple[str, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "selection": self.selection.to_json()}

    def text(self) -> str:
        """For a terminal."""
        lines = [f"sub-operator {self.subop} {self.name!r}, kernel {self.kernel}", f"computes: {', '.join(self.nodes)}"]
        lines += [f"symbol: {symbol}" for symbol in self.symbols]
        lines += ["", self.selection.text, "", f"placement: {self.placement}"]
        lines += [f"  {t}" for t in self.tasks]
        lines += [f"grouping: {n}" for n in self.grouping]
        lines += [f"option: {o}" for o in self.options]
        return "\n".join([*lines, *self._lines()])

    def _lines(self) -> Iterator[str]:
        """What a target adds: the boundary ahead of the sub-operator, for one."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """For notebooks: the decisions, and the whole reasons to unfold."""
        said = [
            ("computes", ", ".join(self.nodes)),
            ("kernel", self.kernel),
            ("placement", self.placement),
            *(("grouping", note) for note in self.grouping),
            *(("option", option) for option in self.options),
            ("boundary", f"{self.form}, about {self.cost_ns:.0f} ns: {self.reason}"),
        ]
        title = f"sub-operator {self.subop} {self.name!r}"
        return notebook.shown(title, notebook.table(("", ""), said), notebook.folded("every reason", self.text()))

    def __repr__(self) -> str:
        """One line; `str` has the reasons."""
        return f"<superkernel.{type(self).__name__} of sub-operator {self.subop} {self.name!r}, kernel {self.kernel}>"


def common(compiled: AnyCompilation, subop: int) -> dict[str, Any]:
    """The fields of `Decisions` that are found the same way for all targets."""
    sub = compiled.schedule.subops[subop]
    boundary = next(b for b in compiled.plan.boundaries if b.subop == subop)
    return {
        "subop": subop,
        "name": sub.name,
        "nodes": sub.nodes,
        "kernel": sub.kernel,
        "symbols": compiled.symbols[subop],
        "selection": compiled.chooser.selection_of(sub).explanation,
        "grouping": tuple(str(n) for n in compiled.grouping.notes if n.node in sub.nodes),
        "options": compiled.idle_options(),
        "form": boundary.form.value,
        "reason": boundary.reason,
        "cost_ns": boundary.cost_ns,
        "alternatives": tuple((form.value, cost) for form, cost in boundary.alternatives),
    }


def subop_index(compiled: AnyCompilation, node: str | int) -> int:
    """The sub-operator that a node's name, a value's name or a number means. Raises InputError."""
    subops = compiled.schedule.subops
    if isinstance(node, int) and not isinstance(node, bool):
        if 0 <= node < len(subops):
            return node
        raise InputError("no such sub-operator", expected=f"0 to {len(subops) - 1}", found=str(node))
    for sub in subops:
        if node in sub.nodes or node == sub.name:
            return sub.index
    producer = compiled.graph.producers.get(str(node)) or compiled.source.producers.get(str(node))
    if producer is not None and producer.name != node:
        return subop_index(compiled, producer.name)
    if any(n.name == node for n in (*compiled.graph.nodes, *compiled.source.nodes)):
        raise InputError(
            f"no sub-operator computes node {node!r}: it was folded away, or is an alias of another value",
            hint="`superkernel inspect MODEL --stage simplified` shows what is left",
        )
    graphs = (compiled.source, compiled.graph)
    known = [sub.name for sub in subops] + [name for g in graphs for n in g.nodes for name in (n.name, *n.outputs)]
    listed = 'kernel.stage_text("subops") lists them (command line: `superkernel inspect MODEL --stage subops`)'
    raise InputError(f"no node or value is called {node!r}", hint=did_you_mean([node], known) or listed)
