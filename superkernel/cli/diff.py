"""`superkernel diff`: two measurements in, what changed beyond noise out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from superkernel.core.errors import InputError

if TYPE_CHECKING:
    from superkernel.display.difference import MeasuredDifference

SLOWER = 1  # exit status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `diff`."""
    text = "what `report --json`, `ablate --json` or `trace --out FILE.json` wrote"
    parser.add_argument("before", metavar="A", help=text)
    parser.add_argument("after", metavar="B", help="the same of what is to be compared with it")
    text = "percent of a launch from which on a change is one (default 2)"
    parser.add_argument("--limit", type=float, default=2.0, metavar="PERCENT", help=text)
    parser.add_argument("--html", metavar="FILE", help="write both side by side here too, as one page")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> MeasuredDifference:
    """Carry `diff` out; the page is written. Raises InputError, FileFormatError."""
    from superkernel.display.comparison import comparison_page
    from superkernel.display.difference import difference, read_measurement
    from superkernel.display.tracing import save_page

    if not 0 <= args.limit < 100:
        raise InputError("not a limit", location="--limit", expected="0 up to 100", found=str(args.limit))
    before, after = read_measurement(args.before), read_measurement(args.after)
    names = (args.before, args.after)
    found = difference(before, after, args.limit / 100, names)
    if args.html is not None:
        save_page(args.html, comparison_page(found, before, after, names).html())
    return found
