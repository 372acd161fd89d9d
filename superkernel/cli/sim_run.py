"""The arguments of `superkernel sim run`, and one program run by them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from superkernel.core.errors import InputError
from superkernel.core.options import OPTIONS, SIMULATION_LIMIT_S

if TYPE_CHECKING:
    from superkernel.sim.accelerator import AcceleratorResult
    from superkernel.sim.program import ProgramResult
    from superkernel.target.aicore import AicoreTarget

_PLAIN_ONLY = ("harts", "memory_bytes", "memory_base", "quantum", "icache")
"""Arguments that an accelerator's description answers."""


def add_arguments(parser: argparse.ArgumentParser, parser_class: type[argparse.ArgumentParser]) -> None:
    """Adds the verbs of `sim` and their arguments."""
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=parser_class)
    text = (
        "Run a static ELF executable with the tohost convention, or, with a target, an accelerator program; exit with "
        "the program's status."
    )
    verb = verbs.add_parser("run", help=text, description=text)
    text = "bare-metal RV64GC programs, linked at the memory's base, or directories of such; several: a line each"
    verb.add_argument("programs", metavar="PROGRAM.elf", nargs="+", help=text)
    verb.add_argument(
        "--target",
        metavar="NAME|FILE",
        help="an accelerator: a3, a2, mini, or a target file; default: what the program says it is for",
    )
    verb.add_argument("--harts", type=int, metavar="N", help="hardware threads (default 1)")
    verb.add_argument(
        "--max-instructions", type=int, default=None, metavar="N", help="give up after N (default: never)"
    )
    text = f"give up after this time (default {SIMULATION_LIMIT_S:g})"
    verb.add_argument("--time-limit", type=float, default=SIMULATION_LIMIT_S, metavar="SECONDS", help=text)
    text = "on an accelerator: engines and signals are late at random; the seed repeats a run"
    verb.add_argument("--delays", type=int, default=0, metavar="SEED", help=text)
    simulation = OPTIONS["simulation"]
    text = f"on an accelerator: {simulation.effect.lower()} (default {simulation.default}); docs/simulator.md, Modes"
    verb.add_argument(f"--{simulation.name}", choices=simulation.choices, default=simulation.default, help=text)
    verb.add_argument(
        "--memory", dest="memory_bytes", type=int, metavar="BYTES", help="default: the program's and 16 MiB more"
    )
    verb.add_argument("--memory-base", type=_number, metavar="ADDRESS", help="default: 0x80000000")
    verb.add_argument("--quantum", type=int, metavar="N", help="instructions of one hart's turn (default 10000)")
    verb.add_argument("--icache", metavar="SIZE[,LINE[,WAYS[,MISS]]]", help="model an instruction cache per hart")
    verb.add_argument("--json", action="store_true", help="machine-readable output")


def _number(text: str) -> int:
    return int(text, 0)


def run(args: argparse.Namespace, program: str) -> ProgramResult | AcceleratorResult:
    """Runs a program as the command line says. Raises what `run_program` raises, InputError where arguments are not
    for this kind of program."""
    from superkernel.sim import CacheGeometry, run_program
    from superkernel.sim.accelerator import ends_through_tohost, is_accelerator_program, run_launches, run_on_one_core
    from superkernel.sim.machine import read_program

    plain = {name: getattr(args, name) for name in _PLAIN_ONLY if getattr(args, name) is not None}
    data, target = read_program(Path(program)), None
    if args.target is not None:
        from superkernel.backends.aicore.compatibility import check_compatible
        from superkernel.target.aicore import load_target

        target = load_target(args.target)
        check_compatible(data, target, program)
    if is_accelerator_program(data):
        from superkernel.target.note import noted_target

        target = target or noted_target(data, program)
        _check_accelerator(program, target, plain)
    if not args.time_limit > 0:
        raise InputError("out of range", location="--time-limit", expected="seconds above 0", found=args.time_limit)
    if args.delays and (target is None or ends_through_tohost(data)):
        raise InputError("only an accelerator has engines that may be late", location="--delays", found=args.delays)
    if args.simulation != OPTIONS["simulation"].default and (target is None or ends_through_tohost(data)):
        hint = "a plain program has no engines: it is run as it is, without their cycles"
        raise InputError(
            "only an accelerator's program is simulated in part",
            location="--simulation",
            found=args.simulation,
            hint=hint,
        )
    limits = {"max_instructions": args.max_instructions, "limit_s": args.time_limit}
    if target is not None and ends_through_tohost(data):
        return run_on_one_core(data, target, harts=plain.get("harts", 1), **limits)
    if target is not None:
        from superkernel.backends.aicore.compatibility import launches_of
        from superkernel.target.certificate_note import checked_certificate

        table = launches_of(data, program)
        if table.names:  # what a kernel saved
            checked_certificate(data, program)
        return run_launches(data, target, table, delays=args.delays, mode=args.simulation, **limits)
    if "icache" in plain:
        plain["icache"] = CacheGeometry.parse(plain["icache"])
    return run_program(program, **limits, **plain)


def _check_accelerator(program: str, target: AicoreTarget | None, plain: Mapping[str, object]) -> None:
    """An accelerator program needs its target, given or named by its file, which says how many cores, which memory and
    which caches there are; on a plain machine it would wait for ever."""
    where = f"file {program!r}"
    if target is None:
        hint = "give --target, what it was compiled for"
        raise InputError("an accelerator program without a target", location=where, hint=hint)
    if plain:
        given = ", ".join(f"--{name.removesuffix('_bytes').replace('_', '-')}" for name in plain)
        hint = "the target says which cores, memory and caches there are"
        message = "arguments for plain programs with an accelerator program"
        raise InputError(message, location=where, found=given, hint=hint)
