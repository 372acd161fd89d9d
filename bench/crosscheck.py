"""The emulator against everything else, at length: models, random graphs, targets, mutants.

    python bench/crosscheck.py [--graphs N] [--mutants N] [--plain N] [--seeds N] [--only NAME]

Models: an encoder layer of MiniLM's sizes, a decode step of two layers in Llama's style, a chain of residual blocks, a
mixture of experts, on `mini`; the encoder on 8 groups (8 cube and 16 vector cores). Random graphs are those of the
tests. Mutants are of a small encoder layer. Prints tables; the exit status is 1 where something does not agree.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import superkernel as sk
from superkernel.analysis.crosscheck import CrossCheck, crosscheck, schedules
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import models
from random_models import random_graph

WATCHDOG_S = 300.0
WIDE = """schema_version = 1
name = "wide"
base = "mini"
description = "8 groups: 24 cores"

[device]
groups = 8
cube_cores = 8
vector_cores = 16
"""
Case = tuple[Graph, dict[str, Any], dict[str, Any]]


def residual_blocks() -> Case:
    """Two blocks of two convolutions, each with its sum."""
    rng, b = np.random.default_rng(1), sk.GraphBuilder("residual_blocks")

    def conv(x: Any, channels: int) -> Any:
        weights = rng.standard_normal((channels, x.shape[1], 3, 3)).astype(np.float32) * np.float32(0.1)
        return b.conv(x, b.constant(weights), pads=[1, 1, 1, 1])

    x = b.relu(conv(b.input("x", (1, 3, 16, 16)), 16))
    for _ in range(2):
        x = b.relu(x + conv(b.relu(conv(x, 16)), 16))
    b.output(b.global_avg_pool(x), "y")
    graph = b.graph()
    return graph, random_inputs(graph.inputs, 0), {}


def encoder(tokens: int, width: int, heads: int) -> Case:
    graph = models.transformer(layers=1, tokens=tokens, width=width, heads=heads)
    return graph, random_inputs(graph.inputs, 0), {}


def decode() -> Case:
    return models.decode_step(layers=2), {"token": np.array([3]), "position": np.array([5])}, {}


def experts() -> Case:
    graph = models.moe_layer()
    return graph, random_inputs(graph.inputs, 0), {}


CASES: dict[str, tuple[str, Callable[[], Case]]] = {
    "encoder": ("mini", lambda: encoder(32, 384, 12)),
    "decode": ("mini", decode),
    "blocks": ("mini", residual_blocks),
    "experts": ("mini", experts),
    "wide": ("wide", lambda: encoder(64, 128, 8)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=100, help="random graphs (default 100)")
    parser.add_argument("--mutants", type=int, default=500, help="mutants that something must notice (default 500)")
    parser.add_argument("--plain", type=int, default=1000, help="runs that nothing may notice (default 1000)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of timing `random` (default 3)")
    parser.add_argument("--only", default="", metavar="NAME", help=f"of {', '.join(CASES)}, graphs, mutants")
    options = parser.parse_args()
    failed = 0
    for name, result in results(options):
        failed += not result.ok
        print(f"-- {name}\n{result.text()}\n", flush=True)
    print("all agree" if not failed else f"{failed} do not agree")
    return 1 if failed else 0


def results(options: argparse.Namespace) -> Iterator[tuple[str, CrossCheck]]:
    """Every check that the options ask for."""
    runs = schedules(("now", "late", "random"), options.seeds, WATCHDOG_S)
    for name, (target, make) in CASES.items():
        if options.only in ("", name):
            graph, inputs, chosen = make()
            yield name, crosscheck(graph, inputs, target=_target(target), options=chosen, runs=runs)
    if options.only in ("", "graphs"):
        yield from random_graphs(options.graphs, options.seeds)
    if options.only in ("", "mutants"):
        graph, inputs, _ = encoder(16, 64, 4)
        yield "mutants", crosscheck(graph, inputs, mutants=options.mutants, plain=options.plain)


def random_graphs(count: int, seeds: int) -> Iterator[tuple[str, CrossCheck]]:
    """Those that do not agree, and the last one."""
    runs = schedules(("now", "late", "random"), min(seeds, 1), WATCHDOG_S)
    begun, disagree = time.perf_counter(), 0
    for seed in range(count):
        graph = random_graph(random.Random(seed))
        inputs = random_inputs(graph.inputs, 0)
        result = crosscheck(graph, inputs, runs=runs, options={"precision": "f32", "fallback": "allow"})
        disagree += not result.ok
        if not result.ok or seed == count - 1:
            yield f"random graph {seed}", result
    print(f"-- {count} random graphs, {disagree} disagree, {time.perf_counter() - begun:.0f} s\n", flush=True)


def _target(name: str) -> Any:
    if name != "wide":
        return name
    path = Path(__file__).resolve().parent / "results" / "wide.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(WIDE)
    return str(path)


if __name__ == "__main__":
    raise SystemExit(main())
