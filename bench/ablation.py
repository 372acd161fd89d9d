"""What each optimisation gives on whole models, on simulated accelerators: the tables of docs/accelerator.md.

    python bench/ablation.py [MODEL ...] [--target a3,mini] [--figures] [--sensitivity] [--combinations N] [--out DIR]

Models: a decode step of 8 layers in Llama's style (width 512, 8 heads, 2 of keys and values), an encoder layer of
MiniLM's sizes (128 tokens), a chain of residual blocks, a network with branches, a mixture of experts; `resnet50` is
the light ONNX model (minutes), and is left out unless it is named. `--figures` leaves out the steps and prints the
three figures of the whole alone. `--combinations N` also runs N combinations of the options and compares all outputs
and states bit by bit with those of the sub-operators launched one by one; the exit status is 1 where any differs.
`--out`: one JSON file per model and target.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from superkernel.ablate import ablate, ablation_target, figures
from superkernel.graph import Graph

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "st"))
import models
from test_aicore_ablation import Bench, branching, dealt, residual_chain


def decode() -> Graph:
    sizes = {"width": 512, "heads": 8, "kv_heads": 2, "inner": 1408, "vocabulary": 1024, "positions": 128}
    return models.decode_step(layers=8, **sizes)


def encoder() -> Graph:
    return models.transformer(layers=1, tokens=128, width=384, heads=12)


def resnet50() -> Graph:
    from superkernel.frontends.onnx import load_onnx

    return load_onnx(models.light_model("resnet50", gain=0.5))


MODELS: dict[str, Callable[[], Graph]] = {
    "decode": decode,
    "encoder": encoder,
    "residual": residual_chain,
    "branches": branching,
    "experts": models.moe_layer,
    "resnet50": resnet50,
}
USUAL = [name for name in MODELS if name != "resnet50"]


def equal_under_all(graph: Graph, target: str, count: int) -> list[str]:
    """The combinations whose results are not those of single launches."""
    bench = Bench(graph, target)
    expected = bench.results(bench.made({}), single=True)
    return [str(row) for row in dealt(count) if bench.results(bench.made(row)) != expected]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help=f"default: {' '.join(USUAL)}")
    parser.add_argument("--target", default="a3,mini", help="targets, by commas")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--combinations", type=int, default=0, metavar="N")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR")
    args = parser.parse_args()
    wrong = 0
    for name in args.models or USUAL:
        graph = MODELS[name]()
        for target in args.target.split(","):
            begin = time.perf_counter()
            device = ablation_target(target)
            if args.figures:
                summary = figures(graph, device)
                text, plain = "\n".join([f"{name} on {target}", *summary.lines()]), summary.to_json()
            else:
                table = ablate(graph, device, sensitivity=args.sensitivity)
                text, plain = table.text(), table.to_json()
            print(text)
            if args.combinations:
                different = equal_under_all(graph, target, args.combinations)
                wrong += len(different)
                print(f"{args.combinations} combinations of options, {len(different)} with other bits", *different)
            print(f"({time.perf_counter() - begin:.0f} s)\n", flush=True)
            if args.out is not None:
                args.out.mkdir(parents=True, exist_ok=True)
                (args.out / f"ablation-{name}-{target}.json").write_text(json.dumps(plain, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
