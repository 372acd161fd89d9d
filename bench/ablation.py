"""What each optimisation gives on whole models, on simulated accelerators: the tables of docs/accelerator.md.

    python bench/ablation.py [MODEL ...] [--target a3,mini] [--figures] [--sensitivity] [--out DIR]
    python bench/ablation.py [MODEL ...] [--target a3,mini] --combinations N [--mutants] [--jobs N] [--out DIR]

Models: a decode step of 8 layers in Llama's style (width 512, 8 heads, 2 of keys and values), an encoder layer of
MiniLM's sizes (128 tokens), a chain of residual blocks, a network with branches, a mixture of experts; `inception`, a
module of that network at its full size, and `resnet50`, the light ONNX model (minutes), are left out unless they are
named. `--figures` leaves out the steps and prints the three figures of the whole alone.

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
from pathlib import Path

from ablation_models import MODELS
from combinations import prove

from superkernel.analysis.ablate import ablate, ablation_target, figures

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help=f"default: {' '.join(USUAL)}")
    parser.add_argument("--target", default="a3,mini", help="targets, by commas")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--combinations", type=int, default=0, metavar="N")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR")
    args = parser.parse_args()
    names, targets = args.models or USUAL, args.target.split(",")
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
