"""What the accelerator's estimates of kernels are worth: held against the simulator over a grid of problems.

    python bench/estimates.py [--target a3] [--quick] [--only PATTERN ...] [--json]

A problem is a graph of one operator. Its estimate is that of the longest range, as placement sees it
(`AicoreTiling.contended_cycles`); a convolution's is with its changes of layout, and the flags between them. The
simulated cycles are those of a whole launch, start of its code included, which estimates know nothing of: 500 to 1,500
cycles. Kernels of vector cores are simulated warm (the second of two launches): in a model others have just written
what they read, and that is what their estimates assume. Kernels of the cube are simulated cold: their estimates take
all bytes from HBM once (of a convolution the weights: its image was just written).

Below the rows, by kind and in all: `ratio`, simulated by estimated, smallest, geometric mean and largest; `rank`,
the share of pairs of problems that the estimate orders as the simulator does; `regret`, what the tiling that is taken
costs beyond the fastest one that its family offers, mean and largest. The exit status is 1 where a rank is below 90 %
or a regret above 10 %.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from math import exp, log
from unittest import mock

import numpy as np

import superkernel as sk
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.measure import report_of
from superkernel.core.errors import UnsupportedError
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.target.aicore import AicoreTarget

RANK_GOAL, REGRET_GOAL = 0.9, 0.1
ROWS = ((128, 1024), (512, 1024), (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192))
PRODUCTS = (
    (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1, 2048, 2048),
    (16, 2048, 2048), (197, 768, 768), (197, 768, 3072), (197, 3072, 768), (256, 4096, 1024), (384, 8192, 512),
)  # fmt: skip
# Heads, queries, keys, depth.
ATTENTION = ((12, 197, 197, 64), (8, 512, 512, 64), (16, 1024, 1024, 64), (16, 1024, 1024, 128), (24, 1, 4096, 64))
# Images, channels, height and width, channels of the result, window, stride.
CONVOLUTIONS = (
    (1, 3, 224, 64, 7, 2), (1, 16, 112, 16, 3, 1), (1, 32, 112, 32, 3, 1), (1, 64, 56, 64, 3, 1), (1, 64, 56, 64, 1, 1),
    (1, 16, 112, 64, 1, 1), (1, 256, 14, 256, 3, 1), (8, 64, 56, 64, 3, 1), (1, 128, 28, 128, 3, 1),
    (1, 512, 7, 512, 3, 1), (1, 64, 56, 256, 1, 1), (1, 256, 56, 64, 1, 1), (1, 128, 56, 128, 3, 2),
    (1, 1024, 14, 256, 1, 1), (1, 256, 14, 1024, 1, 1), (8, 128, 28, 128, 3, 1),
)  # fmt: skip
VECTOR: dict[str, Callable[[sk.GraphBuilder, sk.Value, sk.Value], sk.Value]] = {
    "add": lambda b, x, y: x + y,
    "relu": lambda b, x, y: b.relu(x),
    "gelu": lambda b, x, y: b.gelu(x),
    "softmax": lambda b, x, y: b.softmax(x, axis=-1),
    "sum": lambda b, x, y: b.reduce_sum(x, axes=(1,)),
    "transpose": lambda b, x, y: b.transpose(x, perm=(1, 0)),
}


@dataclass(frozen=True)
class Problem:
    """A graph of one operator, by what it is; `warm`: L2 holds what it reads."""

    kind: str
    name: str
    graph: Callable[[], sk.Graph]
    warm: bool


@dataclass(frozen=True)
class Row:
    """One problem: estimated and simulated cycles, and those of the fastest tiling of `offered`."""

    kind: str
    name: str
    estimated: float
    simulated: int
    best: int
    offered: int

    @property
    def ratio(self) -> float:
        """Simulated by estimated cycles."""
        return self.simulated / self.estimated

    @property
    def regret(self) -> float:
        """What the choice costs, as a part of the best."""
        return self.simulated / self.best - 1

    def __str__(self) -> str:
        cycles = f"{self.estimated:>10.0f} estimated {self.simulated:>10} simulated {self.ratio:>6.2f}"
        return f"{self.name:<44} {cycles} {self.regret:>7.1%} beyond the best of {self.offered}"


def problems(quick: bool = False) -> Iterator[Problem]:
    """The grid; `quick`: what is simulated in a second or two each."""
    for name, operator in VECTOR.items():
        for rows, columns in ROWS[:4] if quick else ROWS:
            yield Problem("vector", f"{name} {rows}x{columns}", partial(_rows, operator, (rows, columns)), True)
    for m, k, n in PRODUCTS:
        if not quick or m * k * n <= 1 << 28:
            for constant in (True, False):
                name = f"product {m}x{k}x{n} {'constant' if constant else 'computed'}"
                yield Problem("product", name, partial(_product, m, k, n, constant=constant), False)
    for heads, queries, keys, depth in ATTENTION[:2] if quick else ATTENTION:
        name = f"attention {heads}x{queries}x{keys}x{depth}"
        yield Problem("attention", name, partial(_attention, heads, queries, keys, depth), False)
    for shape in CONVOLUTIONS[3:6] if quick else CONVOLUTIONS:
        yield Problem("convolution", f"convolution {'x'.join(map(str, shape))}", partial(_conv, *shape), False)


def _rows(operator: Callable[[sk.GraphBuilder, sk.Value, sk.Value], sk.Value], shape: tuple[int, int]) -> sk.Graph:
    b = sk.GraphBuilder("rows")
    x = b.input("x", shape, "f16")
    b.output(operator(b, x, b.input("y", shape, "f16")), name="z")
    return b.graph()


def _product(m: int, k: int, n: int, *, constant: bool) -> sk.Graph:
    b = sk.GraphBuilder("product")
    x = b.input("x", (m, k), "f16")
    b.output(x @ (b.constant(np.ones((k, n), np.float16)) if constant else b.input("w", (k, n), "f16")))
    return b.graph()


def _attention(heads: int, queries: int, keys: int, depth: int) -> sk.Graph:
    b = sk.GraphBuilder("attention")
    k, v = (b.input(name, (1, heads, keys, depth), "f16") for name in "kv")
    b.output(b.attention(b.input("q", (1, heads, queries, depth), "f16"), k, v))
    return b.graph()


def _conv(images: int, channels: int, size: int, out: int, window: int, stride: int) -> sk.Graph:
    b = sk.GraphBuilder("convolution")
    x = b.input("x", (images, channels, size, size), "f16")
    w = b.constant(np.ones((out, channels, window, window), np.float16))
    b.output(b.conv(x, w, strides=(stride, stride), pads=(window // 2,) * 4))
    return b.graph()


def row(problem: Problem, target: str | AicoreTarget) -> Row:
    """The problem compiled and simulated as it is, and with every other tiling that its family offers."""
    graph = problem.graph()
    taken, simulated = _simulated(graph, target, problem.warm)
    schedule = taken.schedule
    own = [i for i, t in enumerate(schedule.tilings) if isinstance(t, AicoreTiling)]
    estimated, best, offered = 0.0, simulated, 1
    for index in own:
        tiling, sub = schedule.tilings[index], schedule.subops[index]
        assert isinstance(tiling, AicoreTiling)
        spans = {(t.begin, t.end) for t in schedule.tasks if t.subop == index}
        estimated += max((tiling.contended_cycles(sub.body, *span, taken.target) for span in spans), default=0.0)
    for boundary in taken.plan.boundaries:
        events = [taken.plan.events[event] for event in boundary.events]
        estimated += max((taken.target.flag_cycles(event.mode.value) for event in events), default=0)
    tilings = enumerate(schedule.tilings)
    on_cube = [i for i, t in tilings if isinstance(t, AicoreTiling) and t.kernel_type.uses_cube]
    for index in on_cube or own:  # one, without changes of layout beside it
        sub, family = schedule.subops[index], family_of(schedule.subops[index].kernel)
        others = [t for t in family.tilings(sub.kernel, sub.body, taken.target) if isinstance(t, AicoreTiling)]
        offered = max(1, len(others))
        for other in others:
            if other != schedule.tilings[index]:
                with mock.patch.object(type(family), "tilings", return_value=(other,)):
                    best = min(best, _simulated(graph, target, problem.warm)[1])
    return Row(problem.kind, problem.name, estimated, simulated, best, offered)


def _simulated(graph: sk.Graph, target: str | AicoreTarget, warm: bool) -> tuple[AicoreCompiled, int]:
    kernel = sk.compile(graph, target=target, options={"cache": False})
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    io = kernel._io(list(kernel._random().values()))
    run = compiled.executable.simulate(io, mode="timing", races=False, warm=warm)
    return compiled, report_of(compiled, run.launches).cycles


def rank(rows: Sequence[Row]) -> float:
    """The share of pairs with unequal simulated cycles that the estimates order alike."""
    pairs = [(a, b) for a, b in combinations(rows, 2) if a.simulated != b.simulated]
    alike = sum((a.simulated < b.simulated) == (a.estimated < b.estimated) for a, b in pairs)
    return alike / len(pairs) if pairs else 1.0


def summary(kind: str, rows: Sequence[Row]) -> str:
    """One line on so many problems."""
    ratios, regrets = [r.ratio for r in rows], [r.regret for r in rows]
    mean = exp(sum(map(log, ratios)) / len(rows))
    return (
        f"{kind:<12} {len(rows):>3} problems; ratio {min(ratios):.2f} to {max(ratios):.2f}, mean {mean:.2f}; "
        f"rank {rank(rows):.1%}; regret {sum(regrets) / len(rows):.1%}, at most {max(regrets):.1%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="a3")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of problems' names")
    parser.add_argument("--quick", action="store_true", help="small problems only")
    parser.add_argument("--json", action="store_true", help="plain data instead of lines")
    options = parser.parse_args()
    found: list[Row] = []
    for problem in problems(options.quick):
        if any(fnmatch.fnmatch(problem.name, pattern) for pattern in options.only):
            try:
                found.append(row(problem, options.target))
            except UnsupportedError as error:
                print(f"{problem.name}: {error}", flush=True)
                continue
            if not options.json:
                print(found[-1], flush=True)
    if options.json:
        print(json.dumps({"schema": "superkernel.bench.estimates/1", "rows": [asdict(r) for r in found]}))
    groups = {kind: [r for r in found if r.kind == kind] for kind in dict.fromkeys(r.kind for r in found)}
    if not options.json:
        for kind, rows in {**groups, "all": found}.items():
            print(summary(kind, rows))
    good = all(rank(rows) >= RANK_GOAL for rows in groups.values())
    return 0 if good and all(r.regret <= REGRET_GOAL for r in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
