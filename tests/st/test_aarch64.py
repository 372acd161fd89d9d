"""The host's generated code on another processor: AArch64, executed by an emulator.

Model: kernels and a whole fused graph are compiled for AArch64 with its 16-byte vectors, linked with a generated C
program into one static executable, and run under qemu-aarch64. Operands go in through stdin and come out through
stdout; memory around them is guarded. Results are compared with the reference.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anchor_bodies import anchor_case
from conv_int8_model import expected_conv
from grouped_on import chooser_on, grouped_on
from kernel_check import compare, dense_strides, operand, undefined_symbols
from models import decode_step, transformer
from narrow_model import expected_product
from numpy.typing import NDArray
from op_cases import op_body
from operator_cases import cases

from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host import image as host_image
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.entry import emit_entries
from superkernel.codegen.host.entry_spec import BasePointer, RunTask, WaitFor
from superkernel.codegen.host.image import HostImage, ImageBuilder
from superkernel.codegen.host.lower import compile_ir
from superkernel.core.dtypes import DType
from superkernel.core.options import Options
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.ir.graph import Graph
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.grouped import GroupTable
from superkernel.ops.opdef import Family
from superkernel.ops.table import op_table
from superkernel.reference import evaluate
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.scheduler.families.matmul import MatmulFamily
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.place import place
from superkernel.scheduler.tiling import pack_bytes
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import verify
from superkernel.target.cpu import CpuTarget, cpu_target
from superkernel.transforms import simplify

Array = NDArray[Any]
Case = tuple[str, Body, list[Array | None], dict[int, Array]]

GCC, GXX, QEMU = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64"
CSRC = Path(__file__).parents[2] / "csrc"
ABI_HEADERS = CSRC / "include"
TIMEOUT_S = 120
TOLERANCE = {DType.F32: 3e-5, DType.F64: 1e-6, DType.F16: 2e-3, DType.BF16: 1e-2}

COMMON = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { GUARD = 256 };
/* Bytes between guards; `fill` of them come from stdin. */
static uint8_t *take(size_t size, int fill) {
  uint8_t *raw = aligned_alloc(64, (size + 2 * GUARD + 63) / 64 * 64);
  if (raw == NULL) exit(3);
  memset(raw, 0xA5, size + 2 * GUARD);
  if (fill && fread(raw + GUARD, 1, size, stdin) != size) exit(4);
  return raw + GUARD;
}
static void give(const uint8_t *at, size_t size, int tell) {
  for (int i = 0; i < GUARD; ++i)
    if (at[i - GUARD] != 0xA5 || at[size + i] != 0xA5) exit(5);
  if (tell) fwrite(at, 1, size, stdout);
}
"""


@cache
def missing() -> str:
    """Why the tests cannot run here, if they cannot."""
    for tool in (GCC, QEMU):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    probe = [GCC, "-static", "-xc", "-", "-o", "/dev/null"]
    if subprocess.run(probe, input=b"#include <stdio.h>\nint main(void) { return 0; }", capture_output=True).returncode:
        return "the C library for AArch64 is not installed"
    return ""


@pytest.fixture(autouse=True)
def _needs_tools() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def cpu() -> CpuTarget:
    return cpu_target("aarch64-unknown-linux-gnu", "plain", ())


def execute(folder: Path, source: str, objects: Sequence[bytes], data: bytes) -> bytes:
    """Link, run, and return what came out."""
    (folder / "main.c").write_text(source)
    names = []
    for k, code in enumerate(objects):
        names.append(f"part{k}.o")
        (folder / names[-1]).write_bytes(code)
    command = [GCC, "-O1", "-static", "-pthread", f"-I{ABI_HEADERS}", "main.c", *names, "-o", "program"]
    linked = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert linked.returncode == 0, linked.stderr
    done = subprocess.run(
        [QEMU, "program"], cwd=folder, input=data, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr.decode()}"
    return done.stdout


# Kernels --------------------------------------------------------------------------------------------------------------


@dataclass
class Kernel:
    """A compiled case: its code, and the bytes of its operands."""

    where: str
    body: Body
    code: bytes
    packed: list[NDArray[np.uint8]]
    scratch: int
    units: int
    expected: Mapping[int, Array]

    def call(self, number: int) -> str:
        """C: read the operands, run the first units, then the others, write the results."""
        lines = [f"static void run{number}(void) {{"]
        for k, (data, o) in enumerate(zip(self.packed, self.body.operands, strict=True)):
            lines.append(f"  uint8_t *o{k} = take({data.nbytes}, {int(o.role is not Role.OUTPUT)});")
        lines.append(f"  uint8_t *scratch = take({self.scratch}, 0);")
        arguments = "".join(f"o{k}, " for k in range(len(self.packed)))
        middle = self.units // 2
        lines += [f"  k{number}({arguments}scratch, {a}, {b});" for a, b in ((0, middle), (middle, self.units))]
        for k, (data, o) in enumerate(zip(self.packed, self.body.operands, strict=True)):
            lines.append(f"  give(o{k}, {data.nbytes}, {int(o.role in (Role.OUTPUT, Role.INOUT))});")
        lines.append(f"  give(scratch, {self.scratch}, 0);\n}}")
        pointers = "void *, " * (len(self.packed) + 1)
        return f"extern void k{number}({pointers}int64_t, int64_t);\n" + "\n".join(lines) + "\n"


def compiled(case: Case, number: int, cpu: CpuTarget) -> Kernel:
    kernel, body, arrays, expected = case
    tiling = family_of(kernel).tilings(kernel, body, cpu)[0]
    packs = tiling.packs(body)
    given = [
        np.zeros(o.type.shape, o.type.dtype.numpy) if a is None else a
        for a, o in zip(arrays, body.operands, strict=True)
    ]
    packed = [pack_bytes(packs.get(k), a) for k, a in enumerate(given)]
    code = compile_ir(emit_ir(kernel, body, tiling, cpu, f"k{number}"), cpu)
    where = f"{kernel} {body.op}"
    assert not undefined_symbols(code), where
    return Kernel(where, body, code, packed, max(64, tiling.scratch_bytes), tiling.units, expected)


def check(cases: Sequence[Case], cpu: CpuTarget, folder: Path) -> None:
    """All cases in one executable."""
    kernels = [compiled(case, number, cpu) for number, case in enumerate(cases)]
    calls = "\n".join(f"  run{n}();" for n in range(len(kernels)))
    source = COMMON + "\n".join(k.call(n) for n, k in enumerate(kernels))
    source += f"int main(void) {{\n{calls}\n  return 0;\n}}\n"
    data = b"".join(
        p.tobytes()
        for k in kernels
        for p, o in zip(k.packed, k.body.operands, strict=True)
        if o.role is not Role.OUTPUT
    )
    found = np.frombuffer(execute(folder, source, [k.code for k in kernels], data), np.uint8)
    at = 0
    for kernel in kernels:
        for k, (packed, o) in enumerate(zip(kernel.packed, kernel.body.operands, strict=True)):
            if o.role not in (Role.OUTPUT, Role.INOUT):
                continue
            got = found[at : at + packed.nbytes].view(o.type.dtype.numpy).reshape(o.type.shape)
            at += packed.nbytes
            want = np.asarray(kernel.expected[k]).reshape(o.type.shape)
            compare(got, want, TOLERANCE.get(o.type.dtype, 0.0), f"{kernel.where}, operand {k}")
    assert at == len(found)


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    values = np.random.default_rng((seed, len(shape))).standard_normal(shape)
    return (values if np.dtype(dtype).kind not in "iu" else values * 9).astype(dtype)


def places(*shape: int, extent: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).integers(-extent, extent, shape)


def case(kernel: str, op: str, inputs: Sequence[Array | None], constants: Sequence[int] = (), /, **attrs: Any) -> Case:
    body, arrays, expected = op_body(op, inputs, attrs, roles=dict.fromkeys(constants, Role.CONSTANT))
    return kernel, body, arrays, expected


def products() -> list[Case]:
    half = numbers(33, 40, dtype=np.float16)
    return [
        case("host.matmul.packed", "matmul", [numbers(19, 37), numbers(37, 45)], [1]),
        case("host.matmul.packed", "matmul", [half, numbers(40, 24, dtype=np.float16)], [1]),
        case("host.matmul.gemv", "matmul", [numbers(2, 130), numbers(130, 70)], [1]),
        case("host.matmul.dynamic", "matmul", [numbers(2, 9, 33), numbers(2, 33, 21)]),
        case("host.matmul.generic", "matmul", [numbers(5, 7, dtype=np.int32), numbers(7, 6, dtype=np.int32)]),
        case("host.conv.igemm", "conv", [numbers(1, 5, 11, 12), numbers(7, 5, 3, 3)], [1], pads=(1, 1, 1, 1)),
        case("host.conv.depthwise", "conv", [numbers(1, 6, 9, 13), numbers(6, 1, 3, 3)], [1], groups=6),
        case("host.conv.generic", "conv", [numbers(1, 3, 5, 6, 7), numbers(4, 3, 2, 2, 2)]),
        case("host.conv.transpose", "conv_transpose", [numbers(1, 3, 5, 6), numbers(3, 4, 2, 2)], strides=(2, 2)),
    ]


def images() -> list[Case]:
    """Kernels of images that lie channels last."""
    f32, found = DType.F32, []
    same = {"pads": (1, 1, 1, 1)}
    for kernel, op, attrs, slots in (
        ("host.conv.nhwc", "conv", {**same, "strides": (2, 1)}, [((1, 6, 10, 13), f32), ((12, 6, 3, 3), f32)]),
        ("host.conv.winograd2", "conv", same, [((2, 7, 9, 11), f32), ((10, 7, 3, 3), f32)]),
        ("host.conv.winograd4", "conv", same, [((1, 7, 13, 12), f32), ((10, 7, 3, 3), f32)]),
        ("host.conv.depthwise_nhwc", "conv", {**same, "groups": 19}, [((1, 19, 9, 8), f32), ((19, 1, 3, 3), f32)]),
        ("host.pool_nhwc", "max_pool", {"kernel": (3, 3), "strides": (2, 2)}, [((2, 21, 9, 10), f32)]),
        ("host.pool_nhwc", "global_avg_pool", {}, [((2, 5, 7, 7), f32)]),
    ):
        made = anchor_case(op, attrs, slots, constants=range(1, len(slots)), layouts={0: (0, 2, 3, 1)})
        found.append((kernel, made.body, made.arrays, made.expected))
    return found


def reduced_products() -> list[Case]:
    """Products of reduced precision, which this CPU multiplies as f32 and 16-bit integers."""
    found = []
    families = {kernel: found.family for kernel, found in HOST_KERNELS.kernels.items()}
    reduced = {k: f.numbers[-1] for k, f in families.items() if isinstance(f, MatmulFamily) and f.numbers}
    for kernel in ("host.conv.bf16", "host.conv.int8"):
        image, w = numbers(2, 37, 1, 5), numbers(12, 37, 1, 1)
        name, body, arrays, expected = case(kernel, "conv", [image, w], [1])
        last = np.ascontiguousarray(np.moveaxis(image, 1, -1))
        pixels, weights = last.reshape(-1, 37).astype(float), w.reshape(12, 37).T.astype(float)
        want = np.moveaxis(expected_product(pixels, weights, reduced.pop(kernel)).reshape(2, 1, 5, 12), -1, 1)
        view = View(0, image.shape, (185, 1, 185, 37))
        turned = replace(body, anchor_inputs=(view, *body.anchor_inputs[1:]))
        found.append((name, turned, [last.reshape(image.shape), *arrays[1:]], dict.fromkeys(expected, want)))
    for kernel in ("host.conv.nhwc_bf16", "host.conv.winograd2_bf16"):  # of integers: nothing is rounded
        image, w = (np.rint(4 * numbers(*shape)) for shape in ((1, 7, 9, 11), (10, 7, 3, 3)))
        slots = [image.astype(np.float32), 4 * w.astype(np.float32)]
        made = anchor_case("conv", {"pads": (1, 1, 1, 1)}, slots, constants=[1], layouts={0: (0, 2, 3, 1)})
        found.append((kernel, made.body, made.arrays, made.expected))
    image, w = numbers(1, 7, 9, 11), numbers(10, 7, 3, 3)
    made = anchor_case("conv", {"pads": (1, 1, 1, 1)}, [image, w], constants=[1], layouts={0: (0, 2, 3, 1)})
    want = expected_conv(image, w, {"pads": (1, 1, 1, 1)})
    found.append(("host.conv.nhwc_int8", made.body, made.arrays, dict.fromkeys(made.expected, want)))
    factors = [np.rint(4 * numbers(1, 2, 19, 8, seed=i)) for i in range(3)]
    sharp = [64 * factors[0], *factors[1:]]  # probabilities are alike or nothing
    found.append(case("host.attention.bf16", "attention", sharp, causal=True, scale=1.0))
    for kernel, form in reduced.items():
        x, w = numbers(3 if "gemv" in kernel else 19, 37), numbers(37, 45)
        name, body, arrays, expected = case(kernel, "matmul", [x, w], [1])
        found.append((name, body, arrays, dict.fromkeys(expected, expected_product(x, w, form))))
    return found


def rows() -> list[Case]:
    x, scale = numbers(9, 77), numbers(77)
    image = numbers(2, 6, 9, 10)
    return [
        case("host.softmax", "softmax", [x], axis=-1),
        case("host.softmax", "log_softmax", [x], axis=0),
        case("host.norm", "layer_norm", [x, scale, scale], axis=-1),
        case("host.norm", "rms_norm", [x, scale], axis=-1),
        case("host.norm", "group_norm", [image, numbers(6), numbers(6)], groups=3),
        case("host.lrn", "lrn", [image], size=3),
        *(case("host.reduce", f"reduce_{n}", [x], axes=(1,)) for n in ("sum", "mean", "max", "l2", "log_sum_exp")),
        case("host.reduce", "reduce_sum", [x], axes=(0,)),
        case("host.argreduce", "argmax", [x], axis=1),
        case("host.cumsum", "cumsum", [x], axis=1),
        case("host.pool", "max_pool", [image], kernel=(3, 3), strides=(2, 2)),
        case("host.pool", "avg_pool", [image], kernel=(2, 2), pads=(1, 1, 0, 0)),
        case("host.softmax", "softmax", [numbers(5, 40, dtype=np.float16)], axis=-1),
        case("host.softmax", "softmax", [numbers(5, 33, dtype=np.float64)], axis=-1),
    ]


def moves() -> list[Case]:
    x = numbers(9, 33)
    return [
        case("host.concat", "concat", [x, numbers(9, 4)], axis=1),
        case("host.pad", "pad", [x], pads=(1, 2, 0, 3)),
        case("host.tile", "tile", [x], repeats=(2, 3)),
        case("host.gather", "gather", [x, places(4, 5, extent=9)], axis=0),
        case("host.index", "gather_elements", [x, places(4, 33, extent=9)], axis=0),
        case("host.index", "topk", [x], k=5),
        case("host.index", "scatter_nd", [x, places(4, 1, extent=9), numbers(4, 33)]),
        case("host.index", "resize", [numbers(1, 2, 5, 7)], sizes=(1, 2, 9, 11), mode="linear"),
    ]


def sequences() -> list[Case]:
    q, k, v = numbers(1, 4, 9, 16), numbers(1, 2, 21, 16, seed=1), numbers(1, 2, 21, 16, seed=2)
    angles = np.arange(32 * 4).reshape(32, 4) / 9
    turning = [numbers(1, 2, 6, 8), np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    counts = np.array([3, 0, 5, 1])
    rows = [numbers(11, 13), numbers(4, 13, 19, seed=1), counts, GroupTable(4, 11, 4, 1, 1).made(counts)]
    return [
        case("host.grouped_matmul", "grouped_matmul", rows, [1], cut=(4, 1, 1)),
        case("host.tiling", "tile_groups", [counts], rows=11, tile=2, columns=3, slots=2),
        case("host.tiling", "tile_lengths", [np.array([3, 0, 7], np.int32)], keys=7, slots=4),
        case("host.attention", "attention", [q, k, v]),
        case("host.attention", "attention", [x.astype(np.float16) for x in (q, k, v)]),
        case("host.rope", "rope", [*turning, np.array([3])]),
    ]


FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "erf", "tanh", "sigmoid", "gelu", "silu", "mish", "softplus", "sqrt", "rsqrt"),
    *("sin", "cos", "tan", "sinh", "cosh", "asinh", "atan", "floor", "ceil", "round", "trunc", "sign", "hard_swish"),
)
INTEGER_WORK = ("add", "sub", "mul", "div", "mod", "minimum", "maximum", "bitwise_xor", "shift_left", "shift_right")


def pointwise(
    names: Sequence[str], inputs: Sequence[Array], casts: Sequence[DType] = (), attrs: Mapping[str, Any] | None = None
) -> Case:
    """One program with an instruction and a result per name, and per type that the first input is cast to."""
    shape, count = inputs[0].shape, len(inputs)
    kinds = [DType.of(x.dtype) for x in inputs]
    steps, operands = [], [operand(Role.INPUT, k, x.shape) for k, x in zip(kinds, inputs, strict=True)]
    expected: dict[int, Array] = {}
    for name, to in [*((n, None) for n in names), *(("cast", t) for t in casts)]:
        row = op_table()[name]
        full = canonical_attrs(row, (attrs or {}) if to is None else {"dtype": to})
        used = inputs[: len(row.args)]
        (kind,) = row.infer([TensorType(DType.of(x.dtype), x.shape) for x in used], full)
        steps.append(Instruction(name, tuple(range(len(used))), kind.dtype, tuple(full.items())))
        with np.errstate(all="ignore"):
            (want,) = row.reference(list(used), full, (kind,))
            expected[len(operands)] = np.asarray(want).astype(kind.dtype.numpy)
        operands.append(operand(Role.OUTPUT, kind.dtype, shape))
    sources = tuple(ProgramInput(i, k, dense_strides(shape, shape)) for i, k in enumerate(kinds))
    stores = tuple(ProgramOutput(count + n, count + n, row_major_strides(shape)) for n in range(len(steps)))
    body = Body(None, (), tuple(operands), (), (), (), PointwiseProgram(shape, sources, tuple(steps), stores))
    return "host.pointwise", body, [*inputs, *(None for _ in steps)], expected


def programs() -> list[Case]:
    turned = PointwiseProgram((45, 37), (ProgramInput(0, DType.F32, (1, 45)),), (), (ProgramOutput(0, 1, (37, 1)),))
    kinds = (operand(Role.INPUT, DType.F32, (37, 45)), operand(Role.OUTPUT, DType.F32, (45, 37)))
    x = numbers(37, 45)
    integers = [numbers(3, 29, dtype=np.int64), places(3, 29, extent=9)]
    types = (DType.F16, DType.BF16, DType.F64, DType.I64, DType.I8, DType.U8, DType.BOOL)
    return [
        pointwise(FUNCTIONS, [np.abs(numbers(5, 83)) + np.float32(0.1)], types),
        pointwise(FUNCTIONS, [(np.abs(numbers(71)) + 0.1).astype(np.float16)], (DType.F32, DType.I32)),
        pointwise(("exp", "erf", "tanh", "log"), [np.abs(numbers(70, dtype=np.float64)) + 0.1], (DType.F16,)),
        pointwise(("add", "mul", "maximum"), [numbers(50).astype(DType.BF16.numpy)] * 2, (DType.F32,)),
        pointwise(INTEGER_WORK, integers, (DType.F16, DType.F32, DType.I16)),
        ("host.transpose", Body(None, (), kinds, (), (), (), turned), [x, None], {1: x.T}),
    ]


@pytest.mark.parametrize("make", [products, images, reduced_products, rows, moves, sequences, programs])
def test_kernels(make: Callable[[], list[Case]], cpu: CpuTarget, tmp_path: Path) -> None:
    check(make(), cpu, tmp_path)


def one_of_each(cpu: CpuTarget) -> list[Case]:
    """Each operator of the table that has a kernel, in f32 where it takes that."""
    found: list[Case] = []
    chooser = chooser_on(cpu, HOST_KERNELS)
    for op in sorted(op_table()):
        some = next((c for c in cases(op) if all(x is None or x.size for x in c.inputs)), None)
        if op_table()[op].family in (Family.VIEW, Family.RESHAPE, Family.UPDATE) or some is None:
            continue
        if op_table()[op].family is Family.POINTWISE:
            given = [x for x in some.inputs if x is not None]
            if len(given) == len(some.inputs) and len({x.shape for x in given}) == 1:
                found.append(pointwise([op], given, attrs=some.attrs))
            continue
        body, arrays, expected = op_body(op, some.inputs, some.attrs)
        kernel = chooser.choose(body)
        if kernel != HOST_REFERENCE:
            found.append((kernel, body, arrays, expected))
    return found


def test_operators(cpu: CpuTarget, tmp_path: Path) -> None:
    check(one_of_each(cpu), cpu, tmp_path)


def test_every_family_has_a_case() -> None:
    tested = {c[0] for make in (products, images, reduced_products, rows, moves, sequences, programs) for c in make()}
    assert set(HOST_KERNELS.kernels) - tested == {"host.kv_update", "host.reference"}, "which the decoder below has"


# Whole graphs ---------------------------------------------------------------------------------------------------------

GRAPH_MAIN = r"""
#include <pthread.h>
#include "superkernel_abi.h"
extern int32_t sk_entry(SkContext *, int32_t);
static SkContext context;
static int32_t wait_slow(SkContext *c, int32_t core, int32_t producer, uint64_t threshold, int32_t wait) {
  (void)c; (void)core; (void)producer; (void)threshold; (void)wait;
  sched_yield();
  return 0;
}
static void *work(void *core) {
  if (sk_entry(&context, (int32_t)(intptr_t)core) != 0) exit(6);
  return NULL;
}
int main(void) {
  static const size_t sizes[IO_COUNT] = {IO_SIZES};
  uint8_t *io[IO_COUNT];
  for (int i = 0; i < IO_COUNT; ++i) io[i] = take(sizes[i], i < INPUTS || i >= STATES);
  context.constants = take(CONSTANT_BYTES, 1);
  context.arena = take(ARENA_BYTES, 0);
  context.scratch_stride = (SCRATCH_BYTES + 63) / 64 * 64;
  context.scratch = take(context.scratch_stride * CORES, 0);
  context.flags = (uint64_t *)take(8 * SK_FLAG_STRIDE * CORES, 0);
  memset(context.flags, 0, 8 * SK_FLAG_STRIDE * CORES);
  context.io = io;
  context.spin_limit = 64;
  context.wait_slow = wait_slow;
  for (context.epoch = 0; context.epoch < LAUNCHES; ++context.epoch) {
    pthread_t threads[CORES];
    for (intptr_t c = 1; c < CORES; ++c)
      if (pthread_create(&threads[c], NULL, work, (void *)c) != 0) exit(7);
    work((void *)0);
    for (int c = 1; c < CORES; ++c) pthread_join(threads[c], NULL);
  }
  for (int i = 0; i < IO_COUNT; ++i) give(io[i], sizes[i], i >= INPUTS);
  return 0;
}
"""
LAUNCHES = 2


class _Objects:
    """Stands in for loading: foreign code cannot be loaded here."""

    def __init__(self, objects: Iterable[bytes]) -> None:
        self.objects = list(objects)


def image_of(graph: Graph, cores: int, cpu: CpuTarget, monkeypatch: pytest.MonkeyPatch) -> HostImage:
    """The image of a graph for the processor, not loaded."""
    monkeypatch.setattr(host_image, "LoadedCode", _Objects)
    options = Options(fallback="forbid", cache=False)
    grouping = grouped_on(graph, cpu, HOST_KERNELS, fallback="forbid", cache=False)
    schedule = place(grouping, graph, cpu, cores, options)
    plan = plan_sync(schedule, sync=options.sync, handover_ns=cpu.handover_ns)
    units = {s.index: t.units for s, t in zip(schedule.subops, schedule.tilings, strict=True)}
    verify(plan, units)
    inputs, outputs, states = len(graph.inputs), len(graph.outputs), len(graph.states)
    builder = ImageBuilder(schedule, plan, cpu, ObjectCache(None), inputs=inputs, outputs=outputs, states=states)
    return builder.build(grouping.constants)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", ["transformer", "decode_step"])
def test_fused_graphs(name: str, cores: int, cpu: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = simplify(transformer(tokens=8, width=32, heads=2) if name == "transformer" else decode_step())
    image = image_of(graph, cores, cpu, monkeypatch)
    rng = np.random.default_rng(0)
    given = {
        n: rng.integers(0, 9, t.shape) if t.dtype is DType.I64 else rng.standard_normal(t.shape).astype(t.dtype.numpy)
        for n, t in graph.inputs.items()
    }
    outputs = [graph.types[v] for v in graph.outputs]
    states = {n: np.asarray(graph.states[n]) for n in graph.states}
    sizes = [t.nbytes for t in (*graph.inputs.values(), *outputs)] + [s.nbytes for s in states.values()]
    numbers_of = {
        "IO_COUNT": len(sizes), "IO_SIZES": ", ".join(map(str, sizes)), "INPUTS": len(given),
        "STATES": len(given) + len(outputs), "CONSTANT_BYTES": image.constants.nbytes,
        "ARENA_BYTES": image.arena_bytes, "SCRATCH_BYTES": image.scratch_bytes, "CORES": cores, "LAUNCHES": LAUNCHES,
    }  # fmt: skip
    defines = "".join(f"#define {key} {value}\n" for key, value in numbers_of.items())
    data = b"".join(np.ascontiguousarray(a).tobytes() for a in (*given.values(), *states.values(), image.constants))
    found = execute(tmp_path, defines + COMMON + GRAPH_MAIN, list(image.objects.values()), data)
    for _ in range(LAUNCHES):
        want = evaluate(graph, given, states)
        states = dict(want.states)
    wanted = [want[n] for n in graph.outputs] + list(want.states.values())
    at = 0
    for k, expected in enumerate(wanted):
        part = found[at : at + expected.nbytes]
        at += expected.nbytes
        compare(np.frombuffer(part, expected.dtype).reshape(expected.shape), expected, 1e-4, f"{name}, result {k}")
    assert at == len(found)


# The recorder ---------------------------------------------------------------------------------------------------------

RECORDER_FLAGS = ("-std=c++20", "-O1", "-static", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}", f"-I{ABI_HEADERS}")
RECORDER_SOURCES = ("tests/record_program.cpp", "runtime/recorder.cpp", "runtime/clock.cpp")
# Ahead of the kernels and behind them: their pages are written, and must hold nothing else that runs.
APART = '__asm__(".text\\n .p2align 16\\n .skip 65536\\n");\n'


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Objects of the recorder and its program."""
    if missing() or shutil.which(GXX) is None:
        pytest.skip(missing() or f"{GXX} is not installed")
    folder = tmp_path_factory.mktemp("recorder")
    for source in RECORDER_SOURCES:
        command = [GXX, *RECORDER_FLAGS, "-c", str(CSRC / source)]
        subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT_S)
    return sorted(map(str, folder.glob("*.o")))


@dataclass
class RecordedProgram:
    """A graph's objects, to be recorded with entries of one's choice."""

    image: HostImage
    cpu: CpuTarget
    recorder: list[str]
    folder: Path

    def __post_init__(self) -> None:
        spec = self.image.spec
        found = {t.symbol: len(t.operands) for t in spec.tasks if t.symbol is not None}
        self.kernels = sorted(found)
        io = [0] * self.image.io_count
        for at in (o for task in spec.tasks for o in task.operands if o.space is BasePointer.IO):
            io[at.slot] = 1 << 20  # as good as any
        self.stride = -(-self.image.scratch_bytes // 64) * 64
        self.regions = [self.image.arena_bytes, self.image.constants.nbytes, self.stride * self.image.cores, *io]
        rows = "".join(f"{{{name}, {found[name]}}}, " for name in self.kernels)
        declared = "".join(f"void {name}();\n" for name in self.kernels)
        table = f'extern "C" {{\n{declared}extern const struct {{ void (*code)(); unsigned long operands; }}'
        table += f" kernel_table[] = {{{rows}{{nullptr, 0}}}};\n}}\n"
        (self.folder / "table.cpp").write_text(table)
        (self.folder / "apart.cpp").write_text(APART)

    def run(self, change: Callable[[str], str] = lambda text: text) -> subprocess.CompletedProcess[str]:
        """The recording, of entries whose text may be changed."""
        names = []
        kernels = list(self.image.objects.values())[:-1]
        entries = compile_ir(change(emit_entries(self.image.spec, self.cpu)), self.cpu)
        for k, code in enumerate([*kernels, entries]):
            names.append(f"part{k}.o")
            (self.folder / names[-1]).write_bytes(code)
        parts = ["apart.cpp", *names[:-1], "apart.cpp", names[-1], "table.cpp"]
        link = [GXX, *RECORDER_FLAGS, *self.recorder, *parts, "-o", "program"]
        subprocess.run(link, cwd=self.folder, check=True, timeout=TIMEOUT_S)
        spec = self.image.spec
        words = [len(spec.programs), spec.subops, self.stride, spec.events_words, *self.regions]
        command = [QEMU, "program", *map(str, words)]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def told(self) -> list[list[int]]:
        """What should be recorded, by what the entries were made from; a worker's number ahead of each event."""
        spec, events = self.image.spec, []
        spaces = {BasePointer.ARENA: 0, BasePointer.CONSTANTS: 1, BasePointer.IO: 3}
        for core, steps in enumerate(spec.programs):
            for step in steps:
                if isinstance(step, WaitFor):
                    events.append([core, 2, step.producer, step.count, step.wait])
                elif not isinstance(step, RunTask):
                    events.append([core, 3, step.count])
                else:
                    task = spec.tasks[step.task]
                    assert task.symbol is not None
                    places = [word for o in task.operands for word in (spaces[o.space] + o.slot, o.offset)]
                    call = [core, 0, self.kernels.index(task.symbol), task.begin, task.end]
                    events.append([*call, *places, 2, core * self.stride])
        return events


@pytest.fixture
def program(cpu: CpuTarget, recorder: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedProgram:
    image = image_of(simplify(transformer(tokens=8, width=32, heads=2)), 3, cpu, monkeypatch)
    return RecordedProgram(image, cpu, recorder, tmp_path)


def test_the_recorder_sees_what_was_emitted(program: RecordedProgram) -> None:
    done = program.run()
    assert done.returncode == 0, done.stdout + done.stderr
    told = program.told()
    assert sum(event[1] == 2 for event in told) >= 3, "nobody waits"
    assert [list(map(int, line.split())) for line in done.stdout.splitlines()] == told


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "%reached = icmp uge i64 %seen, %threshold",
            "%soon = add i64 %seen, 1\n  %reached = icmp uge i64 %soon, %threshold",
            "passes before",
        ),
        ("%tired = icmp uge i32 %spins.next, %limit", "%tired = icmp ugt i32 %limit, -1", "goes on for ever"),
    ],
    ids=["early", "endless"],
)
def test_the_recorder_refuses(program: RecordedProgram, old: str, new: str, says: str) -> None:
    done = program.run(lambda text: text.replace(old, new))
    assert done.returncode == 1, done.stdout + done.stderr
    assert says in done.stdout
