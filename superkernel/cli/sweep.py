"""`superkernel sweep`: models on many targets under many options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from superkernel.core.errors import InputError
from superkernel.core.files import is_terminal
from superkernel.core.options import parse_options
from superkernel.display.scatter import ScatterPoint, scatter_page
from superkernel.display.tracing import save_page

if TYPE_CHECKING:
    from superkernel.analysis.sweeping import SweepRow, TargetSweep
    from superkernel.ir.graph import Graph

MODEL = "an .onnx, .pt2, .gguf or node-link .json file, a folder with config.json, or a saved kernel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `sweep`."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help=MODEL)
    text = "a3, a2, mini or a target file; repeatable (default: a3)"
    parser.add_argument("--target", action="append", default=[], metavar="TARGET", help=text)
    text = "values of a target's number, as `target show` names it; repeatable"
    parser.add_argument("--field", action="append", default=[], metavar="SECTION.NAME=V,V", help=text)
    text = "values of a compile option; repeatable"
    parser.add_argument("--option", action="append", default=[], metavar="NAME=V,V", help=text)
    text = "keep rows here, and take those that are here already: an interrupted sweep goes on"
    parser.add_argument("--file", metavar="FILE.jsonl", help=text)
    parser.add_argument("--workers", type=int, default=None, help="processes (default: all allowed CPUs)")
    text = "two figures or varied fields; rows that no other one beats in both get a star (default: time_us,code_bytes)"
    parser.add_argument("--pareto", default="time_us,code_bytes", metavar="X,Y", help=text)
    text = "write the table and a plot of the two figures of --pareto here too, as one page"
    parser.add_argument("--html", metavar="FILE", help=text)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="value of a symbolic dimension")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=1,3,224,224", help="shape of an input")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace, graphs: Mapping[str, Graph]) -> tuple[TargetSweep, tuple[SweepRow, ...]]:
    """Carry `sweep` out: all rows, and those that no other one beats. Raises what `superkernel.analysis.sweeping.sweep`
    raises."""
    from superkernel.analysis.sweeping import FIGURES, sweep
    from superkernel.target.aicore import load_target

    axes = args.pareto.split(",")
    if len(axes) != 2:
        raise InputError("not two figures", location="--pareto", expected="X,Y", found=repr(args.pareto))
    if args.workers is not None and args.workers < 1:
        raise InputError("not a number of processes", location="--workers", found=str(args.workers))
    options: dict[str, list[Any]] = {}
    for name, texts in map(_values, args.option):
        options[name] = [parse_options([(name, text)])[name] for text in texts]
    fields = {path: [_number(text) for text in texts] for path, texts in map(_values, args.field)}
    for axis in axes:
        if axis not in (*FIGURES, *fields):
            expected = ", ".join((*FIGURES, *fields))
            raise InputError("no such figure", location="--pareto", expected=expected, found=repr(axis))
    found = sweep(
        graphs,
        [load_target(name) for name in args.target or ["a3"]],
        fields=fields,
        options=options,
        file=args.file,
        workers=args.workers,
        progress=_show_progress if is_terminal(sys.stderr) else lambda done, total: None,
    )
    best = found.pareto(*axes)
    if args.html is not None:
        save_page(args.html, page(found, best, (axes[0], axes[1])))
    return found, best


def page(found: TargetSweep, best: Sequence[SweepRow], axes: tuple[str, str]) -> str:
    """A plot and a table per model."""
    head, lines = found.table()
    groups: dict[str, list[ScatterPoint]] = {row.model: [] for row in found.rows}
    for row, line in zip(found.rows, lines, strict=True):
        x, y = row.figure(axes[0]), row.figure(axes[1])
        if x is not None and y is not None:
            name = ", ".join([row.target, *(f"{k}={v}" for k, v in {**row.fields, **row.options}.items())])
            groups[row.model].append(ScatterPoint(name, x, y, any(row is one for one in best), tuple(line)))
    return scatter_page("Sweep", axes, head, list(groups.items()))


def _values(text: str) -> tuple[str, list[str]]:
    name, found, values = text.partition("=")
    if not found or not name or not all(values.split(",")):
        raise InputError("not of the form NAME=VALUE,VALUE", found=repr(text))
    return name, values.split(",")


def _number(text: str) -> int | float | str | bool:
    """A value as TOML writes it: a number, true or false; a word otherwise."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _show_progress(done: int, total: int) -> None:
    print(f"\r{done} of {total} points", end="\n" if done == total else "", file=sys.stderr, flush=True)
