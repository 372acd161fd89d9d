"""`superkernel snapshot` and `superkernel canary`: what a model does, kept; two of these held against each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superkernel.core.errors import MachineError

if TYPE_CHECKING:
    from superkernel.analysis.canary import Canary

CHANGED = 1  # exit status


def add_snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `snapshot`, but for model and inputs."""
    parser.add_argument("-o", "--output", required=True, metavar="FILE.json", help="file to write")
    text = "rounds of the measurement of a launch on the host (default 100)"
    parser.add_argument("--rounds", type=int, default=100, help=text)


def add_canary_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `canary`."""
    parser.add_argument("old", metavar="OLD.json", help="what `superkernel snapshot` wrote under the version in use")
    parser.add_argument("new", metavar="NEW.json", help="the same under the version to come")
    text = "units of the last place by which outputs may differ (default 0: no bit)"
    parser.add_argument("--ulps", type=float, default=0.0, metavar="N", help=text)
    text = "difference over largest magnitude that outputs may have instead (default 0)"
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="X", help=text)
    text = "percent by which a launch may be slower, from interval to interval (default 5)"
    parser.add_argument("--slower", type=float, default=5.0, metavar="PERCENT", help=text)
    text = "percent by which memory may grow (default 0)"
    parser.add_argument("--memory", type=float, default=0.0, metavar="PERCENT", help=text)
    parser.add_argument("--same-kernels", action="store_true", help="no other kernels may be taken")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def write_snapshot(args: argparse.Namespace, kernel: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Carry `snapshot` out; figures to print. Raises MachineError where the file cannot be written."""
    from superkernel.analysis import canary

    snapshot = canary.take(kernel, inputs, args.rounds)
    try:
        canary.write(snapshot, Path(args.output))
    except OSError as error:
        raise MachineError("cannot write the snapshot", location=f"file {args.output!r}", found=str(error)) from error
    kernels = sorted({use["row"] for use in snapshot["kernels"]})
    return {"output": args.output, "kernels": kernels, **snapshot["memory"], **snapshot["launch"]}


def run(args: argparse.Namespace) -> Canary:
    """Carry `canary` out. Raises InputError, FileFormatError."""
    from superkernel.analysis.canary import Limits, compare, read

    limits = Limits(args.ulps, args.tolerance, args.slower / 100, args.memory / 100, not args.same_kernels)
    return compare(read(args.old), read(args.new), limits)
