"""The arguments of `superkernel sim run PROGRAM.elf`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superkernel.sim.accelerator import AcceleratorResult
    from superkernel.sim.program import ProgramResult


def add_arguments(parser: argparse.ArgumentParser, parser_class: type[argparse.ArgumentParser]) -> None:
    """Adds the verbs of `sim` and their arguments."""
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=parser_class)
    text = (
        "Run a static ELF executable with the tohost convention, or, with a target, an accelerator program; exit with "
        "the program's status."
    )
    verb = verbs.add_parser("run", help=text, description=text)
    verb.add_argument("program", metavar="PROGRAM.elf", help="a bare-metal RV64GC program, linked at the memory's base")
    verb.add_argument("--target", metavar="NAME|FILE", help="an accelerator: a3, a2, mini, or a target file")
    verb.add_argument("--harts", type=int, default=1, metavar="N", help="hardware threads (default 1)")
    verb.add_argument(
        "--max-instructions", type=int, default=None, metavar="N", help="give up after N (default: never)"
    )
    verb.add_argument("--memory", type=int, default=0, metavar="BYTES", help="default: the program's and 16 MiB more")
    verb.add_argument("--memory-base", type=_number, default=0x80000000, metavar="ADDRESS", help="default: 0x80000000")
    verb.add_argument("--quantum", type=int, default=10_000, metavar="N", help="instructions of one hart's turn")
    verb.add_argument("--icache", metavar="SIZE[,LINE[,WAYS[,MISS]]]", help="model an instruction cache per hart")
    verb.add_argument("--json", action="store_true", help="machine-readable output")


def _number(text: str) -> int:
    return int(text, 0)


def run(args: argparse.Namespace) -> ProgramResult | AcceleratorResult:
    """Runs the program of the command line. Raises what `run_program` raises."""
    if args.target is not None:
        from superkernel.sim.accelerator import run_on_target
        from superkernel.target.aicore import load_target

        target = load_target(args.target)
        return run_on_target(Path(args.program), target, harts=args.harts, max_instructions=args.max_instructions)
    from superkernel.sim import CacheGeometry, run_program

    return run_program(
        args.program,
        harts=args.harts,
        max_instructions=args.max_instructions,
        memory_base=args.memory_base,
        memory_bytes=args.memory,
        quantum=args.quantum,
        icache=None if args.icache is None else CacheGeometry.parse(args.icache),
    )
