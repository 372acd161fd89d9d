"""What one boundary costs where cores truly have to wait for one another.

    python bench/boundary.py [--json] [--docs]

A chain of 65 products [1, 128] x [128, 128]: each core computes half of a vector and needs all of it for the next
product, so each of the 64 boundaries is an exchange that no plan can avoid on two cores. Placement by cost is off: it
would, rightly, run so small a chain on one core.

What is subtracted is the same work in the same place without the exchange: *alone*, each core's own tasks, its half of
every product, with nobody on the other core. (Half the time of the whole chain on one core would not do: twice the
weights leave its L1.) Both need no wait, and what they compute from is never touched by anybody else.

    cost per boundary = (time on two cores - time of the slower half alone) / 64

is everything that exchanging adds: waits, lines of data that move, halves that are not ready at the same moment, and a
64th of starting and joining the second core. *Waiting* is the part of it that goes away when waits and sets are taken
out of the two cores' program and everything else stays: cores then read what the other may not have written yet, and
the results, which are ignored, are wrong. Such programs exist only here: nothing that `compile` returns has an
unverified plan.

Where in memory a kernel's values and counters happen to lie changes the cost by a tenth or more, and stays as it is as
long as the kernel is loaded: each is loaded several times, and the launches are shared out.

Everything is compared with the round trip of a cache line between the two cores, measured in turn with it, and rounds
in which the two CPUs were no cores of their own are taken again (`cores.py`). `--docs` puts the figures into
docs/performance.json and writes the page anew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import machine
import numpy as np
from cores import OwnCores
from document import DOCS, boundary_lines, write_docs
from stats import estimate

import superkernel as sk
from superkernel import _core
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.executable import HostExecutable
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.image import ImageBuilder
from superkernel.reference.random_inputs import random_inputs
from superkernel.sync.plan import Plan, TaskStep

BOUNDARIES = 64
WIDTH = 128
WARMUP_LAUNCHES = 20
LOADINGS = 8
TRIPS = 5
STEADY = 1.2  # how much a round trip may change within a round


def chain() -> sk.Graph:
    """See the module docstring."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("boundaries")
    x = b.input("x", (1, WIDTH))
    w = b.constant(rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(np.sqrt(WIDTH)))
    for _ in range(BOUNDARIES + 1):
        x = x @ w
    b.output(x, name="y")
    return b.graph()


def without_waits(plan: Plan) -> Plan:
    """The same tasks in the same order on the same cores: nobody waits and nobody tells."""
    programs = tuple(tuple(s for s in program if isinstance(s, TaskStep)) for program in plan.programs)
    return Plan(plan.tasks, programs, (0,) * plan.cores, (), ())


def alone(plan: Plan, core: int) -> Plan:
    """One core's tasks, on the only core."""
    tasks = [plan.tasks[s.task] for s in plan.programs[core] if isinstance(s, TaskStep)]
    own = tuple(replace(task, index=i, core=0) for i, task in enumerate(tasks))
    return Plan(own, (tuple(map(TaskStep, range(len(own)))),), (0,), (), ())


def runner(compiled: HostCompiled, plan: Plan) -> Callable[[int], float]:
    """A kernel of the compiled one's functions and places with another plan: median ns of so many launches, shared out
    over loadings of it."""
    graph = compiled.graph
    schedule = replace(compiled.schedule, cores=plan.cores, tasks=plan.tasks)
    builder = ImageBuilder(
        schedule,
        plan,
        compiled.target,
        ObjectCache(None),
        inputs=len(graph.inputs),
        outputs=len(graph.outputs),
        states=len(graph.states),
    )
    image = builder.build(compiled.grouping.constants)
    executables = [HostExecutable(image, schedule, plan) for _ in range(LOADINGS)]
    outputs = [np.empty(graph.types[name].shape, np.float32) for name in graph.outputs]
    io = [*random_inputs(graph.inputs, 0).values(), *outputs]

    def run(launches: int) -> float:
        times = [e.time(io, -(-launches // LOADINGS), WARMUP_LAUNCHES) for e in executables]
        return float(np.median(np.concatenate(times)))

    return run


def one_round(runners: Sequence[Callable[[int], float]], launches: int) -> tuple[float, ...]:
    """Round trip before and after, both cores, both without waits, the slower half: ns."""
    before = round_trip_ns()
    both, free, *halves = (run(launches) for run in runners)
    return before, round_trip_ns(), both, free, max(halves)


def round_trip_ns() -> float:
    """Of a cache line: the median of some measurements, as `machine.py` takes it."""
    return 2 * statistics.median(machine.core_to_core_ns() for _ in range(TRIPS))


def steady(rounds: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The rounds with one round trip each, less those in which it changed: a virtual machine's CPUs move, and what was
    measured near by does not go with what was measured far apart. All of them where none was steady."""
    kept = [r for r in rounds if max(r[:2]) <= STEADY * min(r[:2])] or rounds
    return [((before + after) / 2, *times) for before, after, *times in kept]


def measure(rounds: int = 15, launches: int = 200) -> dict[str, Any]:
    """Figures in ns. Empty where the process may use one CPU only."""
    if _core.available_cpus() < 2:
        return {}
    two = sk.compile(chain(), threads=2, options={"cost_placement": False})._compiled
    assert isinstance(two, HostCompiled)
    plan = two.plan
    if plan.waits < BOUNDARIES:
        raise RuntimeError(f"the chain was meant to need {BOUNDARIES} exchanges, the plan has {plan.waits} waits")
    runners = [runner(two, p) for p in (plan, without_waits(plan), alone(plan, 0), alone(plan, 1))]
    cores = OwnCores(2)
    samples = steady([cores.measure(lambda: one_round(runners, launches)) for _ in range(rounds)])
    trips, both_ns, free_ns, half_ns = (np.array(column) for column in zip(*samples, strict=True))
    costs = (both_ns - half_ns) / BOUNDARIES
    figures: dict[str, Any] = {
        "boundaries": BOUNDARIES,
        "waits": plan.waits,
        "half_alone_ns": float(np.median(half_ns)),
        "without_waits_ns": float(np.median(free_ns)),
        "two_cores_ns": float(np.median(both_ns)),
        "round_trip_ns": float(np.median(trips)),
        "rounds": {"taken": cores.taken, "repeated": cores.repeated},
    }
    for name, values in (("cost", costs), ("waiting", (both_ns - free_ns) / BOUNDARIES)):
        cost, share = estimate(values.tolist()), estimate((values / trips).tolist())
        figures[f"{name}_ns"] = [cost.median, cost.low, cost.high]
        figures[f"{name}_per_round_trip"] = [share.median, share.low, share.high]
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--docs", action="store_true", help="put the figures on the page, too")
    args = parser.parse_args()
    figures = measure()
    if args.docs:
        stamp = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        results = json.loads((DOCS / "performance.json").read_text())
        apart = {"command": "python bench/boundary.py --docs", "started_utc": stamp}
        write_docs({**results, "boundary": {**figures, **apart} if figures else {}})
    print(json.dumps(figures, indent=2) if args.json else "\n".join(boundary_lines({"boundary": figures})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
