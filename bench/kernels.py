"""A/B tool for kernel tuning: one body, every tiling, GFLOP/s and GB/s against the measured peaks of this machine.

    python bench/kernels.py matmul 1024 1024 1024 [--tier avx512] [--dynamic] [--trans-b] [--dtype f32] [--threads 2]
    python bench/kernels.py conv N C H W OC K stride [--groups G] [--nhwc] [--kernel host.conv.winograd4]
    python bench/kernels.py attention B HQ HKV SQ SKV D [--causal]
    python bench/kernels.py rows OPERATOR ROWS COLUMNS   (softmax, log_softmax, layer_norm, rms_norm)
    python bench/kernels.py peak
    python bench/kernels.py regret ["matmul(f32[1,512], const f32[512,1000])" ...] [--precision int8]

`regret` asks what kernel selection costs: for each problem (default: `PROBLEMS`) it measures every kernel that
competes, and prints how much slower the chosen one is than the fastest, beside the estimates that selection went by,
what decided, and at which share of its estimate the second-best would have been taken.

Each figure is the best of several rounds, the candidates taking turns; with --threads N the units are split evenly
over N threads that start together (ctypes releases the interpreter lock).
"""

from __future__ import annotations

import argparse
import math
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from superkernel.codegen.host.builder import KernelBuilder, register_type
from superkernel.codegen.host.constants import aligned_bytes
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.gemm_core import fold, zero
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, channels_last_strides, row_major_strides
from superkernel.ir.body import Body, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.ops.opdef import AttrValue
from superkernel.registry.records import Policy
from superkernel.registry.requirement import body_of, parse_requirement
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.scheduler.families.rowwise import FAMILY
from superkernel.scheduler.tiling import CostedTiling
from superkernel.target.cpu import CpuTarget

_IMAGE = "layout=channels_last"
PROBLEMS = (
    *(f"matmul(f32[{m},{k}], const f32[{k},{n}])" for m, k, n in ((1, 512, 1000), (4, 256, 256), (128, 384, 1536))),
    *(
        f"conv(f32[1,{c},{side},{side}], const f32[{out},{c},3,3]; pads=(1,1,1,1), {_IMAGE})"
        for c, out, side in ((8, 16, 112), (64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7))
    ),
    f"conv(f32[1,64,56,56], const f32[256,64,1,1]; {_IMAGE})",
    f"conv(f32[1,144,28,28], const f32[144,1,3,3]; groups=144, pads=(1,1,1,1), {_IMAGE})",
    "conv(f32[1,64,56,56], const f32[64,64,3,3]; pads=(1,1,1,1))",
    "conv(f32[1,144,28,28], const f32[144,1,3,3]; groups=144, pads=(1,1,1,1))",
    f"max_pool(f32[1,64,112,112]; kernel=(3,3), strides=(2,2), {_IMAGE})",
    f"avg_pool(f32[1,128,28,28]; kernel=(2,2), strides=(2,2), {_IMAGE})",
    f"global_avg_pool(f32[1,512,7,7]; {_IMAGE})",
    "matmul(f32[1,4096], const f32[4096,1024])",
    "matmul(f32[12,128,64], f32[12,64,128])",
)
"""Problems for which several kernels compete, of the sizes that networks have."""


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
    code = LoadedCode([compile_ir(str(module), cpu)])
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

    def __init__(self, kernel: str, body: Body, tiling: CostedTiling[CpuTarget], cpu: CpuTarget, threads: int) -> None:
        self.tiling, self.body = tiling, body
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

    def guess_ns(self, cpu: CpuTarget) -> float:
        """What the family estimates for the whole body on one core."""
        return self.tiling.cost_ns(self.body, 0, self.tiling.units, cpu)

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
    runners = [Runner(kernel, body, tiling, cpu, threads) for tiling in family_of(kernel).tilings(kernel, body, cpu)]
    for runner, seconds in zip(runners, best_of(runners), strict=True):
        guess = runner.tiling.cost_ns(body, 0, -(-runner.tiling.units // threads), cpu) / 1e3
        print(
            f"{seconds * 1e6:10.1f} us (model {guess:9.1f})  {flops / seconds / 1e9:8.1f} GFLOP/s"
            f"  {nbytes / seconds / 1e9:7.1f} GB/s  compile {runner.compile_ms:5.0f} ms  {runner.tiling}"
        )


def best_of(runners: list[Runner], rounds_max: int = 60) -> list[float]:
    """The shortest run of each in seconds, taking turns for at most two seconds each."""
    best = [float("inf")] * len(runners)
    deadline = time.perf_counter() + 2.0 * len(runners)
    rounds = 0
    while rounds < 3 or (time.perf_counter() < deadline and rounds < rounds_max):
        best = [min(b, r.seconds()) for b, r in zip(best, runners, strict=True)]
        rounds += 1
    return best


def regret(text: str, cpu: CpuTarget, policy: Policy) -> float:
    """How many times slower the chosen kernel is than the fastest that competes; prints each with its estimate."""
    problem = parse_requirement(text, cpu, policy)
    selection, body = HOST_KERNELS.registry.select(problem), body_of(problem)
    assert body is not None
    level = [c for c in selection.explanation.eligible if c.row.role is selection.row.role]
    kernels = list(dict.fromkeys(c.row.kernel for c in level))
    runners = []
    for kernel in kernels:
        tilings = family_of(kernel).tilings(kernel, body, cpu)
        best = min(tilings, key=lambda t: t.cost_ns(body, 0, t.units, cpu))
        runners.append(Runner(kernel, body, best, cpu, 1))
    measured = dict(zip(kernels, best_of(runners, 400), strict=True))
    ratio = measured[selection.kernel] / min(measured.values())
    print(f"{ratio:6.3f}  {text}")
    for runner, (kernel, seconds) in zip(runners, measured.items(), strict=True):
        guess = runner.guess_ns(cpu) / 1e3
        print(
            f"        {seconds * 1e6:10.1f} us (estimate {guess:9.1f})  {kernel}{' *' * (kernel == selection.kernel)}"
        )
    second = selection.explanation.runner_up
    if second is not None and second.row.role is selection.row.role:
        decided = selection.explanation.decided_by
        guesses = {kernel: runner.guess_ns(cpu) for kernel, runner in zip(kernels, runners, strict=True)}
        share = guesses[selection.kernel] / guesses[second.row.kernel]
        print(f"        decided by {decided}; {second.row.kernel} would be taken below {share:.2f} of its estimate")
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("matmul", "conv", "attention", "rows", "peak", "regret"))
    parser.add_argument("sizes", nargs="*", help="numbers, or problems")
    parser.add_argument("--precision", default="f32")
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
    elif args.what == "regret":
        found = [regret(text, cpu, Policy(precision=args.precision)) for text in args.sizes or PROBLEMS]
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"regret of {len(found)} choices on {cpu.tier}: geometric mean {mean:.3f}, worst {max(found):.3f}")
    else:
        if args.what == "rows":
            args.kernel = args.sizes.pop(0)
        args.sizes = [int(size) for size in args.sizes]
        {"rows": _rows, "matmul": _matmul, "conv": _conv, "attention": _attention}[args.what](args, cpu, dtype)


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


def _rows(args: argparse.Namespace, cpu: CpuTarget, dtype: DType) -> None:
    """Medians of many turns: these kernels are short."""
    op, x = args.kernel, TensorType(dtype, tuple(args.sizes))
    weights = {"layer_norm": 2, "rms_norm": 1}.get(op, 0)
    inputs = [(x, Role.INPUT), *[(TensorType(dtype, x.shape[-1:]), Role.INPUT)] * weights]
    body = plain_body(op, {"axis": -1, "epsilon": 1e-5} if weights else {"axis": -1}, inputs, x)
    kernel = "host.norm" if weights else "host.softmax"
    runners = [Runner(kernel, body, walk, cpu, args.threads) for walk in FAMILY.walks(kernel, body, cpu)]
    turns = [[runner.seconds() for runner in runners] for _ in range(401)]
    for runner, seconds in zip(runners, zip(*turns, strict=True), strict=True):
        guess = runner.tiling.cost_ns(body, 0, -(-runner.tiling.units // args.threads), cpu) / 1e3
        print(f"{statistics.median(seconds) * 1e6:10.1f} us (model {guess:9.1f})  {runner.tiling}")


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
