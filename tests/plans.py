"""Plans and code as text: of operators every kernel with the tilings it tries and what each is estimated to take, of
models what is fused, where it runs and what it touches; of all of them digests of the code that they become
(`emitted.py`). `tests/plans/` holds them as they were last looked at.

    python tests/plans.py

writes them anew. Whoever changes an estimate, what is tried, where work goes or what is emitted sees the consequences
in the diff, and commits it with the change.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import emitted
from image_nets import NETS
from plan_cases import (
    ACCELERATORS,
    GRAPHS,
    TARGETS,
    kernels_of,
    planned_graph,
    planned_on,
    problems,
    small_problems,
    tilings,
    tilings_of,
    without_names,
)
from plan_draws import MACHINES, drawn_problems, drawn_settings
from plan_surroundings import BY_FIX, surrounded
from random_graphs import random_graph as small_graph
from random_models import random_graph

from superkernel.backends.aicore.compiled import AicorePlanned
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.options import Options
from superkernel.scheduler.families.aicore.base import AicoreTiling

DRAWN, DRAWN_GRAPHS = 1300, 160  # problems and models on CPUs with small caches
FOLDER = Path(__file__).with_name("plans")
CANDIDATES_ON = ("avx512", "tiles", "plain", "cortex-m55", "a3", "scarce", "single")
MODELS_ON = ("avx512", "mini")
RANDOM_ON = {"avx512": 100, "tiles": 50, "plain": 50, "mini": 100, "a3": 25}
"""On which targets how many random models are planned."""
RANDOM_SMALL = 40  # graphs with more views, states and odd outputs
SMALL_ON = {
    "avx512": (DType.F32, DType.F16),
    "plain": (DType.F32, DType.I32),
    "a3": (DType.F16, DType.F32),
    "scarce": (DType.F16,),
    "single": (DType.F16,),
}
"""On which targets problems of small sizes are looked at, in which element types."""
LOCAL = {"l1_bytes": 32, "l0a_bytes": 512, "l0b_bytes": 512, "l0c_bytes": 1024, "ub_bytes": 32}
"""Local memories of an accelerator's core, with the bytes that their sizes are multiples of."""
SEARCHED_LONG = ("matmul", "conv", "attention")  # those of `problems` are enough
REFUSED = "refused:"
CHANGES_MAX = 2  # of what is offered, from much memory to less, that are looked for


def candidates(name: str) -> str:
    """Of each problem the kernels that a target could take, their tilings in the order in which they are tried, and of
    each the nanoseconds of the whole, its first half and its last two thirds, on an accelerator also those of what goes
    ahead of a wait."""
    target: Any = TARGETS[name]()
    lines = []
    for text, policy in (*problems(name), *small_problems(SMALL_ON.get(name, ()), images_last=name in ACCELERATORS)):
        lines.append(f"{text} {policy.precision}")
        for kernel, body, tiling in tilings(text, policy, target):
            spans = (0, tiling.units), (0, (tiling.units + 1) // 2), (tiling.units // 3, tiling.units)
            costs = [tiling.cost_ns(body, *span, target) for span in spans]
            if isinstance(tiling, AicoreTiling):
                costs += [tiling.lead_cycles(body, *span, target) for span in spans[:2]]
            lines.append(f"  {' '.join(f'{ns:.4g}' for ns in costs)} {kernel} {without_names(tiling)}")
    return "\n".join(lines) + "\n"


def limits(name: str) -> str:
    """Of each small problem and local memory: with how much of it as many tilings are offered as with all that the
    target has, with how much something else, and with how much anything at all."""
    target: Any = TARGETS[name]()
    lines = []
    small = small_problems((DType.F16,), images_last=True)
    for text, policy in (*problems(name), *(row for row in small if not row[0].startswith(SEARCHED_LONG))):
        for kernel, body in kernels_of(text, policy, target):
            lines += [f"{text} {kernel} {row}" for row in _limits_of(kernel, body, target, LOCAL)]
            for how, behind in surrounded(kernel, body, target) if kernel.startswith(BY_FIX) else ():
                rows = _limits_of(kernel, behind, target, ["ub_bytes"])
                lines += [f"{text} {kernel}, {how} {row}" for row in rows]
    return "\n".join(lines) + "\n"


def _limits_of(kernel: str, body: Any, target: Any, memories: Iterable[str]) -> Iterator[str]:
    for memory in memories:
        at, step = cache(partial(_offered, kernel, body, target, memory)), LOCAL[memory]
        found = list(_changes(at, getattr(target.memory, memory), step))
        if found:
            told = (f"{n} {hashlib.sha256(at(n).encode()).hexdigest()[:8]}" for n in found)
            yield f"{memory} {', '.join(told)}"


def _changes(at: Callable[[int], str], most: int, step: int) -> Iterator[int]:
    """The least numbers that give the same as `most`, then the same as one step less than those, and so on; last the
    least one that gives anything, and one less, which says what is wanted. All multiples of the step."""
    for _ in range(CHANGES_MAX):
        here = at(most)
        if at(step) == here:
            return
        most = _least(most, step, lambda n, here=here: at(n) == here)  # type: ignore[misc]
        yield most
        most -= step
    if not at(most).startswith(REFUSED) and at(step).startswith(REFUSED):
        most = _least(most, step, lambda n: not at(n).startswith(REFUSED))
        yield from (most, most - step)


def _least(most: int, step: int, holds: Callable[[int], bool]) -> int:
    """The least multiple of the step that it holds for, by bisection: it does for `most`, and not for the first."""
    low = step
    while most - low > step:
        middle = (low + most) // 2 // step * step
        low, most = (low, middle) if holds(middle) else (middle, most)
    return most


def _offered(kernel: str, body: Any, target: Any, memory: str, nbytes: int) -> str:
    """The tilings of a kernel where a local memory has that size, or why there are none."""
    try:
        offered = tilings_of(kernel, body, replace(target, memory=replace(target.memory, **{memory: nbytes})))
        return "\n".join(without_names(tiling) for tiling in offered)
    except UnsupportedError as error:
        return f"{REFUSED} {error}"


def drawn() -> str:
    """Of each problem drawn the kernels that a CPU with small caches could take, how many tilings each tries, the
    nanoseconds of the first, and a digest of all of them and of what they take."""
    machines = {name: made() for name, made in MACHINES.items()}
    lines = []
    for name, text, policy in drawn_problems(DRAWN):
        target, found = machines[name], dict[str, list[tuple[float, str]]]()
        for kernel, body, tiling in tilings(text, policy, target):
            middle, least = (tiling.units + 1) // 2, tiling.units // 3
            spans = (0, tiling.units), (0, middle), (least, tiling.units), (middle, middle)
            costs = [tiling.cost_ns(body, *span, target) for span in spans]
            told = f"{' '.join(f'{ns:.4g}' for ns in costs)} {without_names(tiling)} {tiling.scratch_bytes}"
            found.setdefault(kernel, []).append((costs[0], told))
        lines.append(f"{name} {text} {policy.precision}")
        for kernel, tried in found.items():
            of_all = emitted.digest("\n".join(told for _, told in tried))
            lines.append(f"  {kernel} {len(tried)} {tried[0][0]:.4g} {of_all}")
    return "\n".join(lines) + "\n"


def drawn_plans() -> str:
    """The same as `random_plans`, with options and numbers of threads that are drawn too."""
    machines = {name: made() for name, made in MACHINES.items()}
    lines = []
    for seed in range(DRAWN_GRAPHS):
        graph = random_graph(random.Random(seed)) if seed % 4 else small_graph(seed)
        name, threads, options = drawn_settings(seed)
        chosen = " ".join(f"{key}={value}" for key, value in options.items())
        told = f"{seed} {name} {threads} {chosen}".rstrip()
        lines += _told(told, planned_on(graph, machines[name], Options(**options), threads))
    return "\n".join(lines) + "\n"


def planned(name: str) -> str:
    """Of each model what is fused, its tilings and places, and all tasks with what they touch."""
    plans = {model: planned_graph(graph(), name) for model, graph in GRAPHS.items()}
    lines = []
    for model, made in plans.items():
        lines += [f"model {model}", str(made.grouping), str(made.schedule), str(made.plan)]
        if isinstance(made, AicorePlanned):
            lines += [f"# {part}" for part in made.parts]
            lines += [f"# prefetch {made.weights.strength}: {made.weights.reason}"]
            lines += [f"#   of {subop}: {note}" for subop, note in sorted(made.weights.notes.items())]
    return "\n".join(lines) + "\n"


def random_plans(name: str) -> str:
    """Of random models and small networks of images the tilings, and digests of tasks and of the plan."""
    lines = []
    graphs = [(f"random {seed}", random_graph(random.Random(seed)), True) for seed in range(RANDOM_ON[name])]
    graphs += [(f"small {seed}", small_graph(seed), seed % 4 != 3) for seed in range(RANDOM_SMALL)]
    graphs += [(f"network {net}", make(), True) for net, make in NETS.items()]
    for model, graph, fused in graphs:
        lines += _told(model, planned_graph(graph, name, Options(fuse=fused)))
    return "\n".join(lines) + "\n"


def _told(model: str, made: Any) -> list[str]:
    subops, tasks = [], []
    for line in str(made.schedule).splitlines():
        (subops if line.startswith("# subop") else tasks).append(without_names(line))
    return [f"{model} {emitted.digest(chr(10).join(tasks))} {emitted.digest(str(made.plan))}", *subops]


TEXTS: Mapping[str, Callable[[], str]] = {
    **{f"candidates-{name}": partial(candidates, name) for name in CANDIDATES_ON},
    "limits-mini": partial(limits, "mini"),
    "drawn": drawn,
    "drawn-plans": drawn_plans,
    **{f"models-{name}": partial(planned, name) for name in MODELS_ON},
    **{f"random-{name}": partial(random_plans, name) for name in RANDOM_ON},
    **emitted.TEXTS,
}


def path_of(text: str) -> Path:
    """Where a text is kept."""
    return FOLDER / f"{text}.txt"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        path_of(name).write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
