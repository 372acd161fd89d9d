"""What each optimisation gives on whole models, on simulated accelerators: the tables of docs/accelerator.md.

    python bench/ablation.py [MODEL ...] [--target a3,mini] [--figures] [--sensitivity] [--out DIR]
    python bench/ablation.py [MODEL ...] [--target a3,mini] --choices
    python bench/ablation.py [MODEL ...] [--target a3,mini] --combinations N [--mutants] [--jobs N] [--out DIR]

Models: a decode step of 8 layers in Llama's style (width 512, 8 heads, 2 of keys and values), an encoder layer of
MiniLM's sizes (128 tokens), a chain of residual blocks, a network with branches, a mixture of experts; `inception`, a
module of that network at its full size, and `resnet50`, the light ONNX model (minutes), are left out unless they are
named.

`--choices` prints one row per model and target: what each default gives on top of all others, simulated / predicted,
in percent of the time without it. The exit status is 1 where one loses more than 1 %.

`--figures` leaves out the steps and prints the three figures of the whole alone.

`--combinations N` compiles N combinations of the options and compares all outputs and states bit by bit with those of
the sub-operators launched one by one. `--mutants` also leaves every single step of synchronisation out of their plans
(by itself: of the plans of 12 combinations, nothing is simulated): the verifier must refuse each. One line per
combination; the exit status is 1 where anything is wrong; tables are printed with `--figures` only. `--jobs`: processes
to use for that. `--out`: one JSON file per model and target; what it holds of combinations is not done again as long as
the sources stay the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ablation_models import MODELS
from combinations import prove

from superkernel.analysis.ablate import STEPS, Choice, ablate, ablation_target, choices, figures

MUTANTS_OF = 12  # combinations, where nobody asks for more
USUAL = [name for name in MODELS if name not in ("inception", "resnet50")]


def table(name: str, target: str, args: argparse.Namespace) -> None:
    """Print what the optimisations give on a model, and write it to the directory."""
    begin = time.perf_counter()
    graph, device = MODELS[name](), ablation_target(target)
    if args.figures:
        summary = figures(graph, device)
        text, plain = "\n".join([f"{name} on {target}", *summary.lines()]), summary.to_json()
    else:
        steps = ablate(graph, device, sensitivity=args.sensitivity)
        text, plain = steps.text(), steps.to_json()
    print(f"{text}\n({time.perf_counter() - begin:.0f} s)\n", flush=True)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"ablation-{name}-{target}.json").write_text(json.dumps(plain, indent=1) + "\n")


def choice_table(names: Sequence[str], targets: Sequence[str]) -> int:
    """Print what each default is worth, and count those that lose."""
    losses = 0
    columns = list(dict.fromkeys(name for step in STEPS for name in step.on))
    print("| model, target | us | " + " | ".join(f"`{name}`" for name in columns) + " |")
    print("|---|--:|" + "--:|" * len(columns), flush=True)
    for name in names:
        for target in targets:
            found = {choice.option: choice for choice in choices(MODELS[name](), ablation_target(target))}
            losses += sum(bool(choice.verdict) for choice in found.values())
            us = next(choice.us_without * (1 - choice.gain) for choice in found.values())
            cells = [_cell(found[column]) if column in found else "" for column in columns]
            print(f"| {name}, {target} | {us:.2f} | " + " | ".join(cells) + " |", flush=True)
    return losses


def _cell(choice: Choice) -> str:
    predicted = "" if choice.predicted is None else f" / {100 * choice.predicted:.1f}"
    return f"{100 * choice.gain:.1f}{predicted}" + " **loss**" * bool(choice.verdict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help=f"default: {' '.join(USUAL)}")
    parser.add_argument("--target", default="a3,mini", help="targets, by commas")
    parser.add_argument("--choices", action="store_true")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--combinations", type=int, default=0, metavar="N")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR")
    args = parser.parse_args()
    names, targets = args.models or USUAL, args.target.split(",")
    if args.choices:
        return int(choice_table(names, targets) > 0)
    proofs = bool(args.combinations or args.mutants)
    if args.figures or args.sensitivity or not proofs:
        for name in names:
            for target in targets:
                table(name, target, args)
    if not proofs:
        return 0
    count, bits = args.combinations or MUTANTS_OF, args.combinations > 0
    return int(prove(names, targets, count, bits=bits, mutants=args.mutants, jobs=args.jobs, out=args.out) > 0)


if __name__ == "__main__":
    sys.exit(main())
