"""Plans as text: of operators every kernel with the tilings it tries and what each is estimated to take, of models what
is fused, where it runs and what it touches. `tests/plans/` holds them as they were last looked at.

    python tests/plans.py

writes them anew. Whoever changes an estimate, what is tried or where work goes sees the consequences in the diff, and
commits it with the change.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import models
import models_aicore
from random_models import random_graph

from superkernel.api import resolved
from superkernel.backends import backend_of
from superkernel.compilation.compiled import Job
from superkernel.compilation.planning import plan_graph
from superkernel.compilation.stages import Stages
from superkernel.core.options import Options
from superkernel.ir.graph import Graph
from superkernel.registry.records import KernelRole, Policy
from superkernel.registry.requirement import body_of, parse_requirement
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.target.base import Target
from superkernel.target.cpu import AVX2, AVX512, EMULATED_TILES, cpu_target
from superkernel.target.machine import load_profile

FOLDER = Path(__file__).with_name("plans")
_NAMES = re.compile(r"\b\w+=")
TRIPLE = "x86_64-unknown-linux-gnu"
FEATURES = (*AVX2, *AVX512, "avx512bf16", "avx512vnni")


def _host(machine: str, tier: str, *further: str) -> Target:
    profile = load_profile(Path(__file__).with_name("machines") / f"{machine}.json")
    return cpu_target(TRIPLE, tier, (*FEATURES, *further), profile)


TARGETS: Mapping[str, Callable[[], Target]] = {
    "avx512": lambda: _host("xeon-16-pair", "avx512"),
    "tiles": lambda: _host("two-sockets", "avx512", EMULATED_TILES),
    "plain": lambda: _host("sixty-four", "plain"),
    "cortex-m55": lambda: resolved("cortex-m55"),
    "a3": lambda: resolved("a3"),
    "mini": lambda: resolved("mini"),
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
)
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
}
CANDIDATES_ON = ("avx512", "tiles", "plain", "cortex-m55", "a3")
MODELS_ON = ("avx512", "mini")
THREADS = 4  # on a CPU
RANDOM = 100  # models


def _problems(target: str) -> Iterator[tuple[str, Policy]]:
    """The problems that are looked at on a target."""
    if target == "a3":
        for text in PROBLEMS:
            for dtype in ("f16", "f32") if "pool" in text or "softmax" in text else ("f16",):
                yield text.format(t=dtype, l=", layout=channels_last"), Policy()
        return
    for text in PROBLEMS if target != "cortex-m55" else ():
        layouts = ("", ", layout=channels_last") if "{l}" in text else ("",)
        for layout in layouts if target != "tiles" else ():
            yield text.format(t="f32", l=layout), Policy()
        if text.startswith(("matmul", "conv(")) and target != "plain":
            for precision in ("bf16", "int8"):
                yield text.format(t="f32", l=layouts[-1]), Policy(precision=precision)
    for text in QUANTISED:
        yield text, Policy()


def candidates(name: str) -> str:
    """Of each problem the kernels that a target could take, their tilings in the order in which they are tried, and of
    each the nanoseconds of the whole, its first half and its last two thirds, on an accelerator also those of what goes
    ahead of a wait."""
    target = TARGETS[name]()
    lines = []
    for text, policy in _problems(name):
        text = text.replace("; , ", "; ").replace("], layout", "]; layout")
        lines.append(f"{text} {policy.precision}")
        for kernel, tiling, costs in _tilings(text, policy, target):
            made = _NAMES.sub("", str(tiling))
            lines.append(f"  {' '.join(f'{ns:.4g}' for ns in costs)} {kernel} {made}")
    return "\n".join(lines) + "\n"


def _tilings(text: str, policy: Policy, target: Any) -> Iterator[tuple[str, Any, list[float]]]:
    table: Any = AICORE_KERNELS if target.core_types else HOST_KERNELS
    need = parse_requirement(text, target, policy)
    body = body_of(need)
    assert body is not None, text
    for candidate in table.registry.select(need).explanation.eligible:
        if candidate.row.role is KernelRole.REFERENCE:
            continue
        for tiling in table.family_of(candidate.row.kernel).tilings(candidate.row.kernel, body, target):
            spans = (0, tiling.units), (0, (tiling.units + 1) // 2), (tiling.units // 3, tiling.units)
            costs = [tiling.cost_ns(body, *span, target) for span in spans]
            if isinstance(tiling, AicoreTiling):
                costs += [tiling.lead_cycles(body, *span, target) for span in spans[:2]]
            yield candidate.row.kernel, tiling, costs


def planned(name: str) -> str:
    """Of each model what is fused, its tilings and places, and all tasks with what they touch."""
    plans = {model: _planned(graph(), name) for model, graph in GRAPHS.items()}
    lines = [f"model {model}\n{made.grouping}\n{made.schedule}\n{made.plan}" for model, made in plans.items()]
    return "\n".join(lines) + "\n"


def random_plans(name: str) -> str:
    """Of random models the tilings, and digests of tasks and of the plan."""
    lines = []
    for seed in range(RANDOM):
        made = _planned(random_graph(random.Random(seed)), name)
        subops, tasks = [], []
        for line in str(made.schedule).splitlines():
            (subops if line.startswith("# subop") else tasks).append(_NAMES.sub("", line))
        digests = (hashlib.sha256(text.encode()).hexdigest()[:12] for text in ("\n".join(tasks), str(made.plan)))
        lines += [f"random {seed} {' '.join(digests)}", *subops]
    return "\n".join(lines) + "\n"


def _planned(graph: Graph, name: str) -> Any:
    target: Any = TARGETS[name]()
    backend: Any = backend_of(target)
    job = Job(graph, target, backend.cores(target, None if target.core_types else THREADS), Options())
    return plan_graph(Stages(frozenset(), None), job, backend.planner(job))


TEXTS: Mapping[str, Callable[[], str]] = {
    **{f"candidates-{name}": partial(candidates, name) for name in CANDIDATES_ON},
    **{f"models-{name}": partial(planned, name) for name in MODELS_ON},
    **{f"random-{name}": partial(random_plans, name) for name in MODELS_ON},
}


def path_of(text: str) -> Path:
    """Where a text is kept."""
    return FOLDER / f"{text}.txt"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        path_of(name).write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
