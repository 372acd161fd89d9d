"""What plans and code are looked at of: targets that depend on no machine, operators by the registry's text, models.
`plans.py` and `emitted.py` write down what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import models_aicore
from plan_graphs import formulas, scopes

from superkernel.api import resolved
from superkernel.backends import backend_of
from superkernel.compilation.compiled import Job
from superkernel.compilation.planning import plan_graph
from superkernel.compilation.stages import Stages
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.options import Options
from superkernel.ir.body import Body
from superkernel.ir.graph import Graph
from superkernel.ops.table import op_table
from superkernel.registry.records import KernelRole, Policy
from superkernel.registry.requirement import body_of, parse_requirement
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.target.aicore import load_target
from superkernel.target.base import Target
from superkernel.target.cpu import AVX2, AVX512, EMULATED_TILES, cpu_target
from superkernel.target.machine import load_profile

_NAMES = re.compile(r"\b\w+=")
TRIPLE = "x86_64-unknown-linux-gnu"
FEATURES = (*AVX2, *AVX512, "avx512bf16", "avx512vnni")


def _host(machine: str, tier: str, *further: str, triple: str = TRIPLE, cores: int = 1) -> Target:
    profile = load_profile(Path(__file__).with_name("machines") / f"{machine}.json")
    return replace(cpu_target(triple, tier, (*FEATURES, *further), profile).reading(cores), cores=cores)


ACCELERATORS = ("a3", "mini", "scarce", "single")
SCARCE: Mapping[str, int] = {
    "memory.l1_bytes": 24 << 10,
    "memory.l0a_bytes": 4 << 10,
    "memory.l0b_bytes": 6 << 10,
    "memory.l0c_bytes": 8 << 10,
    "memory.ub_bytes": 6 << 10,
}
"""An accelerator on which hardly anything fits in one piece."""
SINGLE: Mapping[str, int] = {
    "device.groups": 1,
    "device.vector_cores_per_group": 1,
    "memory.block_bytes": 64,
    "memory.fractal_bytes": 1024,
}
"""An accelerator of one core of each type, with blocks that are twice as long as elsewhere."""
TARGETS: Mapping[str, Callable[[], Target]] = {
    "avx512": lambda: _host("xeon-16-pair", "avx512"),
    "tiles": lambda: _host("two-sockets", "avx512", EMULATED_TILES, cores=24),
    "plain": lambda: _host("sixty-four", "plain", cores=64),
    "avx2": lambda: _host("two-cores", "avx2"),
    "neon": lambda: _host("sixty-four", "plain", "dotprod", triple="aarch64-unknown-linux-gnu"),
    "cortex-m55": lambda: resolved("cortex-m55"),
    "a3": lambda: resolved("a3"),
    "mini": lambda: resolved("mini"),
    "scarce": lambda: load_target("mini").replaced(SCARCE),
    "single": lambda: load_target("mini").replaced(SINGLE),
}

PROBLEMS = (
    "matmul({t}[4,12,96,384], const {t}[384,1536])",
    "matmul({t}[1,384], const {t}[384,1000])",
    "matmul({t}[7,129], const {t}[129,65])",
    "matmul({t}[3,2048], const {t}[2048,2048])",
    "matmul({t}[512,2048], const {t}[2048,6144])",
    "matmul({t}[2,12,128,64], {t}[2,12,64,128])",
    "matmul({t}[24,80,36], {t}[24,36,20])",
    "gemm({t}[40,72], const {t}[56,72], const {t}[56]; trans_b=true, alpha=0.5)",
    "conv({t}[1,3,224,224], const {t}[64,3,7,7], const {t}[64]; strides=(2,2), pads=(3,3,3,3){l})",
    "conv({t}[1,64,56,56], const {t}[64,64,3,3]; pads=(1,1,1,1){l})",
    "conv({t}[2,512,7,7], const {t}[512,512,3,3]; pads=(1,1,1,1){l})",
    "conv({t}[1,256,14,14], const {t}[1024,256,1,1]{l})",
    "conv({t}[1,256,56,56], const {t}[512,256,1,1]; strides=(2,2){l})",
    "conv({t}[1,24,19,23], const {t}[40,24,5,3]; pads=(2,0,1,2), dilations=(2,1){l})",
    "conv({t}[1,64,20,20], const {t}[128,16,3,3]; groups=4, pads=(1,1,1,1){l})",
    "conv({t}[1,96,56,56], const {t}[96,1,3,3]; groups=96, pads=(1,1,1,1){l})",
    "conv({t}[1,40,15,15], const {t}[40,1,5,5]; groups=40, strides=(2,2), pads=(2,2,2,2){l})",
    "conv({t}[1,80,3000], const {t}[384,80,3]; pads=(1,1){l})",
    "conv({t}[1,16,6,10,12], const {t}[24,16,3,3,3]; pads=(1,1,1,1,1,1){l})",
    "conv_transpose({t}[1,32,24,24], const {t}[32,16,4,4]; strides=(2,2), pads=(1,1,1,1))",
    "max_pool({t}[1,64,112,112]; kernel=(3,3), strides=(2,2), pads=(1,1,1,1){l})",
    "max_pool({t}[2,20,9,11]; kernel=(2,5){l})",
    "avg_pool({t}[1,96,28,28]; kernel=(3,3), pads=(1,1,1,1){l})",
    "global_avg_pool({t}[2,512,7,7]{l})",
    "softmax({t}[8,12,128,128]; axis=-1)",
    "softmax({t}[16,1000,9]; axis=1)",
    "softmax({t}[2,32003]; axis=-1)",
    "layer_norm({t}[197,768], {t}[768], {t}[768]; axis=-1)",
    "reduce_sum({t}[64,384]; axes=(1,))",
    "reduce_sum({t}[1000,33]; axes=(0,))",
    "reduce_max({t}[4,65536]; axes=(1,))",
    "argmax({t}[5,1003]; axis=1)",
    "cumsum({t}[37,129]; axis=0)",
    "add({t}[64,56,56], {t}[64,1,1])",
    "gelu({t}[3,1001])",
    "gather({t}[30522,384], i64[128]; axis=0)",
    "gather({t}[9,50,20], i32[7]; axis=1)",
    "concat({t}[2,192,14,14], {t}[2,48,14,14]; axis=1)",
    "pad({t}[2,30,31]; pads=(0,1,2,0,3,1))",
    "attention({t}[1,12,197,64], {t}[1,12,197,64], {t}[1,12,197,64])",
    "attention({t}[2,8,1,128], {t}[2,2,1000,128], {t}[2,2,1000,128])",
    "attention({t}[1,16,2048,64], {t}[1,16,2048,64], {t}[1,16,2048,64])",
    "rope({t}[1,16,33,64], {t}[33,32], {t}[33,32])",
    "lrn({t}[1,64,27,27]; size=5)",
    "reduce_max({t}[1024,700]; axes=(0,1))",
)
"""Operators by the registry's text, `{t}` a type of elements, `{l}` a layout of images."""
QUANTISED = (
    "matmul_integer(u8[49,320], const i8[320,1280], u8[])",
    "matmul_integer(u8[1,2048], const i8[2048,1000], u8[])",
    "conv_integer(u8[1,3,96,96], const i8[16,3,3,3]; strides=(2,2), pads=(1,1,1,1), layout=channels_last)",
    "conv_integer(u8[1,128,28,28], const i8[128,128,3,3]; pads=(1,1,1,1), layout=channels_last)",
    "conv_integer(u8[1,72,28,28], const i8[72,1,3,3]; groups=72, pads=(1,1,1,1), layout=channels_last)",
    "block_matmul(f32[1,2048], const u8[2048,1024], const f16[2048,64]; bits=4, block=32, zero=8)",
    "block_matmul(f32[96,1024], const u8[512,512], const f16[512,32]; bits=4, block=32, zero=8)",
    "block_matmul(f32[5,96], const u8[37,48], const f16[37,3], const f16[37,3]; bits=4, block=32, zero=7, x_bits=8)",
    "block_matmul(f32[1,96], const i8[37,96], const f32[37,6]; bits=8, block=16, x_bits=8)",
    "block_matmul(f32[40,64], const u8[21,64], const bf16[21,2], const bf16[21,2]; bits=8, block=32)",
    "matmul_integer(i8[2,3,20], u8[2,20,37], i8[], u8[2,1,37])",
    "matmul_integer(u8[7,36], const u8[36,21], u8[], u8[21])",
)
"""Of models in bytes or fewer bits, on every target."""
LARGE = ("matmul(f16[3072,3072], const f16[3072,3072])", "matmul(f16[4608,3072], f16[3072,4608])")
"""On an accelerator only, whose sums are cut there."""
SMALL = (
    "matmul({t}[3,5], const {t}[5,37])",
    "matmul({t}[2,7,33], {t}[2,33,21])",
    "matmul({t}[7], const {t}[7,35])",
    "gemm({t}[6,11], {t}[11,13], {t}[13]; alpha=0.5, beta=2.0)",
    "conv({t}[1,3,9,11], const {t}[5,3,3,3], const {t}[5]; pads=(1,0,1,2))",
    "conv({t}[2,6,9,9], const {t}[6,1,3,3]; groups=6, strides=(2,1), pads=(1,1,1,1))",
    "conv({t}[1,6,9,8], const {t}[9,2,2,3]; groups=3, dilations=(2,1), layout=channels_last)",
    "conv({t}[1,7,9,9], const {t}[7,1,3,3], const {t}[7]; groups=7, pads=(1,1,1,1), layout=channels_last)",
    "conv({t}[1,35,6,7], const {t}[19,35,3,3]; pads=(1,1,1,1), layout=channels_last)",
    "conv({t}[1,2,4,4,4], {t}[3,2,2,2,2])",
    "conv_transpose({t}[1,2,4,5], {t}[2,3,3,2], {t}[3]; strides=(2,1), pads=(1,0,0,1))",
    "max_pool({t}[1,19,8,9]; kernel=(3,2), strides=(2,2), pads=(1,0,1,1), layout=channels_last)",
    "max_pool({t}[1,3,8,8]; kernel=(2,2), dilations=(2,1))",
    "avg_pool({t}[1,3,8,8]; kernel=(3,2), strides=(1,2), pads=(1,0,1,0))",
    "max_pool({t}[1,3,4,6,7]; kernel=(2,3,2), strides=(1,2,1), pads=(1,0,0,1,0,0), layout=channels_last)",
    "avg_pool({t}[1,20,5,6,6]; kernel=(2,2,3), pads=(1,0,1,0,1,0), layout=channels_last)",
    "lp_pool({t}[1,5,6,7]; kernel=(2,3), p=3)",
    "softmax({t}[3,37]; axis=-1)",
    "softmax({t}[4,7,5]; axis=1)",
    "layer_norm({t}[4,37], {t}[37], {t}[37]; axis=-1)",
    "rms_norm({t}[500,6], {t}[6]; axis=-1)",
    "reduce_mean({t}[4,5,6]; axes=(0,2))",
    "reduce_max({t}[4,37]; axes=(1,))",
    "argmax({t}[4,7,5]; axis=1)",
    "topk({t}[3,20]; k=4)",
    "cumsum({t}[4,37]; axis=1, exclusive=true, reverse=true)",
    "cast({t}[3,35]; dtype=i8)",
    "cast({t}[3,35]; dtype=f16)",
    "cast({t}[3,35]; dtype=i64)",
    "pow({t}[3,35], {t}[3,1])",
    "mod({t}[5], {t}[3,5])",
    "where(bool[3,1], {t}[3,5], {t}[5])",
    "resize({t}[1,2,4,5]; sizes=(1,2,7,8), mode=linear)",
    "add({t}[3,1,5], {t}[4,1])",
    "tanh({t}[3,35])",
    "gather({t}[4,5], i64[3]; axis=1)",
    "gather_elements({t}[4,5], i64[2,5]; axis=0)",
    "scatter_elements({t}[4,5], i64[2,5], {t}[2,5]; axis=0)",
    "concat({t}[2,3], {t}[2,5]; axis=1)",
    "concat({t}[2,3], {t}[2,3], {t}[2,3], {t}[2,3], {t}[2,3], {t}[2,3], {t}[2,3], {t}[2,3], {t}[2,3]; axis=1)",
    "pad({t}[2,3]; pads=(1,0,0,2))",
    "pad({t}[4,5]; pads=(2,3,1,2), mode=reflect)",
    "pad({t}[2,3]; pads=(1,0,-1,2), mode=edge)",
    "tile({t}[2,3]; repeats=(2,3))",
    "kv_update({t}[1,2,8,4], {t}[1,2,3,4], i64[])",
    "attention({t}[1,4,3,16], {t}[1,2,9,16], {t}[1,2,9,16]; causal=true)",
    "attention({t}[1,4,3,16], {t}[1,2,9,16], {t}[1,2,9,16], {t}[1,1,3,9], i32[1]; softcap=20.0)",
    "attention({t}[1,2,5,16], {t}[1,2,9,16], {t}[1,2,9,16], bool[5,9])",
    "attention({t}[2,2,5,16], {t}[2,2,40,16], {t}[2,2,40,16], {t}[40])",
    "attention({t}[1,2,5,16], {t}[1,2,9,16], {t}[1,2,9,16], bool[5,1]; causal=true)",
    "rope({t}[1,2,3,8], {t}[3,4], {t}[3,4])",
    "rope({t}[2,2,3,8], {t}[9,2], {t}[9,2], i64[2,3]; interleaved=true, rotary_dim=4)",
    "rope({t}[2,2,3,8], {t}[9,4], {t}[9,4], i64[2])",
    "rope({t}[2,2,1,8], {t}[9,4], {t}[9,4], i64[2])",
    "lrn({t}[1,5,3,4]; size=3)",
    "grouped_matmul({t}[6,5], const {t}[3,5,7], i64[3], i32[24]; cut=(2,1,1))",
    "tile_groups(i64[3]; rows=6, tile=2)",
    "nonzero({t}[3,37]; size=111)",
    "non_max_suppression({t}[2,9,4], {t}[2,3,9]; size=54, limit=9, iou_threshold=0.3)",
)
"""Operators with sizes that fit nothing, `{t}` each element type that they take."""
LIMITED = (
    "matmul(f16[20,1], f16[1,30])",
    "conv(f16[0,16,9,9], const f16[16,16,3,3]; layout=channels_last)",
    "conv(f16[1,12,9,9], const f16[20,12,1,1]; strides=(2,2), layout=channels_last)",
    "conv(f16[1,16,9,9], const f16[20,16,1,1]; strides=(2,2), layout=channels_last)",
    "matmul(f16[0,30], f16[30,20])",
    "softmax(f16[0,30]; axis=-1)",
    "max_pool(f16[0,16,9,9]; kernel=(2,2), layout=channels_last)",
    "attention(f16[1,2,0,16], f16[1,2,9,16], f16[1,2,9,16])",
    "matmul(f32[19,16], const f32[16,20])",
    "matmul(f16[3,17,17], const f16[3,17,20])",
    "matmul_integer(i8[9,70], const i8[70,20])",
    "conv(f32[1,20,7,6], const f32[40,20,3,3], const f32[40]; pads=(1,1,1,1), layout=channels_last)",
    "conv(f16[3,48,9,9], const f16[100,48,1,1]; strides=(2,2), layout=channels_last)",
    "conv_integer(i8[1,40,9,9], const i8[24,40,3,3]; pads=(1,1,1,1), layout=channels_last)",
    "conv(f32[1,40,9,9], const f32[40,1,5,5]; groups=40, strides=(2,2), pads=(2,2,2,2), layout=channels_last)",
    "conv(f16[1,40,1,15], const f16[40,1,1,3]; groups=40, layout=channels_last)",
    "max_pool(f32[1,72,30,31]; kernel=(3,3), strides=(2,2), pads=(1,1,1,1), layout=channels_last)",
    "avg_pool(f32[2,20,9,11]; kernel=(2,5), layout=channels_last)",
    "global_avg_pool(f16[2,80,7,7]; layout=channels_last)",
    "softmax(f32[30,129]; axis=-1)",
    "softmax(f16[6,100,9]; axis=1)",
    "layer_norm(f32[19,300], f32[300], f32[300]; axis=-1)",
    "reduce_sum(f32[100,33]; axes=(0,))",
    "reduce_max(i8[40,650]; axes=(1,))",
    "cumsum(i32[37,129]; axis=0)",
    "gelu(f32[3,1001])",
    "gather(f32[3052,38], i32[128]; axis=0)",
    "gather(f16[30,700], i32[9]; axis=0)",
    "attention(f32[1,1,5,24], f32[1,1,19,24], f32[1,1,19,24])",
    "attention(f16[1,2,1,32], f16[1,1,37,32], f16[1,1,37,32]; causal=true)",
    "rope(f32[1,4,33,64], f32[33,32], f32[33,32])",
    "rope(f32[1,4,33,64], f32[33,32], f32[33,32]; interleaved=true)",
)
"""For accelerators with little memory: how much of it they want is told."""
FURTHER = (
    "attention(f16[1,1,4,16], f16[1,1,700,16], f16[1,1,700,16])",
    "attention(f16[1,4,2,64], f16[1,2,130,64], f16[1,2,130,64], f16[1,1,2,130])",
    "attention(f32[1,1,70,24], f32[1,1,33,24], f32[1,1,33,40])",
    "lp_pool(f16[1,5,6,7]; kernel=(2,3), p=2)",
    "lp_pool(f16[1,5,6,7]; kernel=(2,3), p=1)",
    "exp(f16[9,1])",
    "add(f16[5,7], f16[5,1])",
    "mul(f32[70,1,9], f32[1,33,9])",
    "where(bool[40,50], f16[40,1], f16[1,50])",
    "layer_norm(f16[5,40,3], f16[40,3], f16[40,3]; axis=1)",
    "reduce_sum(f16[7,5,3]; axes=(1,))",
    "gather(f32[50,3,20], i64[4,5]; axis=1)",
    "concat(f16[20,30], f16[20,1], f16[20,64]; axis=1)",
)
"""Further ones, for what is tried and emitted there."""
SMALL_TYPES = (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I8, DType.I32)
GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "mlp": models.mlp,
    "encoder": lambda: models.transformer(layers=1),
    "decoder": lambda: models.decode_step(layers=1),
    "experts": models.moe_layer,
    "quantised": models.quantised_classifier,
    "residual": models_aicore.residual_chain,
    "branches": models_aicore.branching,
    "inception": models_aicore.inception,
    "fork and join": models_aicore.fork_and_join,
    "formulas": formulas,
    "scopes": scopes,
}
THREADS = 4  # on a CPU


def problems(target: str) -> Iterator[tuple[str, Policy]]:
    """The problems that are looked at on a target."""
    for text, policy in _problems(target):
        yield text.replace("; , ", "; ").replace("], layout", "]; layout"), policy


def _problems(target: str) -> Iterator[tuple[str, Policy]]:
    if target in ("mini", "scarce", "single"):
        yield from ((text, Policy()) for text in (*LIMITED, *(FURTHER if target != "mini" else ())))
        return
    if target == "a3":
        yield from ((text, Policy()) for text in LARGE)
        for text in PROBLEMS:
            for dtype in ("f16", "f32") if "pool" in text or "softmax" in text else ("f16",):
                yield text.format(t=dtype, l=", layout=channels_last"), Policy()
        return
    for text in PROBLEMS if target not in ("cortex-m55", "neon") else ():
        layouts = ("", ", layout=channels_last") if "{l}" in text else ("",)
        for layout in layouts if target != "tiles" else ():
            yield text.format(t="f32", l=layout), Policy()
        if text.startswith(("matmul", "conv(")) and target != "plain":
            for precision in ("bf16", "int8"):
                yield text.format(t="f32", l=layouts[-1]), Policy(precision=precision)
    for text in QUANTISED:
        yield text, Policy()


def small_problems(types: tuple[DType, ...], *, images_last: bool = False) -> Iterator[tuple[str, Policy]]:
    """Those of small sizes. `images_last`: all images have their channels last."""
    for text in SMALL:
        if images_last and text.startswith(("conv(", "max_pool", "avg_pool")) and "layout" not in text:
            text = f"{text[:-1]}{',' if ';' in text else ';'} layout=channels_last)"
        (first, *_) = op_table()[text.split("(")[0]].args
        for dtype in types if "{t}" in text else types[:1]:
            if dtype in first.dtypes or "{t}" not in text:
                yield text.format(t=dtype.value), Policy()


def kernels_of(text: str, policy: Policy, target: Any) -> Iterator[tuple[str, Body]]:
    """The kernels that a target could take for a problem, with its body."""
    table: Any = AICORE_KERNELS if target.core_types else HOST_KERNELS
    need = parse_requirement(text, target, policy)
    body = body_of(need)
    assert body is not None, text
    for candidate in table.registry.select(need).explanation.eligible:
        if candidate.row.role is not KernelRole.REFERENCE:
            yield candidate.row.kernel, body


def tilings_of(kernel: str, body: Body, target: Any) -> Iterable[Any]:
    """A kernel's tilings in the order in which they are tried."""
    table: Any = AICORE_KERNELS if target.core_types else HOST_KERNELS
    return table.family_of(kernel).tilings(kernel, body, target)


def tilings(text: str, policy: Policy, target: Any) -> Iterator[tuple[str, Body, Any]]:
    """Of a problem each kernel that a target could take, with all tilings in the order in which they are tried: none
    where the target has too little memory for it."""
    for kernel, body in kernels_of(text, policy, target):
        with suppress(UnsupportedError):
            yield from ((kernel, body, tiling) for tiling in tilings_of(kernel, body, target))


def without_names(tiling: object) -> str:
    """A tiling's text, shorter."""
    return _NAMES.sub("", str(tiling))


def planned_graph(graph: Graph, name: str, options: Options | None = None) -> Any:
    """What planning makes of a model on a target."""
    target: Any = TARGETS[name]()
    return planned_on(graph, target, options or Options(), None if target.core_types else THREADS)


def planned_on(graph: Graph, target: Any, options: Options, threads: int | None) -> Any:
    """The same with so many threads."""
    backend: Any = backend_of(target)
    job = Job(graph, target, backend.cores(target, threads), options)
    return plan_graph(Stages(frozenset(), None), job, backend.planner(job))
