"""`superkernel tune`: what could be best for a model's sub-operators, measured on the machine at hand and kept."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from typing import Any

from superkernel.core.errors import InputError
from superkernel.core.files import is_terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command, behind a model's."""
    text = "seconds of measuring, at most (default 60); what is left then, another run measures"
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help=text)
    parser.add_argument("--again", action="store_true", help="measure anew what is known of the model")


def run(args: argparse.Namespace, graph: Any, options: Mapping[str, Any]) -> Any:
    """What was measured and what it changed (`analysis/tuning.py`)."""
    from superkernel.analysis.tuning import tune

    if args.target not in (None, "host"):
        hint = "times are of the machine at hand; a simulated accelerator's need no measuring"
        raise InputError("tuning is of the host", location="--target", found=args.target, hint=hint)
    if not (args.budget >= 0 and math.isfinite(args.budget)):
        raise InputError("not a time", location="--budget", expected="seconds >= 0", found=str(args.budget))

    def progress(text: str) -> None:
        print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)

    shown = is_terminal(sys.stderr)
    told = progress if shown else lambda text: None
    try:
        return tune(graph, args.threads, options, budget_s=args.budget, again=args.again, progress=told)
    finally:
        if shown:
            print(f"\r{'':<60}\r", end="", file=sys.stderr, flush=True)
