"""`superkernel ablate`, `bisect`, `trace`, `crosscheck`, `explore` and `verify --rates`: arguments in, results out."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superkernel.core.files import is_terminal

if TYPE_CHECKING:
    from superkernel.analysis.ablation import AnyAblation
    from superkernel.analysis.bisection import Bisection
    from superkernel.analysis.crosscheck import CrossCheck
    from superkernel.analysis.exploration import DelaySearch
    from superkernel.analysis.rates import TargetRates
    from superkernel.display.charts import Chart
    from superkernel.display.tracing import Trace
    from superkernel.ir.graph import Graph
    from superkernel.runtime.kernel import Kernel
    from superkernel.target.certificate_note import CertificateNote

# Exit status where `bisect` finds a cause, where runs of `crosscheck` and `explore` disagree, where rates are too high.
WRONG = 1
PLANS = 10_000
SEEDS, TIMINGS, WATCHDOG_S = 3, "now,late,random", 120.0


def add_ablate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ablate`, but for those that say which model."""
    _add_inputs(parser)
    text = "also vary the uncertain figures of the target, and say which conclusions depend on them"
    parser.add_argument("--sensitivity", action="store_true", help=text)
    text = "on the host: launches of each row (default 60)"
    parser.add_argument("--rounds", type=int, default=60, help=text)
    parser.add_argument("--html", metavar="FILE", help="write the rows as a chart here too, as one page")


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


def add_explore_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `explore`."""
    _add_inputs(parser)
    parser.add_argument("--executor", choices=("host", "sim", "qemu"), help="the kernel's own by default")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="how many to try (default 20)")
    parser.add_argument("--first-seed", type=int, default=1, metavar="SEED", help="the first of them (default 1)")
    text = "where the smallest graph that shows a difference goes (default: explored.json)"
    parser.add_argument("--out", default="explored.json", metavar="FILE.json", help=text)
    parser.add_argument("--no-shrink", action="store_true", help="do not look for a smaller graph")


def certificate_of(program: str) -> CertificateNote:
    """What a saved program says was proved of it. Raises FileFormatError where its bytes are others."""
    from superkernel.sim.machine import read_program
    from superkernel.target.certificate_note import checked_certificate

    return checked_certificate(read_program(Path(program)), program)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `verify`, but for those that say which model."""
    text = "how often the verifier itself is wrong, over random plans and mutants of them: no model; --target: host, "
    parser.add_argument("--rates", action="store_true", help=text + "aicore (default: both)")
    text = f"with --rates: plans per target, over all families (default {PLANS})"
    parser.add_argument("--plans", type=int, default=PLANS, metavar="N", help=text)
    parser.add_argument("--seed", type=int, default=0, help="with --rates: of plans and mutants (default 0)")
    parser.add_argument("--family", default=None, metavar="NAME", help="with --rates: plans of this family only")
    text = "with --rates: number of the first plan of each family (default 0)"
    parser.add_argument("--first", type=int, default=0, metavar="N", help=text)
    text = "with --rates: processes that try plans, at most one per CPU (default 1)"
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help=text)


def run_rates(args: argparse.Namespace) -> tuple[list[TargetRates], bool]:
    """Carry `verify --rates` out, for one target or for all. Where an interrupt came, what was counted by then, and
    True."""
    from superkernel.analysis.rates import RatesInterrupted, rates, untried
    from superkernel.analysis.subjects import SUBJECTS, subject_of
    from superkernel.core.errors import InputError

    given = ["model"] if args.model is not None else []
    given += [f"--{name}" for name in ("threads", "option", "dim", "shape") if getattr(args, name)]
    if given:
        raise InputError(f"{', '.join(given)} with --rates", hint="the plans are made at random")
    chosen = list(SUBJECTS.values()) if args.target is None else [subject_of(args.target)]
    found: list[TargetRates] = []
    for number, one in enumerate(chosen):
        shown = RateProgress(one.target)
        try:
            found.append(
                rates(one, args.plans, args.seed, family=args.family, first=args.first, jobs=args.jobs, progress=shown)
            )
        except RatesInterrupted as interrupt:
            rest = [untried(later, args.plans, args.seed, args.family, args.first) for later in chosen[number + 1 :]]
            return [*found, interrupt.found, *rest], True
        finally:
            shown.end()
    return found, False


class RateProgress:
    """Says on stderr how many plans were tried: in one line of a terminal, else by a line now and then."""

    LINES_APART_S = 30.0

    def __init__(self, target: str) -> None:
        self.target, self.terminal = target, is_terminal(sys.stderr)
        self.began = self.told = time.monotonic()
        self.open = False  # whether the cursor stands behind what was told

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.terminal or now - self.told >= self.LINES_APART_S:
            text = f"{self.target}: {done} of {total} plans, {now - self.began:.0f} s"
            print(
                f"\r{text}" if self.terminal else text, end="" if self.terminal else "\n", file=sys.stderr, flush=True
            )
            self.told, self.open = now, self.terminal

    def end(self) -> None:
        """Behind the last one."""
        if self.open:
            print(file=sys.stderr)


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--inputs", metavar="FILE.npz", help="a file with one array per input, by name")
    source.add_argument("--random-inputs", type=int, default=0, metavar="SEED", help="make inputs (default: seed 0)")


def run_ablate(args: argparse.Namespace, graph: Graph, options: Mapping[str, Any]) -> AnyAblation:
    """Carry `ablate` out; the page is written."""
    from superkernel.analysis.ablation import ablation, ablation_page
    from superkernel.display.tracing import save_page

    found = ablation(
        graph,
        "a3" if args.target is None else args.target,
        threads=args.threads,
        options=options,
        inputs=_inputs(args, graph),
        sensitivity=args.sensitivity,
        rounds=args.rounds,
    )
    if args.html is not None:
        save_page(args.html, ablation_page(found).html())
    return found


def ablation_chart(kernel: Kernel, inputs: Mapping[str, Any]) -> Chart:
    """What each optimisation gives to a kernel's graph on its target."""
    from superkernel.analysis.ablation import ablation

    made = kernel._compiled
    found = ablation(made.source, made.target, threads=made.cores, options=made.options, inputs=inputs)
    return found.chart()


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


def run_explore(args: argparse.Namespace, graph: Graph, options: Mapping[str, Any]) -> tuple[DelaySearch, str]:
    """Carry `explore` out: its result, and the command that shows the difference again, "" where there is none."""
    from superkernel.analysis.exploration import explore
    from superkernel.core.errors import InputError
    from superkernel.frontends.json_form import save_json
    from superkernel.runtime.kernel import DELAYS_MAX

    seeds = range(args.first_seed, args.first_seed + args.seeds)
    if not (args.seeds > 0 and seeds.start > 0 and seeds[-1] <= DELAYS_MAX):
        found = f"{args.seeds} seeds from {args.first_seed} on"
        raise InputError("out of range", location="--seeds, --first-seed", expected=f"1 to {DELAYS_MAX}", found=found)
    found_inputs = None if args.inputs is None else _inputs(args, graph)
    target = "host" if args.target is None else args.target
    result = explore(
        graph, target, threads=args.threads, options=options, inputs=found_inputs, inputs_seed=args.random_inputs,
        executor=args.executor, seeds=seeds, shrink=not args.no_shrink,
    )  # fmt: skip
    difference = result.difference
    if difference is None:
        return result, ""
    words = ["superkernel", "explore", args.model, "--no-shrink", "--seeds", "1", "--first-seed", str(difference.seed)]
    given = {"--inputs": args.inputs, "--random-inputs": args.random_inputs or None}
    if difference.smallest is not None:
        save_json(difference.smallest, args.out)
        words[2], words[-1] = args.out, str(difference.smallest_seed)
        del given["--inputs"]
    else:
        words += [word for name in ("dim", "shape") for each in getattr(args, name) for word in (f"--{name}", each)]
    given |= {"--target": args.target, "--threads": args.threads, "--executor": args.executor}
    words += [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    words += [word for each in args.option for word in ("--option", each)]
    return result, shlex.join(words)


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
