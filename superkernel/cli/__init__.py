"""The command line: `superkernel compile | run | report | inspect | ablate | bisect | ...`; see docs/command-line.md.

Results go to stdout (with --json exactly one JSON value), messages to stderr. Exit status: 0 success, 2 the user's
input, 3 unsupported, 4 the machine, 1 a fault of SuperKernel, 130 interrupted. Errors are typed; with --json they are
JSON too.

Invariant: `main` changes nothing of the process that calls it (warnings, streams); numbers that JSON cannot say (NaN,
infinity) are null.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

from superkernel.cli import analysis as cli_analysis
from superkernel.cli import canary as cli_canary
from superkernel.cli import completion as cli_completion
from superkernel.cli import diff as cli_diff
from superkernel.cli import export as cli_export
from superkernel.cli import kernels as cli_kernels
from superkernel.cli import machine as cli_machine
from superkernel.cli import quantise as cli_quantise
from superkernel.cli import sim as cli_sim
from superkernel.cli import sim_run as sim_command
from superkernel.cli import sweep as cli_sweep
from superkernel.cli import target as cli_target
from superkernel.cli import tune as cli_tune
from superkernel.core.errors import InputError, InternalError, MachineError, SuperKernelError
from superkernel.core.files import is_elf, is_folder
from superkernel.core.json_text import json_text
from superkernel.core.options import parse_options
from superkernel.display.tracing import save_page

EXIT_CODES = {"user": 2, "unsupported": 3, "environment": 4, "internal": 1}
INTERRUPTED = 130
UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to stdout fails with, by no fault of ours."""
STAGES = ("summary", "graph", "simplified", "subops", "schedule", "plan", "certificate", "map")


class _Parser(argparse.ArgumentParser):
    """argparse that reports through the typed errors, so that --json covers them."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, hint=f"{self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            status = _guarded(words)
            if sys.stdout is not None:  # as it is where the shell closed it
                sys.stdout.flush()  # here, where a reader that is gone can still be told from a fault
            return status
        except BrokenPipeError:
            _close_stdout()
            return 0
        except OSError as error:
            _close_stdout()
            return _failed(MachineError("the results cannot be written", found=str(error)), ())
        except KeyboardInterrupt:
            print("superkernel: interrupted", file=sys.stderr)
            return INTERRUPTED


def _guarded(words: Sequence[str]) -> int:
    """The command's exit status; every error of the package, of memory and of our own becomes a message."""
    try:
        parser = _parser()
        if not words:
            parser.print_help(sys.stderr)
            return EXIT_CODES["user"]
        args = parser.parse_args(words)
        _load_kernels(args.kernels)
        command: Callable[[argparse.Namespace], int] = args.command
        return command(args)
    except SuperKernelError as error:
        return _failed(error, words)
    except MemoryError as error:
        return _failed(MachineError("not enough memory", found=str(error)), words)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNWRITTEN:
            raise
        traceback.print_exc()
        found = f"{type(error).__name__}: {error}"
        return _failed(InternalError("an unexpected error", found=found, hint="please report it with the text"), words)


def _load_kernels(files: Sequence[str]) -> None:
    if files:
        from superkernel.kernels import load_file

        for file in files:
            load_file(file)


def _failed(error: SuperKernelError, words: Sequence[str]) -> int:
    if "--json" in words:
        print(json_text(error.to_json()))
    else:
        print(f"superkernel: {error.category} error: {error}", file=sys.stderr)
    return EXIT_CODES[error.category]


def _close_stdout() -> None:
    """The reader of stdout is gone: what Python flushes at exit goes nowhere, silently."""
    with suppress(OSError, ValueError):  # a stream without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"superkernel: warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    from superkernel.core.version import __version__

    parser = _Parser(prog="superkernel", description="Fuse a graph of operators into one multi-core kernel.")
    parser.add_argument("--version", action="version", version=f"superkernel {__version__}")
    text = "a Python file that registers kernels, run first; repeatable (docs/own-kernels.md)"
    parser.add_argument("--kernels", action="append", default=[], metavar="FILE", help=text)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    def bare(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=run)
        return sub

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *, optional: bool = False
    ) -> argparse.ArgumentParser:
        sub = bare(name, run, text)
        add_model_arguments(sub, optional=optional)
        return sub

    sub = add("compile", _compile, "Compile a model and save the kernel.")
    sub.add_argument("-o", "--output", required=True, metavar="FILE", help="file to write")
    cli_kernels.add_dump_argument(sub)
    text = "Make a library for programs in C and C++, with its header, of one or several models."
    cli_export.add_arguments(add("export", _export, text))
    _run_arguments(add("run", _run, "Run a model on inputs from a file."))
    _report_arguments(add("report", _report, "Show what synchronisation costs, and fused against one by one."))
    sub = add("inspect", _inspect, "Show a stage of the compilation, or explain one node.")
    shown = sub.add_mutually_exclusive_group()
    text = f"what to show: {' | '.join(STAGES)} (default: summary)"
    shown.add_argument("--stage", metavar="STAGE", choices=STAGES, default="summary", help=text)
    shown.add_argument("--explain", metavar="NODE", help="kernel choice, grouping, tiling and sync of a node")
    text = "Show what is proved of a model's compiled program, or of a saved kernel's or program's, and its digests."
    cli_analysis.add_verify_arguments(add("verify", _verify, text, optional=True))
    text = "Run a model on the reference, the host, the simulator and the emulator; exit status 0 where all agree."
    cli_analysis.add_crosscheck_arguments(add("crosscheck", _crosscheck, text))
    text = "What each optimisation gives, one after the other: simulated on an accelerator, measured on the host."
    cli_analysis.add_ablate_arguments(add("ablate", _ablate, text))
    text = "Measure on this machine what could be best for a model's sub-operators, and go by that from now on."
    cli_tune.add_arguments(add("tune", _tune, text))
    text = "Keep what a model does: its kernels, memory, outputs and time, for `canary`."
    sub = add("snapshot", _snapshot, text)
    _input_arguments(sub)
    cli_canary.add_snapshot_arguments(sub)
    text = "Find the first sub-operator that computes something wrong, inside the fused kernel."
    cli_analysis.add_bisect_arguments(add("bisect", _bisect, text))
    text = "Run a model with many seeds' delays; exit status 0 where all give the bits of the run without."
    cli_analysis.add_explore_arguments(add("explore", _explore, text))
    text = "Record one run as a timeline of cores and engines: a page for a browser, or JSON for Perfetto."
    cli_analysis.add_trace_arguments(add("trace", _trace, text))
    text = "Simulate models on many targets under many options; rows are kept, and an interrupted sweep goes on."
    cli_sweep.add_arguments(bare("sweep", _sweep, text))
    text = "What changed between two reports, ablations or traces beyond noise; exit status 1 where slower."
    cli_diff.add_arguments(bare("diff", _diff, text))
    text = "Hold two snapshots against each other; exit status 1 where a limit is exceeded."
    cli_canary.add_canary_arguments(bare("canary", _canary, text))
    text = "Make a quantised ONNX model of one in f32, and say how well they agree."
    cli_quantise.add_arguments(bare("quantise", _quantise, text))
    text = "The kernel registry: what there is, why a kernel is chosen, which kernels models need."
    kernels = commands.add_parser("kernels", help=text, description=text)
    cli_kernels.add_commands(kernels, _Parser, add_model_arguments, load_model)
    text = "Descriptions of the accelerator: presets, and files of one's own."
    cli_target.add_commands(commands.add_parser("target", help=text, description=text), _Parser)
    text = "What this machine can do, measured once and kept: what kernels for the host are compiled against."
    cli_machine.add_arguments(bare("machine", _machine, text))
    text = 'Print a script that completes this command line: `eval "$(superkernel completion bash)"`.'
    cli_completion.add_arguments(bare("completion", _completion, text))
    text = "The simulator: run a bare-metal RV64GC program."
    sim_command.add_arguments(bare("sim", _sim, text), _Parser)
    return parser


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    _input_arguments(parser)
    parser.add_argument("--outputs", metavar="FILE.npz", help="write the outputs here, output names as array names")
    parser.add_argument(
        "--executor",
        choices=("host", "sim", "qemu", "reference"),
        help="the kernel's own (default): host, or sim for an accelerator; qemu: its program on an emulator; "
        "reference: NumPy",
    )
    text = "cores, engines and signals are late where the seed says so; the bits are the same, or something is wrong"
    parser.add_argument("--delays", type=int, default=0, metavar="SEED", help=text)


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    _input_arguments(parser, seed=0)
    parser.add_argument("--rounds", type=int, default=100, help="alternating pairs of the comparison (default 100)")
    parser.add_argument("--html", metavar="FILE", help="write the report with its timeline here too, as one page")
    parser.add_argument("--ablate", action="store_true", help="with --html: what each optimisation gives, too")
    text = "on an accelerator: the second of two runs, with L2 as the first one left it"
    parser.add_argument("--warm", action="store_true", help=text)
    text = "on an accelerator: the critical path, and what each boundary's synchronisation costs"
    parser.add_argument("--critical", action="store_true", help=text)
    text = "with --critical: boundaries that are tried out without their synchronisation (default 5)"
    parser.add_argument("--confirm", type=int, default=5, metavar="N", help=text)


def add_model_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The arguments that say which model is compiled, and how. `optional`: there need not be a model."""
    parser.add_argument("model", nargs="?" if optional else None, help=cli_sweep.MODEL)
    text = (
        "host, a machine's profile (.json), a3, a2, mini or a target file (default: host; ablate: a3, crosscheck: mini)"
    )
    parser.add_argument("--target", default=None, help=text)
    parser.add_argument("--threads", type=int, default=None, help="worker threads (default: all allowed CPUs)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="a compile option; repeatable"
    )
    text = "take no kernels but those that this file of `kernels dump` lists; repeatable"
    parser.add_argument("--manifest", action="append", default=[], metavar="FILE", help=text)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="value of a symbolic dimension")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=1,3,224,224", help="shape of an input")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def _input_arguments(parser: argparse.ArgumentParser, seed: int | None = None) -> None:
    """`seed`: of the inputs where none are given; None: they have to be."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--inputs", metavar="FILE.npz", help="a file with one array per input, by name")
    text = "make inputs from a seed instead" + ("" if seed is None else f" (default: seed {seed})")
    source.add_argument("--random-inputs", type=int, metavar="SEED", default=seed, help=text)


def load_model(args: argparse.Namespace) -> Any:
    """The compiled kernel of the command line's model."""
    import superkernel

    if _is_saved(args.model):
        _refuse_with_saved(args, args.model, "target", "option", "manifest", "dim", "shape")
        return superkernel.load(args.model, threads=args.threads)
    return superkernel.compile(
        args.model,
        target="host" if args.target is None else args.target,
        threads=args.threads,
        options=_options(args),
        **_sizes(args),
    )


def _is_saved(model: str) -> bool:
    """Whether a model is read as a saved kernel, which may have any name: reading says why one that only has its
    ending is none."""
    from superkernel.backends.saved import is_saved_kernel

    return is_saved_kernel(model) or (Path(model).suffix == ".skm" and not is_folder(model))


def _refuse_with_saved(args: argparse.Namespace, model: str, *names: str) -> None:
    """Raises InputError where arguments are given that a saved kernel has decided already."""
    given = [f"--{name}" for name in names if getattr(args, name)]
    if given:
        hint = "a saved kernel has its options and shapes already; compile the model again"
        raise InputError(f"{', '.join(given)} with a saved kernel", location=f"file {model!r}", hint=hint)


def _sizes(args: argparse.Namespace) -> dict[str, Any]:
    """Dimensions and shapes that the command line gives."""
    shapes = {k: tuple(_integer(d, f"shape of {k!r}") for d in v.split(",") if d) for k, v in map(_pair, args.shape)}
    return {"dims": {k: _integer(v, f"dimension {k!r}") for k, v in map(_pair, args.dim)}, "shapes": shapes}


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of --option and --manifest."""
    return parse_options([*map(_pair, args.option), *(("manifest", file) for file in args.manifest)])


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.rpartition("=")
    if not found or not name:
        raise InputError("not of the form NAME=VALUE", found=repr(text))
    return name, value


def _integer(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError("not an integer", location=where, found=repr(text)) from error


def _inputs(args: argparse.Namespace, kernel: Any) -> dict[str, Any]:
    """The arrays of --inputs, or random ones of --random-inputs."""
    from superkernel.cli.npz import read_npz
    from superkernel.reference.random_inputs import random_inputs

    if args.inputs is not None:
        return read_npz(Path(args.inputs), kernel.inputs)
    if args.random_inputs is None and kernel.inputs:
        names = ", ".join(f"{n}: {t}" for n, t in kernel.inputs.items())
        raise InputError("no inputs", expected=names, hint="give --inputs FILE.npz or --random-inputs SEED")
    return random_inputs(kernel.inputs, args.random_inputs or 0)


def _compile(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    kernel = load_model(args)
    seconds = time.perf_counter() - start
    kernel.save(args.output)
    summary = {**kernel.summary(), "compile_seconds": round(seconds, 3), "output": args.output}
    if args.dump_kernels is not None:
        summary["kernels"] = cli_kernels.write_manifests(kernel, Path(args.dump_kernels))
    _print(args, summary, lambda: _lines(summary))
    return 0


def _export(args: argparse.Namespace) -> int:
    library = cli_export.run(args, load_model)
    _print(args, library.to_json(), library.__str__)
    return 0


def _run(args: argparse.Namespace) -> int:
    from superkernel.cli.npz import write_npz
    from superkernel.ir.graph import type_of_array

    kernel = load_model(args)
    inputs = _inputs(args, kernel)
    start = time.perf_counter_ns()
    result = kernel.run(inputs, executor=args.executor, delays=args.delays)
    outputs = {**result.dumps, **result.outputs}
    elapsed_ns = time.perf_counter_ns() - start
    if args.outputs is not None:
        write_npz(Path(args.outputs), outputs)
    kinds = {name: type_of_array(a) for name, a in outputs.items()}
    rows = {
        name: {"dtype": str(kinds[name].dtype), "shape": list(a.shape), **_statistics(a)} for name, a in outputs.items()
    }
    summary = {"outputs": rows, "run_us": elapsed_ns / 1000, "threads": kernel.threads}
    summary["executor"] = args.executor or kernel.executor
    _print(args, summary, lambda: "\n".join(_row(kinds[name], name, row) for name, row in rows.items()))
    return 0


def _row(kind: Any, name: str, row: dict[str, Any]) -> str:
    figures = [f"{key} {row[key]:.6g}" for key in ("min", "max", "mean", "not_finite") if key in row]
    return f"{name}: {kind}" + (f"  {', '.join(figures)}" if figures else "")


def _statistics(array: Any) -> dict[str, float | int]:
    """Least, largest and mean of the finite elements; how many are not finite, where any."""
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    found: dict[str, float | int] = {}
    if finite.size:
        with np.errstate(over="ignore"):
            found = {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    if finite.size < wide.size:
        found["not_finite"] = int(wide.size - finite.size)
    return found


def _report(args: argparse.Namespace) -> int:
    if args.ablate and args.html is None:
        raise InputError("--ablate without --html", hint="`superkernel ablate` prints what each optimisation gives")
    kernel = load_model(args)
    inputs = _inputs(args, kernel)
    if args.critical:
        if args.html is not None:
            raise InputError("--html with --critical", hint="the page has the critical path in its timeline")
        report = kernel.critical(inputs, confirm=args.confirm)
    else:
        report = kernel.report(inputs, rounds=args.rounds, warm=args.warm)
        if args.html is not None:
            more = [cli_analysis.ablation_chart(kernel, inputs)] if args.ablate else []
            save_page(args.html, report.html(*more))
    _print(args, report.to_json(), report.text)
    return 0


def _inspect(args: argparse.Namespace) -> int:
    kernel = load_model(args)
    if args.explain is not None:
        node = int(args.explain) if args.explain.isdecimal() else args.explain
        explanation = kernel.explain(node)
        _print(args, explanation.to_json(), explanation.text)
        return 0
    if args.stage == "summary":
        summary = kernel.summary()
        _print(args, summary, lambda: _lines(summary))
        return 0
    text = kernel.stage_text(args.stage)
    _print(args, {"stage": args.stage, "text": text}, lambda: text)
    return 0


def _verify(args: argparse.Namespace) -> int:
    if args.rates:
        found, interrupted = cli_analysis.run_rates(args)
        _print(args, [one.to_json() for one in found], lambda: "\n\n".join(one.text() for one in found))
        if interrupted:
            print("superkernel: interrupted", file=sys.stderr)
            return INTERRUPTED
        return 0 if all(one.ok for one in found) else cli_analysis.WRONG
    if args.model is None:
        raise InputError("no model", hint="name one, or ask for --rates, which needs none")
    if is_elf(args.model):
        note = cli_analysis.certificate_of(args.model)
        _print(args, asdict(note), lambda: f"{note.text}\nthe file is the one it was saved as: {note.sha256}")
        return 0
    certificate = load_model(args).certificate
    _print(args, asdict(certificate), lambda: str(certificate))
    return 0


def _graph(args: argparse.Namespace, model: str | None = None) -> Any:
    """The graph of a model (default: the command line's) that is to be compiled in many ways: of a saved kernel what it
    was compiled from."""
    from superkernel.backends.saved import load_source
    from superkernel.frontends import load_graph

    model = args.model if model is None else model
    if _is_saved(model) or is_elf(model):
        _refuse_with_saved(args, model, "dim", "shape")
        return load_source(model)
    return load_graph(model, **_sizes(args))


def _ablate(args: argparse.Namespace) -> int:
    result = cli_analysis.run_ablate(args, _graph(args), _options(args))
    _print(args, result.to_json(), result.text)
    return 0


def _tune(args: argparse.Namespace) -> int:
    tuned = cli_tune.run(args, _graph(args), _options(args))
    _print(args, tuned.to_json(), tuned.text)
    return 0


def _trace(args: argparse.Namespace) -> int:
    trace = cli_analysis.run_trace(args, load_model(args))
    figures = {"file": args.out, "us": trace.duration_us, "spans": len(trace.spans), "tracks": len(trace.tracks)}
    _print(args, figures, lambda: f"{trace}\n{args.out} written")
    return 0


def _bisect(args: argparse.Namespace) -> int:
    result = cli_analysis.run_bisect(args, _graph(args), _options(args))
    _print(args, result.to_json(), result.text)
    return cli_analysis.WRONG if result.first is not None or result.placement else 0


def _explore(args: argparse.Namespace) -> int:
    result, again = cli_analysis.run_explore(args, _graph(args), _options(args))
    data = {**result.to_json(), "again": again}
    _print(args, data, lambda: result.text() + (f"\nshow it again: {again}" if again else ""))
    return 0 if result.difference is None else cli_analysis.WRONG


def _crosscheck(args: argparse.Namespace) -> int:
    result = cli_analysis.run_crosscheck(args, _graph(args), _options(args))
    _print(args, result.to_json(), result.text)
    return 0 if result.ok else cli_analysis.WRONG


def _snapshot(args: argparse.Namespace) -> int:
    kernel = load_model(args)
    figures = cli_canary.write_snapshot(args, kernel, _inputs(args, kernel))
    _print(args, figures, lambda: _lines(figures))
    return 0


def _canary(args: argparse.Namespace) -> int:
    found = cli_canary.run(args)
    _print(args, found.to_json(), found.text)
    return 0 if found.ok else cli_canary.CHANGED


def _sweep(args: argparse.Namespace) -> int:
    graphs = {name: _graph(args, name) for name in args.models}
    found, best = cli_sweep.run(args, graphs)
    data = {**found.to_json(), "best": [found.rows.index(row) for row in best]}
    _print(args, data, lambda: found.text(best))
    return 0


def _quantise(args: argparse.Namespace) -> int:
    found = cli_quantise.run(args)
    _print(args, found.to_json(), found.__str__)
    return 0


def _diff(args: argparse.Namespace) -> int:
    found = cli_diff.run(args)
    _print(args, found.to_json(), found.text)
    return cli_diff.SLOWER if found.worse else 0


def _lines(data: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in data.items())


def _machine(args: argparse.Namespace) -> int:
    data, text = cli_machine.run(args)
    _print(args, data, lambda: text)
    return 0


def _completion(args: argparse.Namespace) -> int:
    print(cli_completion.completion(_parser(), args.shell), end="")
    return 0


def _sim(args: argparse.Namespace) -> int:
    return cli_sim.run(args, EXIT_CODES, lambda data, text: _print(args, data, lambda: text))


def _print(args: argparse.Namespace, data: Any, text: Callable[[], str]) -> None:
    print(json_text(data) if args.json else text())
