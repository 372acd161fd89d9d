"""What kernels are estimated to take, held against counts of what there is to do: of large problems, twice the work
takes about twice the time, wherever data lies, and nothing takes less than its arithmetic at the machine's peak.

Kernels and tilings are ranked by these estimates, so that one with the wrong law ranks large problems wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from registry_cases import TARGETS

from superkernel.ir.body import Body
from superkernel.registry.records import KernelRole, Policy, Requirement
from superkernel.registry.requirement import body_of, parse_requirement
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.scheduler.hostcall import HOST_CALL_NS, HOST_REFERENCE
from superkernel.scheduler.tiling import CostedTiling
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.cpu import CpuTarget

HUGE = 1 << 40
AVX512, PLAIN = TARGETS["avx512"], TARGETS["plain"]
HOSTS = {
    "near": replace(AVX512, l2_bytes=HUGE, l3_bytes=HUGE),
    "far": replace(AVX512, l2_bytes=1, l3_bytes=1),
    "plain": replace(PLAIN, l2_bytes=HUGE, l3_bytes=HUGE),
}
"""All data in the second-level cache, all of it in memory; short vectors."""
DEVICES = {name: load_target(name) for name in ("a3", "mini")}


@dataclass(frozen=True, eq=False)
class Problem:
    """`text` with its extents to be filled in, the first that of images or rows. `flops`: of the extents; `shared`:
    extents of half the work, the other half having another one; `slack`: how much more than its arithmetic the best
    kernel takes."""

    text: str
    extents: Mapping[str, int]
    flops: Callable[..., float] | None = None
    shared: frozenset[str] = frozenset()
    slack: float = 1.2
    precision: str = "f32"

    def __str__(self) -> str:
        layout, precision = "channels_last" in self.text, self.precision != "f32"
        return self.text.split("(")[0] + " nhwc" * layout + f" {self.precision}" * precision

    def need(self, dtype: str, target: CpuTarget | AicoreTarget, doubled: str = "") -> Requirement:
        """With one extent twice as large."""
        extents = {name: extent * (1 + (name == doubled)) for name, extent in self.extents.items()}
        return parse_requirement(self.text.format(t=dtype, **extents), target, Policy(precision=self.precision))


def product_flops(*, b: int, m: int, n: int, k: int) -> float:
    return 2.0 * b * m * n * k


def window_flops(*, b: int, h: int, w: int, c: int, o: int = 1) -> float:
    return 2.0 * 9 * b * h * w * c * o


IMAGE = {"b": 2, "c": 64, "h": 64, "w": 256}
ROWS = {"r": 2048, "c": 2048}
CONV = "conv({t}[{b},{c},{h},{w}], const {t}[{o},{c},3,3]; pads=(1,1,1,1)"
DEPTHWISE = "conv({t}[{b},{c},{h},{w}], const {t}[{c},1,3,3]; groups={c}, pads=(1,1,1,1)"
POOL = "max_pool({t}[{b},{c},{h},{w}]; kernel=(3,3), pads=(1,1,1,1)"
PROBLEMS = (
    Problem("matmul({t}[{b},{m},{k}], const {t}[{k},{n}])", {"b": 4, "m": 512, "k": 2048, "n": 2048}, product_flops),
    Problem("matmul({t}[{b},{m},{k}], {t}[{b},{k},{n}])", {"b": 4, "m": 2048, "k": 1024, "n": 1024}, product_flops),
    Problem(CONV + ")", {**IMAGE, "o": 64}, window_flops),
    Problem(CONV + ", layout=channels_last)", {**IMAGE, "o": 64}, window_flops),
    Problem(DEPTHWISE + ")", IMAGE, window_flops),
    Problem(DEPTHWISE + ", layout=channels_last)", IMAGE, window_flops),
    Problem(POOL + ")", {**IMAGE, "w": 1024}),
    Problem(POOL + ", layout=channels_last)", IMAGE),
    Problem("conv_transpose({t}[{b},{c},{h},{w}], const {t}[{c},{o},2,2]; strides=(2,2))", {**IMAGE, "o": 64}),
    Problem("softmax({t}[{r},{c}]; axis=-1)", ROWS),
    Problem("layer_norm({t}[{r},{c}], {t}[{c}], {t}[{c}]; axis=-1)", ROWS),
    Problem("reduce_sum({t}[{r},{c}]; axes=(1,))", ROWS),
    Problem("reduce_sum({t}[{r},{c}]; axes=(0,))", ROWS),
    Problem("argmax({t}[{r},{c}]; axis=1)", ROWS),
    Problem("cumsum({t}[{r},{c}]; axis=1)", ROWS),
    Problem("add({t}[{r},{c}], {t}[{r},{c}])", ROWS),
    Problem("gather({t}[1000,{c}], i32[{r}]; axis=0)", ROWS),
    Problem("concat({t}[{r},{a}], {t}[{r},{c}]; axis=1)", {**ROWS, "a": 2048}, shared=frozenset({"a", "c"})),
    Problem(
        "attention({t}[{b},{h},{q},64], {t}[{b},{h},{k},64], {t}[{b},{h},{k},64])",
        {"b": 2, "h": 8, "q": 1024, "k": 2048},
        lambda b, h, q, k: 4.0 * 64 * b * h * q * k,
        slack=1.4,  # the softmax between the products
    ),
    Problem("rope({t}[{b},{h},{q},64], {t}[{q},32], {t}[{q},32])", {"b": 4, "h": 16, "q": 512}),
)
PRODUCT = "matmul({t}[{b},{m},{k}], const {t}[{k},{n}])"
HOST_PROBLEMS = (
    *PROBLEMS,
    *(Problem(PRODUCT, {"b": 4, "m": 512, "k": 2048, "n": 2048}, precision=p) for p in ("bf16", "int8")),
    *(Problem(CONV + ", layout=channels_last)", {**IMAGE, "o": 64}, precision=p) for p in ("bf16", "int8")),
    Problem("matmul({t}[1,{k}], const {t}[{k},{n}])", {"n": 2048, "k": 2048}),
    Problem("matmul_integer(u8[{m},{k}], const i8[{k},{n}], u8[])", {"m": 512, "k": 2048, "n": 2048}),
    Problem(
        "conv_integer(u8[{b},{c},{h},{w}], const i8[{o},{c},3,3]; pads=(1,1,1,1), layout=channels_last)",
        {**IMAGE, "o": 64},
    ),
    Problem(
        "block_matmul({t}[{m},2048], const u8[{n},1024], const f16[{n},64]; bits=4, block=32, zero=8)",
        {"m": 512, "n": 2048},
    ),
    Problem("avg_pool({t}[{b},{c},{h},{w}]; kernel=(3,3), pads=(1,1,1,1), layout=channels_last)", IMAGE),
    Problem("pad({t}[{r},{c}]; pads=(1,0,0,2))", ROWS),
    Problem("lrn({t}[{b},{c},{h},{w}]; size=3)", IMAGE),
    Problem("gather_elements({t}[{r},{c}], i64[{r},{c}]; axis=0)", ROWS),
)
FEWER_PRODUCTS = {"host.conv.winograd2": 2.25, "host.conv.winograd4": 4.0}
LAWLESS = {"host.conv.igemm"}  # for depthwise convolutions, which it was not made for


@cache
def estimates(problem: Problem, kind: str, doubled: str = "") -> Mapping[str, float]:
    """Nanoseconds by kernel, of all that could take it."""
    host = HOSTS.get(kind)
    target: CpuTarget | AicoreTarget = host or DEVICES[kind]
    table = HOST_KERNELS if host else AICORE_KERNELS
    need = problem.need("f32" if host else "f16", target, doubled)
    rows = [c.row for c in table.registry.select(need).explanation.eligible]
    assert table.registry.estimator is not None
    found = {r.kernel: table.registry.estimator(r.kernel, need) for r in rows if r.role is not KernelRole.REFERENCE}
    return {kernel: estimate.time_ns for kernel, estimate in found.items() if estimate is not None}


def tilings(problem: Problem, kind: str) -> Iterator[tuple[str, Body, CostedTiling[Any], float]]:
    """All cuts of kernels that could take it, with what the whole takes."""
    body = body_of(problem.need("f32", HOSTS[kind]))
    assert body is not None
    for kernel in estimates(problem, kind):
        for tiling in HOST_KERNELS.family_of(kernel).tilings(kernel, body, HOSTS[kind]):
            yield kernel, body, tiling, tiling.cost_ns(body, 0, tiling.units, HOSTS[kind])


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("problem", HOST_PROBLEMS, ids=str)
def test_twice_the_work_takes_twice_the_time(problem: Problem, kind: str) -> None:
    one = estimates(problem, kind)
    assert one
    for extent in problem.extents:
        low, high = (1.35, 1.65) if extent in problem.shared else (1.65, 2.2)
        two = estimates(problem, kind, extent)
        for kernel, time_ns in one.items():
            if kernel not in LAWLESS or "groups" not in problem.text:
                assert low < two[kernel] / time_ns < high, f"{kernel}, {extent}: {time_ns:.0f} and {two[kernel]:.0f} ns"


MORE = (
    "max_pool({t}[2,64,64,64]; kernel=(%s,3), layout=%s)",
    "max_pool({t}[2,64,64,64]; kernel=(3,%s), layout=%s)",
    "max_pool({t}[2,64,64,64]; kernel=(3,3), strides=(1,%s), layout=%s)",
    "max_pool({t}[2,64,64,64]; kernel=(3,3), strides=(%s,1), layout=%s)",
    "conv({t}[2,64,64,64], const {t}[64,64,%s,3]; layout=%s)",
    "conv({t}[2,64,64,64], const {t}[64,64,3,%s]; layout=%s)",
    "conv({t}[2,64,64,64], const {t}[64,1,%s,3]; groups=64, layout=%s)",
    "conv({t}[2,64,64,64], const {t}[64,1,3,%s]; groups=64, layout=%s)",
    "conv({t}[2,64,64,64], const {t}[64,64,3,3]; strides=(%s,%s), layout=%s)",
)
"""Windows, by one of their sides or steps."""


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("layout", ["row_major", "channels_last"])
@pytest.mark.parametrize("text", MORE)
def test_larger_windows_and_more_of_them_take_longer(text: str, layout: str, kind: str) -> None:
    sides = (3, 7) if "strides" not in text else (2, 1)
    small, large = (estimates(Problem(text % (*[side] * (text.count("%s") - 1), layout), {}), kind) for side in sides)
    assert small.keys() & large.keys()
    for kernel in small.keys() & large.keys():
        assert small[kernel] < large[kernel], (kernel, small[kernel], large[kernel])


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_twice_the_images_or_rows_take_twice_the_time_on_the_accelerator(problem: Problem, kind: str) -> None:
    """Other extents change how the work is cut to fit local memories."""
    extent = next(iter(problem.extents))
    one, two = estimates(problem, kind), estimates(problem, kind, extent)
    for kernel, time_ns in one.items():
        assert 1.65 < two[kernel] / time_ns < 2.2, f"{kernel}, {extent}: {time_ns:.0f} and {two[kernel]:.0f} ns"


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.flops], ids=str)
def test_nothing_takes_less_than_its_arithmetic(problem: Problem, kind: str) -> None:
    """And the best kernel of a product whose data is near takes little more."""
    assert problem.flops is not None
    least = problem.flops(**problem.extents) / HOSTS[kind].flops_per_ns
    times = estimates(problem, kind)
    for kernel, time_ns in times.items():
        assert time_ns >= least / FEWER_PRODUCTS.get(kernel, 1.0), kernel
    if kind != "far" and "groups" not in problem.text:
        assert min(times[kernel] for kernel in times if kernel not in FEWER_PRODUCTS) < problem.slack * least


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("problem", HOST_PROBLEMS, ids=str)
def test_shares_of_the_work_take_shares_of_the_time(problem: Problem, kind: str) -> None:
    """Whatever the cut: quarters take what the whole does, and some overhead each; a longer range takes longer."""
    for kernel, body, tiling, whole in tilings(problem, kind):
        cuts = [tiling.units * n // 4 for n in range(5)]
        parts = [tiling.cost_ns(body, *span, HOSTS[kind]) for span in pairwise(cuts)]
        upto = [tiling.cost_ns(body, 0, end, HOSTS[kind]) for end in cuts[1:]]
        assert 0.97 * whole <= sum(parts) <= 2.0 * whole + 1000, (kernel, tiling, parts, whole)
        assert all(a <= b for a, b in pairwise(upto)), (kernel, tiling, upto)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_numpy_takes_a_call_and_what_its_operands_take(problem: Problem) -> None:
    """Where no kernel computes a problem: more with every extent."""

    def time_ns(doubled: str = "") -> float:
        assert HOST_KERNELS.registry.estimator is not None
        estimate = HOST_KERNELS.registry.estimator(HOST_REFERENCE, problem.need("f32", AVX512, doubled))
        assert estimate is not None
        return estimate.time_ns

    for extent in problem.extents:
        assert HOST_CALL_NS < time_ns() < time_ns(extent)
