"""Runs in many timings: `superkernel explore`.

Model: a kernel runs once as it is and then with delays of one seed after the other (`Kernel.run`, on any executor).
All results, states included, must have the bits of the first run; an error counts as another result. Where one differs,
the graph is cut down to the smallest for which some seed still does (`shrinking.py`), on random inputs. On the host and
the simulator a seed gives the same run again; on the emulator the same delays, but its threads run as they like.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.analysis.errors import relative_error
from superkernel.analysis.shrinking import shrunk
from superkernel.core.errors import SuperKernelError
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs

if TYPE_CHECKING:
    from os import PathLike

    from superkernel.runtime.kernel import Kernel
    from superkernel.target.aicore import AicoreTarget

Array = NDArray[Any]

SEEDS_SHRINKING = 12
"""Seeds that a smaller graph is tried with: its plan is another one, and so may be the seeds that it minds."""


@dataclass(frozen=True)
class Difference:
    """A seed whose run is not that without delays: `problem` says what is different. `smallest`: the smallest graph
    found that minds a seed, `smallest_seed`, on random inputs; None where that was not asked for, or random inputs do
    not show it."""

    seed: int
    problem: str
    smallest: Graph | None = None
    smallest_seed: int = 0


@dataclass(frozen=True)
class DelaySearch:
    """Results of `explore`."""

    graph: str
    target: str
    executor: str
    seeds: range
    difference: Difference | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        found: dict[str, Any] = {"schema": "superkernel.exploration/1", "graph": self.graph, "target": self.target}
        found |= {"executor": self.executor, "first_seed": self.seeds.start, "seeds": len(self.seeds)}
        d = self.difference
        if d is None:
            return {**found, "difference": None}
        small = None if d.smallest is None else {"nodes": len(d.smallest.nodes), "seed": d.smallest_seed}
        return {**found, "difference": {"seed": d.seed, "problem": d.problem, "smallest": small}}

    def text(self) -> str:
        """For a terminal."""
        where = f"{self.graph} on {self.target}, executor {self.executor}"
        d = self.difference
        if d is None:
            return f"{where}: {len(self.seeds)} seeds from {self.seeds.start} on change no bit"
        lines = [f"{where}: seed {d.seed} gives another result: {d.problem}"]
        if d.smallest is not None:
            lines.append(f"smallest graph that shows it, with seed {d.smallest_seed}:")
            lines += [f"  {line}" for line in str(d.smallest).splitlines()]
        return "\n".join(lines)


def explore(
    graph: Graph,
    target: str | PathLike[str] | AicoreTarget = "host",
    *,
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    inputs_seed: int = 0,
    executor: str | None = None,
    seeds: range = range(1, 21),
    shrink: bool = True,
) -> DelaySearch:
    """Run a graph with the delays of all seeds, up to the first that changes something. `inputs`: random ones of
    `inputs_seed` by default, which smaller graphs have anyway. Raises what the run without delays raises."""
    from superkernel.api import compile

    def compiled(part: Graph) -> Kernel:
        return compile(part, target, threads, options)

    kernel = compiled(graph)
    name = executor or kernel.executor
    arrays = random_inputs(kernel.inputs, inputs_seed) if inputs is None else kernel._arrays(inputs)
    found = next(_differences(kernel, arrays, name, seeds), None)
    difference = None if found is None else Difference(*found)
    if difference is not None and shrink:
        tried = range(difference.seed, difference.seed + SEEDS_SHRINKING)
        last: dict[str, tuple[Graph, int]] = {}

        def shows(part: Graph) -> bool:
            try:
                made = compiled(part)
                wrong = next(_differences(made, random_inputs(made.inputs, inputs_seed), name, tried), None)
            except SuperKernelError:  # not what is looked for
                return False
            if wrong is not None:
                last["graph"] = (part, wrong[0])
            return wrong is not None

        if shows(graph):
            shrunk(graph, shows)
            smallest, seed = last["graph"]
            difference = Difference(difference.seed, difference.problem, smallest, seed)
    return DelaySearch(kernel.name, kernel.summary()["target"], name, seeds, difference)


def _differences(kernel: Kernel, arrays: Mapping[str, Array], executor: str, seeds: range) -> Iterator[tuple[int, str]]:
    """The seeds that change a result, and what they change."""
    want = _results(kernel, arrays, executor, 0)
    for seed in seeds:
        try:
            got = _results(kernel, arrays, executor, seed)
        except SuperKernelError as error:
            yield seed, str(error)
            continue
        changed = [name for name, array in want.items() if array.tobytes() != got[name].tobytes()]
        if changed:
            name = changed[0]
            apart = relative_error(got[name], want[name], want[name])
            yield seed, f"{', '.join(changed)} differ, {name} by {apart:.1e} of its largest magnitude"


def _results(kernel: Kernel, arrays: Mapping[str, Array], executor: str, seed: int) -> dict[str, Array]:
    """Outputs and states of one run from the first states on."""
    kernel.reset_states()
    outputs = kernel.run(arrays, executor=executor, delays=seed).outputs
    return {**outputs, **{name: np.array(array) for name, array in kernel.states.items()}}
