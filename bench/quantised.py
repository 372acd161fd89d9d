"""Networks in bytes: how fast, beside the same in f32 and beside other runtimes, and how well they agree with f32.

    python bench/quantised.py [--only mobilenet,resnet50] [--threads 1] [--rounds 20] [--samples 16] [--json]

Models: MobileNet v1 at 224 x 224 and ResNet-50 with random weights, quantised by `superkernel quantise` (per channel,
ranges of four samples). Calls alternate in one process, so that whatever else the machine does meets all of them; a
network's rounds end with its median ratios. With one thread times are the process's CPU time, to which other programs
add little. With more than one runtimes' own threads spin beside one another: `bench/run.py --workloads 'int8-*'` gives
each a process.

Agreement is of our bytes with our f32, over random images (independent numbers) and structured ones (a few smooth
waves, edges and spots, neighbours alike as in photographs), none of which ranges were found on: rows whose largest
output is the same one, and the largest difference over the largest magnitude. Of bytes with onnxruntime: outputs that
differ at all, and by how much of the largest magnitude at most.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from emit_onnx import to_onnx
from numpy.typing import NDArray
from peers import PEERS, Task
from stats import estimate
from workloads import MOBILENET, Workload, light_onnx, make_inputs, mobilenet

import superkernel as sk
from superkernel.analysis.quantising import quantise
from superkernel.frontends import load_graph

Array = NDArray[Any]
F32, BYTES = "f32", "bytes"
RIVALS = ("onnxruntime", "openvino")
CALIBRATION = 4


def logits_alone(model: Any) -> Any:
    """The model without the softmax at its end, which random weights saturate."""
    graph = model.graph
    softmax = next(node for node in reversed(graph.node) if node.op_type == "Softmax")
    kept = next(o for o in graph.output if o.name == softmax.output[0])
    kept.name = softmax.input[0]
    del graph.output[:]
    graph.output.append(kept)
    graph.node.remove(softmax)
    return model


NETWORKS: dict[str, Callable[[], Any]] = {
    "mobilenet": lambda: to_onnx(mobilenet(224, 32, MOBILENET, 1000)),
    "resnet50": lambda: logits_alone(light_onnx("resnet50")),
}


@dataclass(frozen=True)
class Agreement:
    """Of two ways to compute the same images, see the module docstring."""

    images: str
    samples: int
    same_largest: float
    difference: float


@dataclass(frozen=True)
class Result:
    """A network. `least_ms`: of the fastest call, by runner; `times`: how many times as fast as each runner our bytes
    are, in the median over rounds."""

    network: str
    threads: int
    least_ms: dict[str, float]
    times: dict[str, float]
    agreements: tuple[Agreement, ...]
    differing: float | None
    off: float | None


def random_image(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Independent normal numbers."""
    return rng.standard_normal(shape).astype(np.float32)


def structured_image(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Waves of a few periods, an edge and a spot per channel, of mean 0 and deviation 1."""
    high, wide = shape[-2:]
    y, x = np.meshgrid(np.linspace(0, 1, high), np.linspace(0, 1, wide), indexing="ij")
    planes = []
    for _ in range(int(np.prod(shape[:-2]))):
        plane = np.zeros((high, wide))
        for _ in range(3):
            across, down, phase = rng.uniform(-4, 4), rng.uniform(-4, 4), rng.uniform(0, 2 * np.pi)
            plane += rng.uniform(0.3, 1) * np.sin(2 * np.pi * (across * x + down * y) + phase)
        angle, place = rng.uniform(0, 2 * np.pi), rng.uniform(-0.3, 0.3)
        plane += 2.0 * (np.cos(angle) * (x - 0.5) + np.sin(angle) * (y - 0.5) > place)
        distance = (x - rng.uniform(0, 1)) ** 2 + (y - rng.uniform(0, 1)) ** 2
        plane += 3 * np.exp(-distance / rng.uniform(0.005, 0.05))
        planes.append((plane - plane.mean()) / plane.std())
    return np.stack(planes).reshape(shape).astype(np.float32)


IMAGES = {"random": random_image, "structured": structured_image}


def agreement(name: str, first: list[Array], second: list[Array]) -> Agreement:
    """Of outputs [..., classes], image by image."""
    a, b = np.stack(first).astype(np.float64), np.stack(second).astype(np.float64)
    same = float((a.argmax(-1) == b.argmax(-1)).mean())
    return Agreement(name, len(first), same, float(np.abs(a - b).max() / np.abs(a).max()))


def alternating(
    calls: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], int]
) -> dict[str, list[float]]:
    """Milliseconds of each call by a clock of ns, round by round; the fastest of three in a row counts."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times = []
            for _ in range(3):
                begin = clock()
                call()
                times.append((clock() - begin) / 1e6)
            took[name].append(min(times))
    return took


def measured(name: str, model: Any, threads: int, rounds: int, samples: int) -> Result:
    """One network, an ONNX model in f32 with an image for its only input."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        f32, quantised = Path(folder, "f32.onnx"), Path(folder, "bytes.onnx")
        onnx.save(model, str(f32))
        graph = load_graph(f32)
        ((slot, kind),) = graph.inputs.items()
        quantise(f32, quantised, [make_inputs(graph, seed) for seed in range(2, 2 + CALIBRATION)], threads=threads)
        in_bytes = onnx.load(str(quantised))
        kernels = {F32: sk.compile(f32, threads=threads), BYTES: sk.compile(quantised, threads=threads)}
    output = next(iter(graph.outputs))
    workload = Workload(name, "quantised", lambda: graph, {}, None, onnx=lambda: in_bytes)
    given = make_inputs(graph)
    calls: dict[str, Callable[[], object]] = {n: partial(k.run, given) for n, k in kernels.items()}
    rivals = {p.name: p for p in PEERS.values() if p.name in RIVALS and p.installed}
    loaded = {n: p.load(Task(workload, graph, given, threads)) for n, p in rivals.items()}
    calls |= {n: runner.call for n, runner in loaded.items()}
    for call in calls.values():
        call()
    took = alternating(calls, rounds, time.process_time_ns if threads == 1 else time.perf_counter_ns)
    times = {n: estimate([a / b for a, b in zip(took[n], took[BYTES], strict=True)]).median for n in took if n != BYTES}

    def outputs(kernel: Any, images: list[Array]) -> list[Array]:
        return [np.array(kernel.run({slot: image}).outputs[output]).reshape(-1) for image in images]

    agreements = []
    for what, draw in IMAGES.items():
        rng = np.random.default_rng(100)
        images = [draw(tuple(kind.shape), rng) for _ in range(samples)]
        agreements.append(agreement(what, outputs(kernels[F32], images), outputs(kernels[BYTES], images)))
    differing = off = None
    if RIVALS[0] in loaded:
        theirs = loaded[RIVALS[0]].outputs()[output].reshape(-1)
        (ours,) = outputs(kernels[BYTES], [given[slot]])
        differing, off = float((ours != theirs).mean()), float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    return Result(name, threads, {n: min(t) for n, t in took.items()}, times, tuple(agreements), differing, off)


def table(results: list[Result]) -> str:
    """For people."""
    lines = []
    for r in results:
        fastest = ", ".join(f"{n} {t:.2f} ms" for n, t in r.least_ms.items())
        ratios = ", ".join(f"{t:.2f} x {n}" for n, t in r.times.items())
        lines += [f"{r.network}, threads: {r.threads}: {fastest}", f"  ours in bytes is as fast as {ratios}"]
        lines += [
            f"  {a.images} images: the same largest output as f32 in {a.same_largest:.1%} of {a.samples}, largest "
            f"difference {a.difference:.1%} of the largest magnitude"
            for a in r.agreements
        ]
        if r.differing is not None and r.off is not None:
            lines.append(f"  onnxruntime's bytes: {r.differing:.1%} of outputs differ, by {r.off:.2%} at most")
    return "\n".join(lines)


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = given.only.split(",")
    unknown = [name for name in names if name not in NETWORKS]
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    results = [measured(n, NETWORKS[n](), given.threads, given.rounds, given.samples) for n in names]
    print(json.dumps([asdict(result) for result in results], indent=1) if given.json else table(results))


if __name__ == "__main__":
    main()
