"""Which sub-operator makes a result wrong: `superkernel bisect`.

Model: the kernel is compiled with every sub-operator's stored values handed out (option `dump`), still one fused
kernel. For each sub-operator in order, the values that it stored are held against the reference computed from *the very
values that the run gave it*: that error is its own. Against the reference computed from the graph's inputs it is what
arrived with the error of all before it. The first sub-operator whose own error leaves the tolerance is the cause; later
ones whose error only arrived are not to blame. Of a value that several sub-operators write (a concatenation in place),
only the bytes that the sub-operator declares to write are compared, where they lie in a buffer of their own.

Errors are relative to the largest magnitude of the value. The default tolerance of an own error is what
`transforms.precision.error_bound` allows a chain as long as the sub-operator has nodes; in f32 it is 1e-4. What arrived
may be larger by the root of the chain's length over that.

Handing values out keeps their memory from being reused. Where that changes the bits of the outputs, reuse or
synchronisation is at fault, not a kernel: the result says so (`placement`), and option `debug_sync_all` tells the two
apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.analysis.errors import relative_error
from superkernel.compilation.dumps import stored_values
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.core.options import Options
from superkernel.core.tensor import Region
from superkernel.ir.body import SubOperator
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate, run_reference
from superkernel.runtime.kernel import Kernel
from superkernel.scheduler.schedule import Schedule, Space

if TYPE_CHECKING:
    from os import PathLike

    from superkernel.target.aicore import AicoreTarget

Array = NDArray[Any]
Values = dict[str, Array]

F32_TOLERANCE = 1e-4
_NARROW = (DType.F16, DType.BF16)


@dataclass(frozen=True)
class Finding:
    """A value that a sub-operator stored. `own`: error against the reference on what it was given; `arrived`: against
    the reference on the graph's inputs. `not_finite`: how many of its elements are NaN or infinite."""

    subop: int
    name: str
    nodes: tuple[str, ...]
    kernel: str
    value: str
    own: float
    arrived: float
    tolerance: float
    arrived_tolerance: float
    not_finite: int = 0

    @property
    def verdict(self) -> str:
        """cause, arrived (wrong, but not by this sub-operator) or right."""
        if not self.own <= self.tolerance:
            return "cause"
        return "right" if self.arrived <= self.arrived_tolerance else "arrived"


@dataclass(frozen=True)
class Bisection:
    """See the module docstring. `placement`: outputs that have other bits when nothing is handed out."""

    graph: str
    target: str
    findings: tuple[Finding, ...]
    placement: tuple[str, ...]

    @property
    def first(self) -> Finding | None:
        """The first cause; None where every sub-operator computes what it should."""
        return next((f for f in self.findings if f.verdict == "cause"), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        rows = [{**asdict(f), "verdict": f.verdict} for f in self.findings]
        first = None if self.first is None else self.first.subop
        found = {"schema": "superkernel.bisection/1", "graph": self.graph, "target": self.target, "first": first}
        return {**found, "placement": list(self.placement), "findings": rows}

    def text(self) -> str:
        """For a terminal: the first cause, and the sub-operators that are not right."""
        wrong = [f for f in self.findings if f.verdict != "right"]
        lines = []
        if self.first is not None:
            f = self.first
            lines.append(
                f"first wrong: sub-operator {f.subop} {f.name!r} ({f.kernel}), value {f.value!r}: error {f.own:.2e} on "
                f"its own inputs, tolerance {f.tolerance:.1e}"
            )
            lines.append(f"  it computes {', '.join(f.nodes)}")
        elif not self.findings:
            lines.append(f"{self.graph} on {self.target} computes nothing: its outputs are inputs, states or constants")
        elif not wrong:
            some = f"all {len(self.findings)} values" if len(self.findings) > 1 else "the one value"
            verb = "are" if len(self.findings) > 1 else "is"
            lines.append(f"{some} of {self.graph} on {self.target} {verb} within the tolerance")
        else:
            lines.append("every sub-operator computes what it should on its own inputs; errors add up beyond the bound")
        if odd := [f for f in self.findings if f.not_finite]:
            count = sum(f.not_finite for f in odd)
            lines.append(
                f"NaN or infinite: {count} elements, the first in value {odd[0].value!r}; where the reference has the "
                "same they count as right"
            )
        if self.placement:
            names = ", ".join(self.placement)
            lines.append(
                f"outputs {names} have other bits when nothing is handed out: reuse of memory or synchronisation is at "
                "fault; --option debug_sync_all=on tells them apart"
            )
        if wrong:
            lines.append(
                f"{'':>4} {'sub-operator':<32} {'value':<32} {'own':>9} {'arrived':>9} {'allowed':>9} {'allowed':>9}"
            )
        for f in wrong[:ROWS_SHOWN]:
            lines.append(
                f"{f.subop:>4} {f.name[-32:]:<32} {f.value[-32:]:<32} {f.own:>9.1e} {f.arrived:>9.1e} "
                f"{f.tolerance:>9.1e} {f.arrived_tolerance:>9.1e}  {f.verdict}"
            )
        if len(wrong) > ROWS_SHOWN:
            lines.append(f"... and {len(wrong) - ROWS_SHOWN} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


ROWS_SHOWN = 40


def bisect(
    graph: Graph,
    target: str | PathLike[str] | AicoreTarget = "host",
    *,
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
) -> Bisection:
    """Find the first sub-operator whose values leave the tolerance. `inputs`: random ones of seed 0 by default."""
    from superkernel.api import compile

    chosen = Options.of(options)
    plain = compile(graph, target, threads, replace(chosen, dump=()))
    arrays = plain._random() if inputs is None else plain._arrays(inputs)
    expected = plain.run(arrays).outputs
    kernel = compile(graph, target, threads, replace(chosen, dump=("*",)))
    states = {name: np.array(array) for name, array in kernel.states.items()}
    result = kernel.run(arrays)
    moved = tuple(n for n, a in expected.items() if a.tobytes() != result.outputs[n].tobytes())
    search = _Search(kernel, arrays, states, result.dumps)
    return Bisection(kernel.name, kernel.summary()["target"], search.run(tolerance), moved)


class _Search:
    """One run with everything handed out."""

    def __init__(self, kernel: Kernel, inputs: Values, states: Values, dumps: Values) -> None:
        compiled = kernel._compiled
        self.graph: Graph = compiled.graph
        self.schedule: Schedule = compiled.schedule
        self.given: Values = {**inputs, **states}
        self.dumps: Values = {self.graph.outputs[slot]: dumps[name] for name, slot in compiled.dumps.items()}
        exact = {n: a.astype(self.graph.types[n].dtype.numpy) for n, a in states.items()}
        kept = evaluate(self.graph, inputs, exact, wide=True, keep=self.dumps, whole=True)
        self.exact: Values = dict(kept)
        self.nodes = {node.name: node for node in self.graph.nodes}

    def run(self, tolerance: float | None) -> tuple[Finding, ...]:
        """All sub-operators in order."""
        found = []
        for sub in self.schedule.subops:
            for value in stored_values(self.graph, sub):
                if value in self.dumps and sub.nodes:
                    found.append(self.check(sub, value, tolerance))
        return tuple(found)

    def check(self, sub: SubOperator, value: str, tolerance: float | None) -> Finding:
        """One value that a sub-operator stored."""
        got, want, whole = self.dumps[value], self.own(sub, value), self.exact[value]
        mask = self.written(sub, value)
        dtype = self.graph.types[value].dtype
        if tolerance is None:
            narrow = any(self.graph.types[v].dtype in _NARROW for n in sub.nodes for v in self._values(n))
            eps = float(np.finfo(np.float16).eps) * (8 if dtype is DType.BF16 else 1)
            tolerance = eps * sqrt(len(sub.nodes) + 1) if narrow else F32_TOLERANCE
        own, arrived = _error(got, want, mask), _error(got, whole, mask)
        further = max(1.0, sqrt(self.depths[value] / max(1, len(sub.nodes))))
        odd = ~np.isfinite(got.astype(np.float64)) if mask is None else ~np.isfinite(got.astype(np.float64)) & mask
        return Finding(
            sub.index,
            sub.name,
            sub.nodes,
            sub.kernel,
            value,
            own,
            arrived,
            tolerance,
            tolerance * further,
            int(odd.sum()),
        )

    @cached_property
    def depths(self) -> dict[str, int]:
        """The longest chain of nodes that ends in each value."""
        found: dict[str, int] = {}
        for node in self.graph.nodes:
            reached = 1 + max((found.get(v, 0) for v in node.inputs if v is not None), default=0)
            found.update(dict.fromkeys(node.outputs, reached))
        return found

    def _values(self, name: str) -> list[str]:
        node = self.nodes[name]
        return [*node.outputs, *(v for v in node.inputs if v is not None)]

    def own(self, sub: SubOperator, value: str) -> Array:
        """The reference of a value from what the run gave the sub-operator: what was stored elsewhere is taken as it
        is, everything else (its own nodes, views, what it recomputes) is computed."""
        known: Values = {}
        mine = {v for name in sub.nodes for v in self.nodes[name].outputs}

        def of(name: str) -> Array:
            if name not in known:
                if name in self.dumps and name not in mine:
                    known[name] = self._wide(self.dumps[name])
                elif name in self.graph.constants:
                    known[name] = self._wide(self.graph.constants[name])
                elif name in self.given:
                    known[name] = self._wide(self.given[name])
                else:
                    self._compute(name, known, of)
            return known[name]

        return of(value)

    def _compute(self, name: str, known: Values, of: Any) -> None:
        node = self.graph.producers.get(name)
        if node is None:
            raise InternalError("a value that nobody computes", location=name)
        arrays = [None if v is None else of(v) for v in node.inputs]
        definition, kinds = self.graph.definition(node), self.graph.output_types(node)
        known.update(zip(node.outputs, run_reference(definition, arrays, node.attrs, kinds, True, name), strict=True))

    def _wide(self, array: Array) -> Array:
        return array.astype(np.float64) if DType.of(array.dtype).is_float else array

    def written(self, sub: SubOperator, value: str) -> NDArray[np.bool_] | None:
        """Which elements of a value the sub-operator's tasks declare to write, where the value is an output's whole
        buffer; None: all of them."""
        slot = self.graph.outputs.index(value)
        regions = [
            region
            for task in self.schedule.tasks
            if task.subop == sub.index
            for access in task.accesses
            if access.write and (access.space, access.slot) == (Space.OUTPUT, slot)
            for region in access.regions
        ]
        return _mask(regions, self.graph.types[value].nbytes, self.dumps[value]) if regions else None


def _mask(regions: Sequence[Region], nbytes: int, like: Array) -> NDArray[np.bool_]:
    """Regions of bytes as elements."""
    touched = np.zeros(nbytes, np.bool_)
    for region in regions:
        for i in range(region.count):
            touched[region.start + i * region.stride :][: region.length] = True
    elements: NDArray[np.bool_] = touched.reshape(-1, like.itemsize).max(axis=1, initial=False)
    return elements.reshape(like.shape)


def _error(got: Array, want: Array, mask: NDArray[np.bool_] | None) -> float:
    """As `relative_error`, of the elements in the mask; whole numbers are exact."""
    error = relative_error(got, want, want, mask)
    return float("inf") if error and got.dtype.kind in "iub" else error
