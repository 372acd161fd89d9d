"""`superkernel crosscheck MODEL`: one model on the reference, the host, the simulator and the emulator."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superkernel.analysis.crosscheck import CrossCheck
    from superkernel.ir.graph import Graph

DISAGREEMENT = 1  # the exit status
SEEDS, TIMINGS, WATCHDOG_S = 3, "now,late,random", 120.0


def add_arguments(parser: argparse.ArgumentParser, add_model: Callable[[argparse.ArgumentParser], None]) -> None:
    """The arguments of the command; `add_model` adds those that say which model."""
    add_model(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--inputs", metavar="FILE.npz", help="a file with one array per input, by name")
    source.add_argument("--random-inputs", type=int, default=0, metavar="SEED", help="make inputs (default: seed 0)")
    parser.add_argument(
        "--timings", default=TIMINGS, metavar="NAME,...", help=f"of the emulator's engines (default: {TIMINGS})"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of timing `random` (default {SEEDS})")
    parser.add_argument(
        "--mutants",
        type=int,
        default=0,
        metavar="N",
        help="leave out N waits, sets and flags, one at a time (default 0)",
    )
    parser.add_argument(
        "--plain", type=int, default=0, metavar="N", help="runs of the program as it is beside the mutants (default 0)"
    )
    parser.add_argument(
        "--watchdog", type=float, default=WATCHDOG_S, metavar="SECONDS", help=f"of a launch (default {WATCHDOG_S:g})"
    )


def run(args: argparse.Namespace, graph: Graph, options: Mapping[str, Any]) -> CrossCheck:
    """Carry the command out."""
    from superkernel.analysis.crosscheck import crosscheck, schedules
    from superkernel.cli.npz import read_npz
    from superkernel.reference.random_inputs import random_inputs

    if args.inputs is not None:
        inputs = read_npz(Path(args.inputs), graph.inputs)
    else:
        inputs = random_inputs(graph.inputs, args.random_inputs)
    names = [name for name in args.timings.split(",") if name]
    runs = schedules(names, args.seeds, args.watchdog)
    target = "mini" if args.target is None else args.target
    return crosscheck(graph, inputs, target=target, options=options, runs=runs, mutants=args.mutants, plain=args.plain)
