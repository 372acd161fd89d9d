"""A decode step with its weights as they are and quantised in blocks, side by side in one process; and products of
blocks beside onnxruntime's.

    python bench/blocks.py [--only 'decode-l*'] [--threads 1,2] [--rounds 30] [--json]
    python bench/blocks.py products [--threads 1] [--rounds 30] [--json]

Forms: f32; bf16 (`precision="bf16"`); 8 and 4 bits in blocks of 32 with f16 scales, x in f32; the same with
`precision="int8"`, x in 8 bits by block. Calls of all forms alternate, so that whatever else the machine does meets
all of them. Per form: fastest and median call, how many times as fast as bf16 (fastest calls), bytes of weights, and
the bytes per ns at which the fastest call takes them, to be held against what the machine reads (`superkernel
machine`): from the third-level cache where they fit, else from memory.

`products`: ONNX's MatMulNBits of accuracy level 4 (rows as bytes by block), by shape, bits and whether there are zero
points; calls of ours and of onnxruntime alternate. Per product: fastest calls, how many times as fast ours is by these
and in the median over rounds, and the largest difference over the largest magnitude.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from workloads import WORKLOADS, make_inputs

import superkernel as sk
from superkernel.ir.graph import Graph
from superkernel.machine import machine_profile
from superkernel.transforms.editor import Editor

BLOCK = 32
FORMS = {
    "f32": (32, "f32"), "bf16": (32, "bf16"), "8 bits": (8, "f32"), "4 bits": (4, "f32"), "8 bits, int8": (8, "int8"),
    "4 bits, int8": (4, "int8"),
}  # fmt: skip
"""Bits of a weight, precision."""


@dataclass(frozen=True)
class Row:
    """What one form took."""

    workload: str
    threads: int
    form: str
    least_us: float
    median_us: float
    weight_bytes: int

    @property
    def bytes_per_ns(self) -> float:
        """At which weights were read in the fastest call."""
        return self.weight_bytes / self.least_us / 1e3


def quantised(weights: NDArray[np.float32], bits: int) -> tuple[NDArray[Any], NDArray[np.float16], int]:
    """[depth, columns] as codes and scales of `block_matmul`, and the code of 0: symmetric, a block's largest number
    being the largest code."""
    columns = np.ascontiguousarray(weights.T).reshape(weights.shape[1], -1, BLOCK)
    most = 2 ** (bits - 1) - 1
    scale = (np.abs(columns).max(axis=2) / most).astype(np.float16)
    codes = np.rint(columns / np.maximum(scale, np.float16(1e-7))[..., None].astype(np.float32))
    whole = np.clip(codes, -most, most).astype(np.int8).reshape(len(columns), -1)
    if bits == 8:
        return whole, scale, 0
    nibbles = (whole + most + 1).astype(np.uint8)
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4, scale, most + 1


def in_blocks(graph: Graph, bits: int) -> tuple[Graph, int]:
    """The graph with its products by constants in blocks, and the bytes of their weights."""
    editor, total = Editor(graph), 0
    for node in editor.walk():
        weights = editor.array(node.inputs[1]) if node.op == "matmul" else None
        if weights is None or weights.ndim != 2 or node.attrs["trans_b"] or len(weights) % BLOCK:
            continue
        if bits == 32:
            total += weights.nbytes
            continue
        codes, scale, zero = quantised(weights, bits)
        total += codes.nbytes + scale.nbytes
        constants = [editor.constant(part, f"{node.name}/{i}") for i, part in enumerate((codes, scale))]
        attrs = {"bits": bits, "block": BLOCK, "zero": zero}
        editor.emit("block_matmul", [node.inputs[0], *constants], attrs, node, node.outputs[0])
    return editor.finish(), total


def measured(name: str, threads: int, rounds: int) -> list[Row]:
    """All forms of a workload."""
    workload = next(w for w in WORKLOADS.values() if w.name == name)
    graph = workload.graph()
    calls: dict[str, tuple[Callable[[], object], int]] = {}
    for form, (bits, precision) in FORMS.items():
        made, size = in_blocks(graph, bits)
        kernel = sk.compile(made, threads=threads, options={"precision": precision, "fallback": "forbid"})
        given = make_inputs(made)
        calls[form] = (lambda kernel=kernel, given=given: kernel.run(given), size // 2 if precision == "bf16" else size)  # type: ignore[misc]
    took: dict[str, list[float]] = {form: [] for form in calls}
    for _ in range(rounds):
        for form, (call, _) in calls.items():
            call()  # the other forms had the caches and the workers
            begin = time.perf_counter_ns()
            call()
            took[form].append((time.perf_counter_ns() - begin) / 1e3)
    return [Row(name, threads, f, min(took[f]), statistics.median(took[f]), size) for f, (_, size) in calls.items()]


SHAPES = tuple((m, k, n) for m in (1, 4, 32, 256) for k, n in ((768, 2048), (2048, 2048)))


@dataclass(frozen=True)
class Product:
    """What a product took: [rows, depth] by [depth, columns]."""

    rows: int
    depth: int
    columns: int
    bits: int
    zero_points: bool
    threads: int
    ours_us: float
    onnxruntime_us: float
    times: float
    difference: float


def nbits_model(depth: int, columns: int, bits: int, zero_points: bool) -> Any:
    """One MatMulNBits of accuracy level 4, for any number of rows."""
    import onnx
    from onnx import helper, numpy_helper

    rng, blocks = np.random.default_rng(depth + columns + bits), depth // BLOCK
    constants: dict[str, NDArray[Any]] = {
        "w": rng.integers(0, 256, (columns, blocks, BLOCK * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.02, columns * blocks).astype(np.float32),
    }
    if zero_points:
        constants["z"] = rng.integers(0, 256, columns * (blocks * bits // 8)).astype(np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", K=depth, N=columns, bits=bits,
        block_size=BLOCK, accuracy_level=4,
    )  # fmt: skip
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["m", size]) for n, size in
            (("x", depth), ("y", columns))]  # fmt: skip
    graph = helper.make_graph(
        [node], "product", ends[:1], ends[1:], [numpy_helper.from_array(a, n) for n, a in constants.items()]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def product(shape: tuple[int, int, int], bits: int, zero_points: bool, threads: int, rounds: int) -> Product:
    """One product, ours and onnxruntime's in turn."""
    import onnxruntime

    rows, depth, columns = shape
    model = nbits_model(depth, columns, bits, zero_points)
    x = np.random.default_rng(1).standard_normal((rows, depth)).astype(np.float32)
    kernel = sk.compile(model, threads=threads, shapes={"x": x.shape}, options={"fallback": "forbid"})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    calls: tuple[Callable[[], Any], ...] = (
        lambda: kernel.run({"x": x}).outputs["y"],
        lambda: session.run(None, {"x": x})[0],
    )
    ours, theirs = (np.array(call()) for call in calls)
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, times in zip(calls, took, strict=True):
            slices = []
            for _ in range(5):  # the first ones find what the other left
                begin = time.perf_counter_ns()
                call()
                slices.append((time.perf_counter_ns() - begin) / 1e3)
            times.append(min(slices))
    return Product(
        rows, depth, columns, bits, zero_points, threads, min(took[0]), min(took[1]),
        statistics.median(b / a for a, b in zip(*took, strict=True)),
        float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
    )  # fmt: skip


def product_table(found: list[Product]) -> str:
    """For people."""
    lines = [f"{'rows':>5} {'depth':>6} {'columns':>8} {'bits':>5} {'zeros':>6} {'threads':>8} {'ours us':>9} "
             f"{'onnxruntime':>12} {'times':>6} {'median':>7} {'difference':>11}"]  # fmt: skip
    for p in found:
        lines.append(
            f"{p.rows:>5} {p.depth:>6} {p.columns:>8} {p.bits:>5} {'yes' if p.zero_points else 'no':>6} "
            f"{p.threads:>8} {p.ours_us:>9.1f} {p.onnxruntime_us:>12.1f} {p.onnxruntime_us / p.ours_us:>6.2f} "
            f"{p.times:>7.2f} {p.difference:>11.1e}"
        )
    medians = [p.times for p in found]
    mean = float(np.exp(np.mean(np.log(medians))))
    lines.append(
        f"as fast as onnxruntime: {mean:.2f} times in the geometric mean of medians, {min(medians):.2f} at least"
    )
    return "\n".join(lines)


def table(rows: list[Row]) -> str:
    """For people."""
    head = f"{'workload':<14} {'threads':>7} {'form':<13} {'least us':>9} {'median':>9} {'of bf16':>8}"
    lines = [f"{head} {'MB':>7} {'B/ns':>6}"]
    of_bf16 = {(r.workload, r.threads): r.least_us for r in rows if r.form == "bf16"}
    for row in rows:
        times = of_bf16[row.workload, row.threads] / row.least_us
        lines.append(
            f"{row.workload:<14} {row.threads:>7} {row.form:<13} {row.least_us:>9.0f} {row.median_us:>9.0f} "
            f"{times:>7.2f}x {row.weight_bytes / 1e6:>7.1f} {row.bytes_per_ns:>6.1f}"
        )
    profile = machine_profile()
    lines.append(f"reads of this machine, bytes per ns, by cores: L3 {profile.l3_own}, memory {profile.memory_own}")
    return "\n".join(lines)


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("steps", "products"), default="steps")
    parser.add_argument("--only", default="decode-*")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "products":
        threads = [int(t) for t in given.threads.split(",")]
        cases = [(s, bits, zeros) for s in SHAPES for bits in (4, 8) for zeros in (False, True)]
        found = [product(*case, t, given.rounds) for t in threads for case in cases]
        print(json.dumps([asdict(p) for p in found], indent=1) if given.json else product_table(found))
        return
    names = [w.name for w in WORKLOADS.values() if w.kind == "decoder" and fnmatchcase(w.name, given.only)]
    rows = [row for name in names for t in given.threads.split(",") for row in measured(name, int(t), given.rounds)]
    print(json.dumps([asdict(row) for row in rows], indent=1) if given.json else table(rows))


if __name__ == "__main__":
    main()
