"""`superkernel ablate`, `bisect`, `trace` and `crosscheck`: arguments in, results out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superkernel.analysis.ablate import Ablation
    from superkernel.analysis.bisection import Bisection
    from superkernel.analysis.crosscheck import CrossCheck
    from superkernel.display.tracing import Trace
    from superkernel.ir.graph import Graph
    from superkernel.runtime.kernel import Kernel

WRONG = 1  # exit status of `bisect` where it finds a cause, of `crosscheck` where runs disagree
SEEDS, TIMINGS, WATCHDOG_S = 3, "now,late,random", 120.0


def add_ablate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ablate`, but for those that say which model."""
    _add_inputs(parser)
    text = "also vary the uncertain figures of the target, and say which conclusions depend on them"
    parser.add_argument("--sensitivity", action="store_true", help=text)


def add_bisect_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `bisect`."""
    _add_inputs(parser)
    text = "largest difference over largest magnitude of a sub-operator's value (default: by type and length)"
    parser.add_argument("--tolerance", type=float, default=None, metavar="X", help=text)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `trace`."""
    _add_inputs(parser)
    text = "where to: .html, a page for a browser, or .json, for Perfetto (default: trace.html)"
    parser.add_argument("--out", default="trace.html", metavar="FILE", help=text)


def add_crosscheck_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `crosscheck`."""
    _add_inputs(parser)
    text = f"of the emulator's engines (default: {TIMINGS})"
    parser.add_argument("--timings", default=TIMINGS, metavar="NAME,...", help=text)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of timing `random` (default {SEEDS})")
    text = "leave out N waits, sets and flags, one at a time (default 0)"
    parser.add_argument("--mutants", type=int, default=0, metavar="N", help=text)
    text = "runs of the program as it is beside the mutants (default 0)"
    parser.add_argument("--plain", type=int, default=0, metavar="N", help=text)
    text = f"of a launch (default {WATCHDOG_S:g})"
    parser.add_argument("--watchdog", type=float, default=WATCHDOG_S, metavar="SECONDS", help=text)


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--inputs", metavar="FILE.npz", help="a file with one array per input, by name")
    source.add_argument("--random-inputs", type=int, default=0, metavar="SEED", help="make inputs (default: seed 0)")


def run_ablate(args: argparse.Namespace, graph: Graph, options: Mapping[str, Any]) -> Ablation:
    """Carry `ablate` out."""
    from superkernel.analysis.ablate import ablate, ablation_target
    from superkernel.core.options import Options

    target = ablation_target("a3" if args.target is None else args.target)
    return ablate(graph, target, options=Options.of(options), inputs=_inputs(args, graph), sensitivity=args.sensitivity)


def run_bisect(args: argparse.Namespace, graph: Graph, options: Mapping[str, Any]) -> Bisection:
    """Carry `bisect` out."""
    from superkernel.analysis.bisection import bisect
    from superkernel.core.errors import InputError

    if args.tolerance is not None and not args.tolerance > 0:
        raise InputError("not a tolerance", location="--tolerance", expected="above 0", found=str(args.tolerance))
    target = "host" if args.target is None else args.target
    return bisect(
        graph, target, threads=args.threads, options=options, inputs=_inputs(args, graph), tolerance=args.tolerance
    )


def run_crosscheck(args: argparse.Namespace, graph: Graph, options: Mapping[str, Any]) -> CrossCheck:
    """Carry `crosscheck` out."""
    from superkernel.analysis.crosscheck import crosscheck, schedules

    runs = schedules([name for name in args.timings.split(",") if name], args.seeds, args.watchdog)
    target = "mini" if args.target is None else args.target
    return crosscheck(
        graph, _inputs(args, graph), target=target, options=options, runs=runs, mutants=args.mutants, plain=args.plain
    )


def run_trace(args: argparse.Namespace, kernel: Kernel) -> Trace:
    """Carry `trace` out; the file is written."""
    from superkernel.display.tracing import form_of

    form_of(args.out)  # a bad name is told before anything runs
    trace = kernel.trace(_inputs(args, kernel))
    trace.save(args.out)
    return trace


def _inputs(args: argparse.Namespace, graph: Graph | Kernel) -> dict[str, Any]:
    from superkernel.cli.npz import read_npz
    from superkernel.reference.random_inputs import random_inputs

    if args.inputs is not None:
        return read_npz(Path(args.inputs), graph.inputs)
    return random_inputs(graph.inputs, args.random_inputs)
