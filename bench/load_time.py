"""Time until a network of ResNet-50's size can run: a saved kernel, the same graph compiled from the cache, and an
onnxruntime session of the same model.

    python bench/load_time.py [--json] [--rounds 7]

Each is loaded in a process of its own, in turns: once (`first`, the library's import included, as some import at once
what others import when they need it; NumPy is there before), and again (`again`, the median of three). Medians of the
rounds, ms; `cpu` is the time that all threads of the process used for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter_ns, process_time_ns
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RIVAL = "onnxruntime"
WAYS = ("load", "compile from the cache", *([RIVAL] if find_spec(RIVAL) else []))
LATER = 3


def prepare(folder: Path) -> None:
    """The model, the saved kernel and a warm cache."""
    sys.path.insert(0, str(ROOT / "tests"))
    import models
    import onnx

    import superkernel as sk

    onnx.save(models.light_model("resnet50", gain=0.5), folder / "model.onnx")
    sk.compile(folder / "model.onnx", threads=2).save(folder / "model.skm")


def loader(way: str, folder: Path) -> Callable[[], object]:
    """What loads the model, with its library imported."""
    if way == RIVAL:
        import onnxruntime as ort

        ort.set_default_logger_severity(3)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        path = str(folder / "model.onnx")
        return lambda: ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    import superkernel as sk

    if way == "load":
        return lambda: sk.load(folder / "model.skm", threads=2)
    return lambda: sk.compile(folder / "model.onnx", threads=2)


def once(way: str, folder: Path) -> dict[str, float]:
    """Loads in this process: ms."""
    import numpy  # noqa: F401

    load: Callable[[], object] | None = None
    times = []
    for _ in range(1 + LATER):
        start, busy = perf_counter_ns(), process_time_ns()
        load = load or loader(way, folder)
        kept = load()
        times.append(((perf_counter_ns() - start) / 1e6, (process_time_ns() - busy) / 1e6))
        del kept
    (first, first_cpu), *later = times
    again, again_cpu = (median(row) for row in zip(*later, strict=True))
    return {"first": first, "first cpu": first_cpu, "again": again, "again cpu": again_cpu}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Medians over rounds in which all take turns."""
    with tempfile.TemporaryDirectory() as name:
        environment = {**os.environ, "SK_CACHE_DIR": str(Path(name) / "cache")}

        def run(*arguments: str) -> str:
            command = [sys.executable, __file__, "--folder", name, *arguments]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

        run("--prepare")
        rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                rows[way].append(json.loads(run("--one", way)))
    return {way: {key: median(row[key] for row in found) for key in found[0]} for way, found in rows.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.prepare:
        prepare(args.folder)
        return 0
    if args.one is not None:
        print(json.dumps(once(args.one, args.folder)))
        return 0
    figures: dict[str, Any] = measure(args.rounds)
    for other in WAYS[1:]:
        figures[f"load / {other}"] = {k: figures["load"][k] / v for k, v in figures[other].items()}
    if args.json:
        print(json.dumps(figures, indent=2))
        return 0
    for name, row in figures.items():
        print(f"{name:<30}" + "".join(f"  {key} {value:8.{2 if '/' in name else 0}f}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
