"""`superkernel quantise`: a quantised ONNX model from an f32 one and data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from superkernel.cli.npz import read_npz
from superkernel.core.errors import InputError

if TYPE_CHECKING:
    from superkernel.analysis.quantising import Quantisation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `quantise`."""
    parser.add_argument("model", help="an .onnx file in f32")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.onnx", help="file to write")
    text = "files with one array per input, by name: a sample, or samples along a further first axis"
    parser.add_argument("--data", nargs="+", required=True, metavar="FILE.npz", help=text)
    text = "how ranges follow from values (default minmax)"
    parser.add_argument("--method", choices=("minmax", "percentile", "entropy"), default="minmax", help=text)
    parser.add_argument("--per-tensor", action="store_true", help="one scale per weight, not one per channel")
    text = "codes of activations (default u8); of 16 bits they lose less, at about the speed of f32"
    parser.add_argument("--activations", choices=("u8", "i8", "u16", "i16"), default="u8", help=text)
    parser.add_argument("--threads", type=int, default=None, help="worker threads of the comparison")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> Quantisation:
    """Carry `quantise` out. Raises as `superkernel.analysis.quantising.quantise` does."""
    from superkernel.analysis.quantising import quantise, stacked_samples
    from superkernel.backends.saved import is_saved_kernel

    if is_saved_kernel(args.model):
        raise InputError(
            "a saved kernel: its graph is compiled already",
            location=f"file {args.model!r}",
            expected="an .onnx file in f32",
            hint="give the model it was made of",
        )
    samples = [s for file in args.data for s in stacked_samples(args.model, read_npz(Path(file), {}))]
    return quantise(
        args.model,
        args.output,
        samples,
        method=args.method,
        per_channel=not args.per_tensor,
        activations=args.activations,
        threads=args.threads,
    )
