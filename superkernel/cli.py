"""The command line: `superkernel compile | run | report | inspect | kernels`.

Results go to stdout (JSON with --json), messages to stderr. Exit status: 0 success, 2 the user's input, 3 unsupported, 4 the machine,
1 a fault of SuperKernel. Errors are typed; with --json they are JSON too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from superkernel.errors import FileFormatError, InputError, SuperKernelError

EXIT_CODES = {"user": 2, "unsupported": 3, "environment": 4, "internal": 1}


class _Parser(argparse.ArgumentParser):
    """argparse that reports through the typed errors, so that --json covers them."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, hint=f"{self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    warnings.showwarning = _show_warning
    try:
        args = _parser().parse_args(words)
        command: Callable[[argparse.Namespace], int] = args.command
        return command(args)
    except SuperKernelError as error:
        if as_json:
            print(json.dumps(error.to_json(), indent=2))
        else:
            print(f"superkernel: {error.category} error: {error}", file=sys.stderr)
        return EXIT_CODES[error.category]
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("superkernel: interrupted", file=sys.stderr)
        return 130


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"superkernel: warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    from superkernel import __version__

    parser = _Parser(prog="superkernel", description="Fuse a graph of operators into one multi-core kernel.")
    parser.add_argument("--version", action="version", version=f"superkernel {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, parser_class=_Parser)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=run)
        return sub

    sub = add("compile", _compile, "Compile a model and save the kernel.")
    _model_arguments(sub)
    sub.add_argument("-o", "--output", required=True, help="file to write")
    sub = add("run", _run, "Run a model on inputs from a file.")
    _model_arguments(sub)
    _input_arguments(sub)
    sub.add_argument("--outputs", help="write the outputs to this .npz, output names as array names")
    sub.add_argument("--executor", default=None, help="host (default) or reference (NumPy)")
    sub = add("report", _report, "Show what synchronisation costs, and fused against one by one.")
    _model_arguments(sub)
    _input_arguments(sub)
    sub.add_argument("--rounds", type=int, default=100, help="alternating pairs of the comparison (default 100)")
    sub = add("inspect", _inspect, "Show a stage of the compilation, or explain one node.")
    _model_arguments(sub)
    stages = ("summary", "graph", "simplified", "subops", "schedule", "plan", "certificate")
    sub.add_argument("--stage", choices=stages, default="summary")
    sub.add_argument("--explain", metavar="NODE", help="kernel choice, grouping, tiling and sync of a node")
    sub = add("kernels", _kernels, "The kernel registry: list | explain OP | dump MODEL | merge A B ... -o OUT.")
    sub.add_argument("words", nargs="+", metavar="WORD")
    sub.add_argument("-o", "--output")
    sub.add_argument("--json", action="store_true")
    return parser


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="an .onnx file, a node-link .json file, or a saved kernel")
    parser.add_argument("--target", default="host", help="what to compile for (default: host)")
    parser.add_argument("--threads", type=int, default=None, help="worker threads (default: all allowed CPUs)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a compile option; repeatable")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="value of a symbolic dimension")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=1,3,224,224", help="shape of an input")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def _input_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", help="an .npz file with one array per input")
    parser.add_argument("--random-inputs", type=int, metavar="SEED", help="make inputs from a seed instead")


def _load(args: argparse.Namespace) -> Any:
    """The compiled kernel of the command line's model."""
    import superkernel
    from superkernel.saved import is_saved_kernel

    if is_saved_kernel(args.model):
        return superkernel.load(args.model, threads=args.threads)
    return superkernel.compile(
        args.model,
        target=args.target,
        threads=args.threads,
        options=_options(args.option),
        dims={k: _integer(v, k) for k, v in map(_pair, args.dim)},
        shapes={k: tuple(_integer(d, k) for d in v.split(",") if d) for k, v in map(_pair, args.shape)},
    )


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.rpartition("=") if text.count("=") > 1 else text.partition("=")
    if not found or not name:
        raise InputError("not of the form NAME=VALUE", found=repr(text))
    return name, value


def _integer(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError("not an integer", location=name, found=repr(text)) from error


def _options(words: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE words as option values: true/false, numbers, comma-separated patterns, or text."""
    values: dict[str, Any] = {}
    for name, text in map(_pair, words):
        if name in ("deny", "pin"):
            values[name] = tuple(text.split(","))
        elif text.lower() in ("true", "false", "on", "off"):
            values[name] = text.lower() in ("true", "on")
        elif name.endswith("_ms"):
            try:
                values[name] = float(text)
            except ValueError as error:
                raise InputError("not a number", location=f"option {name!r}", found=repr(text)) from error
        else:
            values[name] = text
    return values


def _inputs(args: argparse.Namespace, kernel: Any) -> dict[str, Any]:
    """The arrays of --inputs, or random ones of --random-inputs."""
    from superkernel.random_inputs import random_inputs

    if args.inputs is None:
        if args.random_inputs is None and kernel.inputs:
            raise InputError("no inputs", hint="give --inputs FILE.npz or --random-inputs SEED")
        return random_inputs(kernel.inputs, args.random_inputs or 0)
    if args.random_inputs is not None:
        raise InputError("--inputs and --random-inputs exclude each other")
    path = Path(args.inputs)
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise InputError("no such file", location=str(path)) from error
    except Exception as error:  # np.load raises what zipfile, zlib, struct and its own parser raise
        raise FileFormatError(f"not a readable .npz file: {error}", location=str(path)) from error


def _compile(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    kernel = _load(args)
    seconds = time.perf_counter() - start
    kernel.save(args.output)
    summary = {**kernel.summary(), "compile_seconds": round(seconds, 3), "output": args.output}
    _print(args, summary, lambda: "\n".join(f"{k}: {v}" for k, v in summary.items()))
    return 0


def _run(args: argparse.Namespace) -> int:
    kernel = _load(args)
    inputs = _inputs(args, kernel)
    start = time.perf_counter_ns()
    outputs = kernel.run(inputs, executor=args.executor).outputs
    elapsed_ns = time.perf_counter_ns() - start
    if args.outputs:
        try:
            with Path(args.outputs).open("wb") as file:
                np.savez(file, **outputs)
        except OSError as error:
            raise InputError(f"cannot write the outputs: {error}", location=args.outputs) from error
    rows = {
        name: {"dtype": str(kernel.outputs[name].dtype), "shape": list(a.shape), **_statistics(a)}
        for name, a in outputs.items()
    }
    summary = {"outputs": rows, "run_us": elapsed_ns / 1000, "threads": kernel.threads}
    _print(args, summary, lambda: "\n".join(f"{n}: {r}" for n, r in rows.items()))
    return 0


def _statistics(array: Any) -> dict[str, float]:
    if array.size == 0:
        return {}
    wide = array.astype(np.float64)
    return {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}


def _report(args: argparse.Namespace) -> int:
    kernel = _load(args)
    report = kernel.report(_inputs(args, kernel), rounds=args.rounds)
    _print(args, report.to_json(), report.text)
    return 0


def _inspect(args: argparse.Namespace) -> int:
    kernel = _load(args)
    if args.explain is not None:
        explanation = kernel.explain(args.explain)
        _print(args, explanation.to_json(), explanation.text)
        return 0
    if args.stage == "summary":
        summary = kernel.summary()
        _print(args, summary, lambda: "\n".join(f"{k}: {v}" for k, v in summary.items()))
        return 0
    text = kernel.stage_text(args.stage)
    _print(args, {"stage": args.stage, "text": text}, lambda: text)
    return 0


def _kernels(args: argparse.Namespace) -> int:
    from superkernel.registry import commands

    verb, *rest = args.words
    if verb == "list" and not rest:
        print(commands.kernels_list(as_json=args.json))
    elif verb == "explain" and rest:
        print(commands.kernels_explain(rest[0], as_json=args.json))
    elif verb == "dump" and len(rest) == 1:
        import superkernel

        print(commands.kernels_dump(superkernel.compile(rest[0]).manifest(), output=args.output))
    elif verb == "merge" and len(rest) >= 2 and args.output:
        print(commands.kernels_merge(rest, output=args.output))
    else:
        raise InputError("unknown form", expected="list | explain OP | dump MODEL [-o F] | merge A B ... -o F")
    return 0


def _print(args: argparse.Namespace, data: Any, text: Callable[[], str]) -> None:
    print(json.dumps(data, indent=2, default=str) if args.json else text())


if __name__ == "__main__":
    sys.exit(main())
