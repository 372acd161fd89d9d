"""A/B tool for kernel tuning: one body, every tiling, GFLOP/s and GB/s against the measured peaks of this machine.

    python bench/kernels.py matmul 1024 1024 1024 [--tier avx512] [--dynamic] [--trans-b] [--dtype f32] [--threads 2]
    python bench/kernels.py conv N C H W OC K stride [--groups G] [--nhwc] [--kernel host.conv.winograd4]
    python bench/kernels.py attention B HQ HKV SQ SKV D [--causal]
    python bench/kernels.py peak

Each figure is the best of several rounds, the candidates taking turns; with --threads N the units are split evenly
over N threads that start together (ctypes releases the interpreter lock).
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from superkernel.codegen.host.builder import KernelBuilder, register_type
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.gemm_core import fold, zero
from superkernel.codegen.host.lower import LoadedCode, compile_ir
from superkernel.codegen.host.standalone import StandaloneKernel, aligned_bytes
from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, channels_last_strides, row_major_strides
from superkernel.ir.body import Body, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.ops.opdef import AttrValue
from superkernel.scheduler.families import family_of
from superkernel.target.cpu import CpuTarget


def plain_body(
    op: str,
    attrs: dict[str, AttrValue],
    inputs: list[tuple[TensorType, Role]],
    output: TensorType,
    nhwc: bool = False,
) -> Body:
    """An anchor on dense operands whose epilogue only stores; with `nhwc` its first input and its output lie channels
    last."""
    order = channels_last_strides if nhwc else row_major_strides
    operands = [Operand(role, kind) for kind, role in inputs] + [Operand(Role.OUTPUT, output)]
    views = tuple(
        View(i, kind.shape, order(kind.shape) if i == 0 else kind.strides) for i, (kind, _) in enumerate(inputs)
    )
    store = ProgramOutput(0, len(inputs), order(output.shape))
    epilogue = PointwiseProgram(output.shape, (ProgramInput(-1, output.dtype),), (), (store,))
    return Body(op, tuple(attrs.items()), tuple(operands), views, tuple(k for k, _ in inputs), (output,), epilogue)


def peak_gflops(cpu: CpuTarget) -> float:
    """f32 multiply-adds on registers only."""
    module = ir.Module()
    kb = KernelBuilder(module, "peak", 1, cpu)
    lanes, count = cpu.vector_bytes // 4, 12
    one = kb.load(kb.operands[0], 0, DType.F32, lanes)
    state = fold(kb, 0, kb.end, 1, [zero(DType.F32, lanes)] * count, lambda _, s: [kb.fma(one, one, v) for v in s])
    total = state[0]
    for value in state[1:]:
        total = kb.b.fadd(total, value)
    kb.store(total, kb.operands[0], lanes, DType.F32)
    kb.finish()
    assert total.type == register_type(DType.F32, lanes)
    code = LoadedCode([compile_ir(str(module), cpu)], cpu)
    import ctypes

    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        code.address("peak")
    )
    data, trips = aligned_bytes(1024), 2_000_000
    best = min(timed(lambda: call(data.ctypes.data, data.ctypes.data, 0, trips)) for _ in range(7))
    return 2.0 * lanes * count * trips / best / 1e9


def read_gbytes() -> float:
    """DRAM read bandwidth of one core (a sum over 512 MB)."""
    data = np.ones(64 << 20, np.float64)
    return data.nbytes / min(timed(lambda: data.max()) for _ in range(5)) / 1e9


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Runner:
    """One tiling of a body, ready to be timed on some threads."""

    def __init__(self, kernel: str, body: Body, index: int, cpu: CpuTarget, threads: int) -> None:
        self.tiling = family_of(kernel).tilings(kernel, body, cpu)[index]
        start = time.perf_counter()
        self.kernels = [StandaloneKernel(kernel, body, self.tiling, cpu) for _ in range(threads)]
        self.compile_ms = (time.perf_counter() - start) * 1e3 / threads
        rng = np.random.default_rng(0)
        arrays = []
        for operand in body.operands:
            raw = rng.standard_normal(operand.type.size).astype(np.float32)
            typed = (
                raw.astype(operand.type.dtype.numpy)
                if operand.type.dtype.is_float
                else (raw * 40).astype(operand.type.dtype.numpy)
            )
            arrays.append(typed.reshape(operand.type.shape))
        self.packed = self.kernels[0].pack(arrays)

    def seconds(self) -> float:
        """One run; with several threads the longest, from a common start."""
        units, count = self.tiling.units, len(self.kernels)
        if count == 1:
            return timed(lambda: self.kernels[0].run_packed(self.packed))
        gate = threading.Barrier(count)
        spans: list[tuple[float, float]] = []

        def work(core: int) -> None:
            low, high = units * core // count, units * (core + 1) // count
            gate.wait()
            start = time.perf_counter()
            self.kernels[core].run_packed(self.packed, low, high)
            spans.append((start, time.perf_counter()))

        workers = [threading.Thread(target=work, args=(c,)) for c in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return max(stop - start for start, stop in spans)


def compare(kernel: str, body: Body, flops: float, nbytes: float, cpu: CpuTarget, threads: int) -> None:
    """Print one line per tiling."""
    count = len(family_of(kernel).tilings(kernel, body, cpu))
    runners = [Runner(kernel, body, i, cpu, threads) for i in range(count)]
    best = [float("inf")] * count
    deadline = time.perf_counter() + 2.0 * count
    rounds = 0
    while rounds < 3 or (time.perf_counter() < deadline and rounds < 60):
        best = [min(b, r.seconds()) for b, r in zip(best, runners, strict=True)]
        rounds += 1
    for runner, seconds in zip(runners, best, strict=True):
        guess = runner.tiling.cost_ns(body, 0, -(-runner.tiling.units // threads), cpu) / 1e3
        print(
            f"{seconds * 1e6:10.1f} us (model {guess:9.1f})  {flops / seconds / 1e9:8.1f} GFLOP/s"
            f"  {nbytes / seconds / 1e9:7.1f} GB/s  compile {runner.compile_ms:5.0f} ms  {runner.tiling}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("matmul", "conv", "attention", "peak"))
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--tier")
    parser.add_argument("--kernel")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--groups", type=int, default=1)
    for flag in ("--dynamic", "--trans-b", "--causal", "--nhwc"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    cpu, dtype = detect_cpu(args.tier), DType.of(args.dtype)
    if args.what == "peak":
        print(f"{cpu.tier}: {peak_gflops(cpu):.1f} GFLOP/s, DRAM read {read_gbytes():.1f} GB/s")
    elif args.what == "matmul":
        _matmul(args, cpu, dtype)
    elif args.what == "conv":
        _conv(args, cpu, dtype)
    else:
        _attention(args, cpu, dtype)


def _matmul(args: argparse.Namespace, cpu: CpuTarget, dtype: DType) -> None:
    *batch, m, k, n = args.sizes
    right = (n, k) if args.trans_b else (k, n)
    b_role = Role.INPUT if args.dynamic else Role.CONSTANT
    out = TensorType(DType.I32 if dtype.itemsize == 1 else dtype, (*batch, m, n))
    b_shape = (*batch, *right) if args.dynamic else right
    inputs = [(TensorType(dtype, (*batch, m, k)), Role.INPUT), (TensorType(dtype, b_shape), b_role)]
    body = plain_body("matmul", {"trans_a": False, "trans_b": args.trans_b}, inputs, out)
    kernel = args.kernel or ("host.matmul.dynamic" if args.dynamic else "host.matmul.packed")
    moved = sum(kind.nbytes for kind, _ in inputs) + out.nbytes
    compare(kernel, body, 2.0 * out.size * k, moved, cpu, args.threads)


def _conv(args: argparse.Namespace, cpu: CpuTarget, dtype: DType) -> None:
    n, c, h, w, oc, k, stride = args.sizes
    pad = k // 2
    oh, ow = ((d + 2 * pad - k) // stride + 1 for d in (h, w))
    weight = TensorType(dtype, (oc, c // args.groups, k, k))
    out = TensorType(dtype, (n, oc, oh, ow))
    inputs = [(TensorType(dtype, (n, c, h, w)), Role.INPUT), (weight, Role.CONSTANT)]
    attrs: dict[str, AttrValue] = {
        "strides": (stride, stride),
        "dilations": (1, 1),
        "pads": (pad,) * 4,
        "groups": args.groups,
    }
    nhwc = args.nhwc or (args.kernel or "").endswith(("nhwc", "winograd2", "winograd4"))
    body = plain_body("conv", attrs, inputs, out, nhwc)
    depthwise, direct = ("depthwise_nhwc", "nhwc") if nhwc else ("depthwise", "igemm")
    kernel = args.kernel or f"host.conv.{depthwise if args.groups == c else direct}"
    moved = sum(kind.nbytes for kind, _ in inputs) + out.nbytes
    compare(kernel, body, 2.0 * out.size * weight.size / oc, moved, cpu, args.threads)


def _attention(args: argparse.Namespace, cpu: CpuTarget, dtype: DType) -> None:
    b, hq, hkv, sq, skv, d = args.sizes
    inputs = [(TensorType(dtype, s), Role.INPUT) for s in ((b, hq, sq, d), (b, hkv, skv, d), (b, hkv, skv, d))]
    out = TensorType(dtype, (b, hq, sq, d))
    attrs: dict[str, AttrValue] = {"scale": 0.0, "causal": args.causal, "softcap": 0.0}
    body = plain_body("attention", attrs, inputs, out)
    moved = sum(kind.nbytes for kind, _ in inputs) + out.nbytes
    compare(args.kernel or "host.attention", body, 4.0 * b * hq * sq * skv * d, moved, cpu, args.threads)


if __name__ == "__main__":
    main()
