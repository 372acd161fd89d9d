"""`superkernel export`: models, compiled for one or several numbers of threads, as a library."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from superkernel.core.errors import InputError

if TYPE_CHECKING:
    from superkernel import Library
    from superkernel.runtime.kernel import Kernel

Parser = argparse.ArgumentParser


def add_arguments(parser: Parser) -> None:
    """What the command takes beside a model's arguments."""
    parser.add_argument("more", nargs="*", metavar="MODEL", help="further models; each is called by its file's name")
    text = "libNAME.so, a shared library, or libNAME.a, a static one; NAME.h is written beside it"
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help=text)
    text = "a plan for this number of threads, too; repeatable (programs say how many they want)"
    parser.add_argument("--also-threads", action="append", type=int, default=[], metavar="N", help=text)
    text = "the C++ compiler that builds the runtime and links (default: $CXX, c++, g++ or clang++)"
    parser.add_argument("--compiler", metavar="COMMAND", help=text)


def run(args: argparse.Namespace, load_model: Callable[[argparse.Namespace], Kernel]) -> Library:
    """The library of the command line's models. Raises InputError where two have one name."""
    import superkernel

    kernels: dict[str, list[Kernel]] = {}
    for model in (args.model, *args.more):
        name = Path(model).stem
        if name in kernels:
            raise InputError("two models of one name", location=f"file {model!r}", found=name, hint="rename a file")
        kernels[name] = [
            load_model(argparse.Namespace(**{**vars(args), "model": model, "threads": threads}))
            for threads in dict.fromkeys((args.threads, *args.also_threads))
        ]
    return superkernel.export(kernels, args.output, manifest=args.manifest, compiler=args.compiler)
